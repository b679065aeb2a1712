"""Search space of methods/lump_moco.py. The strategy's values are those of LUMP's code, the others BMU-MoCo's."""

from ray import tune

from ctvr.search_spaces import MOCO, WRAPPED_MOCO

FIXED = {"method.base": "base_moco", **MOCO}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
    "method.alpha": tune.choice([0.1, 0.2, 0.4, 1.0]),  # LUMP's code uses 0.4
    "method.mix_level": tune.choice(["input", "feature"]),  # LUMP mixes inputs
    **WRAPPED_MOCO,
}
PAPER = {"method.buffer_size": 10000}
