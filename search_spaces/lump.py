"""Search space of methods/lump.py. No values are published for retrieval; those of alpha are from LUMP's code."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256, which LUMP uses for images
    "method.buffer_policy": tune.choice(["reservoir", "ring"]),  # LUMP's code uses reservoir
    "method.alpha": tune.choice([0.1, 0.2, 0.4, 1.0]),  # LUMP's code uses 0.4
    "method.mix_level": tune.choice(["input", "feature"]),  # LUMP mixes inputs
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
