"""Search space of methods/framefusion_moe.py.

The number of frames per video is the stream's and is not searched, since it changes the data. A search begins with the
defaults, which are the paper's for MSRVTT. Imported ACTNET streams choose the preset `paper-actnet`, whose values are
tried before them.
"""

from ray import tune

SPACE = {
    "method.lr_text": tune.loguniform(1e-6, 2e-5),  # the paper uses 4e-6 (MSRVTT), 6e-6 (ACTNET)
    "method.lr_vision": tune.loguniform(1e-6, 2e-5),  # the same
    "method.lr_other": tune.loguniform(1e-6, 2e-5),  # the same; the released code uses 1e-5
    "method.lr_text_first": tune.loguniform(5e-6, 1e-4),  # task 1; the released code uses 2e-5 (MSRVTT)
    "method.beta": tune.uniform(0.0, 0.9),  # eq. 9; the paper uses 0.6
    "method.num_experts": tune.choice([1, 5, 10, 15, 20]),  # fig. 8 studies 1 to 20; the paper uses 10 and 5
    "method.ffa_layers": tune.choice([4, 6, 8, 10, 12]),  # fig. 8 studies 4 to 12; the paper uses 10 and 12
    "method.rank": tune.choice([8, 16, 32, 64]),  # the released code uses 64
    "method.top_k": tune.choice([1, 2, 4]),  # TopK of section 3.4 has no number; the released code uses 2
    "method.dropout": tune.choice([0.0, 0.1, 0.2]),  # the released code uses 0.1
}
