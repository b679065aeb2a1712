"""Search space of methods/structalign.py. Where the paper prints no value, PAPER has the method's default.

PAPER is the point for MSRVTT; preset `paper-actnet`, which imported ACTNET streams choose, goes before it. Where pseudo
features are drawn is searched by `--space method.pseudo=inputs,shared,clip`: preset `released` needs `clip`.
"""

from ray import tune

FIXED = {"method": "structalign"}
SPACE = {
    "method.lambda1": tune.loguniform(0.01, 1.0),  # eq. 18; paper 0.1, studied in fig. 6
    "method.lambda2": tune.loguniform(1.0, 100.0),  # eq. 18; paper 10
    "method.tau2": tune.loguniform(0.01, 1.0),  # eq. 17; unpublished, 2 sqrt(32) / 99.5 = 0.11 in the released code
    "method.text_rank": tune.choice([16, 32, 64]),  # 64: with vision_rank 32 the printed 33.9 M parameters
    "method.vision_rank": tune.choice([8, 16, 32]),
    "method.num_experts": tune.choice([5, 10]),  # released: 10 on MSRVTT, 5 on ACTNET
    "method.lr_first": tune.loguniform(2e-6, 2e-4),  # paper 2e-5
    "method.lr": tune.loguniform(3e-7, 3e-5),  # paper 3e-6 (MSRVTT), 6e-6 (ACTNET)
}
PAPER = {
    "method.lambda1": 0.1,
    "method.lambda2": 10.0,
    "method.tau2": 0.1,
    "method.text_rank": 64,
    "method.vision_rank": 32,
    "method.num_experts": 10,
    "method.lr_first": 2e-5,
    "method.lr": 3e-6,
}
UPPER_BOUNDS = {"method.top_k": "method.num_experts"}
LATER_TASKS = ("method.lambda2", "method.tau2", "method.lr")
UNPUBLISHED = (
    "method.tau2",
    "method.text_rank",
    "method.vision_rank",
    "method.num_experts",
    "method.tau",
    "method.top_k",
    "method.text_alpha",
    "method.text_dropout",
    "method.sigma",
    "method.pseudo_per_pair",
    "optim.weight_decay",
    "data.num_frames",
)
DEVIATIONS = {"method.pseudo": "shared"}
METRIC, MODE = "stream/t2v/r1_gain", "max"
