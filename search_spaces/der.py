"""Search space of methods/der.py. Nothing of it is published for retrieval; the values are ours."""

from ray import tune

FIXED = {"method": "der", "method.base": "clip4clip"}
SPACE = {
    "method.memory": tune.choice([64, 256, 1024]),  # pairs; our default is 256
    "method.alpha": tune.loguniform(0.05, 10.0),  # our default is 0.5; DER's own weigh class scores
    "method.target": tune.choice(["features", "similarities"]),  # features, as DER keeps its network's response
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
PAPER = {"method.memory": 256, "method.alpha": 0.5, "method.target": "features", "base.lr": 1e-6}
UNPUBLISHED = ("method.memory", "method.alpha", "method.target", "base.lr")
METRIC, MODE = "stream/t2v/r1_gain", "max"
