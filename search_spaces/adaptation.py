"""Search spaces of parameter-efficient adaptation (LoRA with token reduction, adapters, prompts) and of UMT."""

from ray import tune

SPACE = {
    # For a ViT-B/32; with a ViT-B/16 the paper uses r=10, 60 and 80 %
    "tempme": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        "method.reducer.r": tune.choice([1, 2, 3]),  # the paper uses 2
        "method.reducer.keep_cross": tune.choice([50, 60, 70, 80, 90]),  # R_C, studied in fig. 5; the paper uses 70 %
        "method.reducer.keep_intra": tune.choice([70, 80, 90, 100]),  # R_I, studied in fig. 5; the paper uses 90 %
        "method.train_positions": tune.choice(["all", "first"]),  # the paper has one task only
    },
    "lora": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16, 32]),  # the paper uses 8
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
    },
    "tome": {  # for a ViT-B/32; with a ViT-B/16 the paper's r is 10
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        "method.reducer.r": tune.choice([1, 2, 3]),  # the paper uses 2; more trades accuracy for speed
        "method.reducer.name": tune.choice(["tome", "tome_shared"]),  # the paper merges every frame on its own
    },
    "evit": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        # EViT's released models; 0.7 gives the multiply-adds of TempMe's table, which does not print the rate
        "method.reducer.keep_rate": tune.choice([0.5, 0.6, 0.7, 0.8, 0.9]),
    },
    "sta": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        # For a ViT-B/32. TempMe does not print r; 9 and 10 give the cost in its table
        "method.reducer.r": tune.choice([6, 8, 9, 10, 12]),
    },
    "diffrate": {  # its rates form a schedule, which is not searched
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
    },
    "testa": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        "method.reducer.temporal_rank": tune.choice([4, 8, 16]),  # 8 gives the parameter count of the table
    },
    "prompt": {
        "method.lr": tune.loguniform(1e-4, 1e-2),  # TempMe's section 4.1 uses 6e-4; prompts often need more
        "method.num_prompts": tune.choice([2, 5, 10]),  # 5 gives the printed 0.08 M parameters
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
    },
    "adapter": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
        "method.bottleneck": tune.choice([8, 16, 64]),  # 8 gives the printed 0.26 M parameters
        "method.placement": tune.choice(["after_mlp", "beside_mlp", "after_attention"]),  # not printed; ours first
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
    },
    # The paper does not search settings; the values in comments are those of the released scripts
    "dgl": {
        "method.lr": tune.loguniform(2e-4, 2e-2),  # released: 1e-2, 5e-3; transformer 2e-3
        "method.num_prompts": tune.choice([2, 4, 8]),  # released: 4
        "method.readout": tune.choice(["global", "globals_and_frames"]),  # released: the first global prompt
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # released: 0.2
    },
    "mv_adapter": {
        # The released 5e-6 and 1e-7 are for float16 weights; they move float32 weights far less (docs/protocol.md)
        "method.lr": tune.loguniform(5e-6, 5e-3),
        "method.lr_bias": tune.loguniform(1e-7, 1e-4),
        "method.tied": tune.choice([0, 1, 2, 3]),  # MSRVTT 2, LSMDC 3, ActivityNet 1
        "method.tying": tune.choice(["down_out", "down_in"]),  # MSRVTT and DiDeMo: down_out; the others: down_in
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # released: 0.2
    },
    "plevu": {
        "method.lr": tune.loguniform(1e-5, 1e-2),  # its documented command: 1e-4; the default of its code: 1e-3
        "method.prefix": tune.choice([0, 4, 8, 16]),  # its documented command: 16
        "method.postfix": tune.choice([0, 4, 8, 16]),
        "method.layers": tune.choice([1, 2, 4]),  # its documented command: 1; 2 gives TempMe's parameter count
        "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # released: 0.01
    },
    # Its training recipe is not public; the values in comments are those of its row in TempMe
    "vop": {
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe: 6e-4
        "method.num_prompts": tune.choice([4, 8, 16]),  # released: 8
        "method.prefix": tune.choice([0, 4, 8]),  # released: 4
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # TempMe: 0.2
    },
    "vop_fc": {  # its code is not public, so form and positions of its prompts are our interpretation
        "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe: 6e-4
        "method.num_prompts": tune.choice([2, 4, 8]),  # 4 gives TempMe's token count
        "method.video_blocks": tune.choice([2, 4, 6]),  # 4 gives TempMe's GFLOPs
        "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # TempMe: 0.2
    },
    # A search begins with the authors' recipe for MSR-VTT
    "umt": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # released: 1e-5; 2e-5 and 6e-5 for question answering
        "method.hard_negatives": tune.choice([True, False]),  # released: true
        "optim.weight_decay": tune.choice([0.0, 0.02, 0.2]),  # released: 0.02
    },
    # A search begins with the authors' recipe for MSRVTT-QA
    "umt_qa": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # released: 2e-5 for MSRVTT-QA, 6e-5 for MSVD-QA
        "optim.weight_decay": tune.choice([0.0, 0.02, 0.2]),  # released: 0.02
    },
}
PAPER = {
    "tempme": {"method.reducer.r": 2, "method.reducer.keep_cross": 70, "method.reducer.keep_intra": 90},
    "tome": {"method.reducer.r": 2},
    "sta": {"method.reducer.r": 9},
    "dgl": {"method.lr": 1e-2},
    "plevu": {"optim.weight_decay": 0.01},
    "umt": {"optim.weight_decay": 0.02},
    "umt_qa": {"optim.weight_decay": 0.02},
}
METRIC = {"umt_qa": "stream/qa/accuracy"}
