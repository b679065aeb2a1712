"""Search space of methods/der.py. No values are published for retrieval; these are ours."""

from ray import tune

from ctvr.search_spaces import MOCO, WRAPPED_MOCO

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
    "method.alpha": tune.loguniform(0.05, 10.0),  # our default is 0.5; DER's own weigh class scores
    "method.target": tune.choice(["features", "similarities"]),  # features, as DER keeps its network's response
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
CONFIGURATIONS = {
    "der_moco": {  # as a competitor of BMU-MoCo, whose paper keeps 10,000 pairs
        "FIXED": {"method.base": "base_moco", **MOCO},
        "SPACE": {
            "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
            "method.alpha": tune.choice([0.1, 0.5, 1.0, 5.0]),  # not published; our default is 0.5
            **WRAPPED_MOCO,
        },
        "PAPER": {"method.buffer_size": 10_000},
    },
}
