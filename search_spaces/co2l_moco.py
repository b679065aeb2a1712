"""Search space of methods/co2l_moco.py. The strategy's values are those of Co2L's code, the others BMU-MoCo's."""

from ray import tune

from ctvr.search_spaces import MOCO, WRAPPED_MOCO

FIXED = {"method.base": "base_moco", **MOCO}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
    # Co2L's code uses 1 with a loss times T / 0.07, which is 0.28 with base_moco's sum of two directions
    "method.weight": tune.choice([0.1, 0.28, 0.5, 1.0, 2.0]),
    "method.kappa": tune.choice([0.1, 0.2]),  # Co2L's code uses 0.2
    "method.kappa_teacher": tune.choice([0.01, 0.05, 0.1]),  # Co2L's code uses 0.01
    **WRAPPED_MOCO,
}
PAPER = {"method.buffer_size": 10000}
