"""Search spaces of continual text-to-video and image-text retrieval."""

from ray import tune

SPACE = {
    # The number of frames per video is a setting of the stream and is not searched, since it changes the data. A search
    # begins with the defaults, which are the paper's for MSRVTT. Imported ACTNET streams recommend the preset
    # `paper-actnet`, whose values are tried before the defaults
    "framefusion_moe": {
        "method.lr_text": tune.loguniform(1e-6, 2e-5),  # the paper uses 4e-6 (MSRVTT), 6e-6 (ACTNET)
        "method.lr_vision": tune.loguniform(1e-6, 2e-5),  # the paper uses 4e-6 (MSRVTT), 6e-6 (ACTNET)
        "method.lr_other": tune.loguniform(1e-6, 2e-5),  # the paper: as above; the released code uses 1e-5
        "method.lr_text_first": tune.loguniform(5e-6, 1e-4),  # task 1; the released code uses 2e-5 (MSRVTT)
        "method.beta": tune.uniform(0.0, 0.9),  # eq. 9; the paper uses 0.6
        "method.num_experts": tune.choice([1, 5, 10, 15, 20]),  # fig. 8 studies 1 to 20; the paper uses 10 and 5
        "method.ffa_layers": tune.choice([4, 6, 8, 10, 12]),  # fig. 8 studies 4 to 12; the paper uses 10 and 12
        "method.rank": tune.choice([8, 16, 32, 64]),  # the released code uses 64
        "method.top_k": tune.choice([1, 2, 4]),  # section 3.4 does not state K of TopK; the released code uses 2
        "method.dropout": tune.choice([0.0, 0.1, 0.2]),  # the released code uses 0.1
    },
    # A search begins with the defaults, which are the paper's for MSRVTT where it prints a value. Imported ACTNET
    # streams recommend the preset `paper-actnet`, whose values are tried before the defaults. `--space
    # method.pseudo=inputs,shared,clip` also searches the point at which pseudo features are sampled; preset
    # `released` needs `clip`
    "structalign": {
        "method.lambda1": tune.loguniform(0.01, 1.0),  # eq. 18; paper 0.1, studied in fig. 6
        "method.lambda2": tune.loguniform(1.0, 100.0),  # eq. 18; paper 10
        "method.tau2": tune.loguniform(0.01, 1.0),  # eq. 17; unpublished, 2 sqrt(32) / 99.5 = 0.11 in the released code
        "method.text_rank": tune.choice([16, 32, 64]),  # 64: with vision_rank 32 the printed 33.9 M parameters
        "method.vision_rank": tune.choice([8, 16, 32]),
        "method.num_experts": tune.choice([5, 10]),  # released: 10 on MSRVTT, 5 on ACTNET
        "method.lr_first": tune.loguniform(2e-6, 2e-4),  # paper 2e-5
        "method.lr": tune.loguniform(3e-7, 3e-5),  # paper 3e-6 (MSRVTT), 6e-6 (ACTNET)
    },
    # Values in comments are those of re-implementations of the paper, whose code is not public
    "cclip": {
        "method.lr": tune.loguniform(3e-6, 3e-4),  # six of the paper's eight data sets: 3e-5
        "method.lr_text": tune.loguniform(3e-5, 3e-3),  # ten times the image tower's: 3e-4
        "method.rank": tune.choice([8, 16, 32]),  # 16; table 6 compares ranks
        "method.merge": tune.choice([0.25, 0.5, 0.75, 1.0]),  # eq. 2: 0.5
        "method.weight": tune.choice([0.0, 0.3, 1.0, 3.0]),  # 1
        "method.temperature": tune.choice([0.03, 0.07, 0.2]),  # 0.07, not seen in the paper
        "method.projector": tune.choice(["mlp", "linear"]),  # the paper does not specify it
    },
    # Values in comments are those of the released code, which trains with SGD
    "lpi": {
        "method.lr": tune.loguniform(5e-3, 5e-1),  # 0.05
        "method.num_prompts": tune.choice([4, 8, 16]),  # 16
        "method.rank": tune.choice([2, 4, 8]),  # 4
        "method.depth": tune.choice([1, 3, 9]),  # 9 as the paper describes, 1 as the release computes
        "method.align_weight": tune.choice([0.0, 0.01, 0.1, 1.0]),  # 0.1
    },
    "dar": {
        "method.lr": tune.loguniform(1e-5, 1e-3),  # the paper uses 1e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        "method.route": tune.choice(["block", "query"]),  # the paper routes pairs, which a search cannot do
        "method.margin": tune.choice([0.0, 0.01, 0.05, 0.1]),  # the paper uses 0.05; table 8 compares these values
    },
}
FIXED = {
    "lpi": {
        "optim.name": "sgd",
        "optim.momentum": 0.9,
        "optim.weight_decay": 2e-4,
        "optim.decay_parameters": "all",
        "optim.schedule": "cosine_epochs",
        "optim.warmup": 0.0,
        "optim.grad_clip": None,
    },
}
