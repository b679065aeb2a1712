"""Search space of methods/lora.py."""

from ray import tune

FIXED = {"method": "lora"}
SPACE = {
    "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
    "method.rank": tune.choice([4, 8, 16, 32]),  # the paper uses 8
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # the paper uses 0.2
}
PAPER = {"method.lr": 6e-4, "method.rank": 8, "optim.weight_decay": 0.2}
UNPUBLISHED = ()
METRIC, MODE = "stream/t2v/r1_gain", "max"
