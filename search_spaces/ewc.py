"""Search space of methods/ewc.py. No values are published for retrieval; these are ours."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.weight": tune.loguniform(1.0, 1e5),  # lambda of eq. 3; the paper uses 400 for Atari games
    "method.decay": tune.choice([0.5, 0.9, 1.0]),  # eq. 3 of the paper has none: 1
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
