"""Search space of methods/lump_moco.py. LUMP's code for the strategy, BMU-MoCo's paper for the rest."""

from ray import tune

FIXED = {
    "method": "lump_moco",
    "method.base": "base_moco",
    "optim.schedule": "first_epoch",  # a tenth of the rate after the first epoch of each task
    "optim.warmup": 0.0,
    "optim.weight_decay": 0.01,
}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
    "method.alpha": tune.choice([0.1, 0.2, 0.4, 1.0]),  # LUMP's code uses 0.4
    "method.mix_level": tune.choice(["input", "feature"]),  # LUMP mixes inputs
    "base.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; BMU-MoCo's paper uses 5e-5
    "base.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),  # BMU-MoCo's paper uses 0.99
    "base.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # BMU-MoCo's paper uses 0.07
}
PAPER = {"method.buffer_size": 10000}
METRIC, MODE = "stream/t2v/r1_gain", "max"
