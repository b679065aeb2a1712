"""Search space of methods/upper_bound.py: that of the retriever that it trains jointly."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "base.lr": tune.loguniform(1e-7, 1e-5),  # as clip4clip: CTVR's released default is 1e-6
    "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # CTVR's released code uses 0.2
}
