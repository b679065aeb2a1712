"""Search space of methods/er_ring.py. No values are published for retrieval; these are ours."""

from ray import tune

from ctvr.search_spaces import MOCO, WRAPPED_MOCO

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
    "method.ratio": tune.choice([0.5, 1.0, 2.0]),  # our default is 1, as in the original
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
CONFIGURATIONS = {
    "er_ring_moco": {  # as a competitor of BMU-MoCo, whose paper keeps 10,000 pairs
        "FIXED": {"method.base": "base_moco", **MOCO},
        "SPACE": {
            "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000, fig. 5 studies fewer
            "method.ratio": tune.choice([0.5, 1.0]),  # our default is 1
            **WRAPPED_MOCO,
        },
        "PAPER": {"method.buffer_size": 10_000},
    },
}
