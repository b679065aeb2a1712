"""Search space of methods/framefusion_moe.py. Frames per video stay with the stream: another number is other data.

PAPER is the paper's point for MSRVTT. For ACTNET it has another, the preset `paper-actnet`, which imported
ACTNET streams choose; the values of a sweep's presets go before PAPER's.
"""

from ray import tune

FIXED = {"method": "framefusion_moe"}
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
PAPER = {
    "method.lr_text": 4e-6,
    "method.lr_vision": 4e-6,
    "method.lr_other": 4e-6,
    "method.lr_text_first": 2e-5,
    "method.beta": 0.6,
    "method.num_experts": 10,
    "method.ffa_layers": 10,
    "method.rank": 64,
    "method.top_k": 2,
    "method.dropout": 0.1,
}
DEPTHS = ("method.ffa_layers",)
UPPER_BOUNDS = {"method.top_k": "method.num_experts"}
LATER_TASKS = (
    "method.lr_text",
    "method.lr_vision",
    "method.lr_other",
    "method.beta",
    "method.num_experts",
    "method.top_k",
)
UNPUBLISHED = (
    "method.lr_text_first",
    "method.rank",
    "method.dropout",
    "method.lr_vision_first",
    "method.lr_other_first",
    "method.top_k",
    "method.lora_alpha",
    "method.ffa_init",
    "method.alpha_init",
    "optim.weight_decay",
)
METRIC, MODE = "stream/t2v/r1_gain", "max"
