"""Search space of methods/er_ring.py. Nothing of it is published for retrieval; the values are ours."""

from ray import tune

FIXED = {"method": "er_ring", "method.base": "clip4clip"}
SPACE = {
    "method.memory": tune.choice([64, 256, 1024]),  # pairs; our default is 256
    "method.ratio": tune.choice([0.5, 1.0, 2.0]),  # our default is 1, as in the original
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
PAPER = {"method.memory": 256, "method.ratio": 1.0, "base.lr": 1e-6}
UNPUBLISHED = ("method.memory", "method.ratio", "base.lr")
METRIC, MODE = "stream/t2v/r1_gain", "max"
