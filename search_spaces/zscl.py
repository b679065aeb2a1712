"""Search space of methods/zscl.py. CTVR publishes only T = 2; the other values are ZSCL's own."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.weight": tune.loguniform(0.03, 10.0),  # ZSCL uses 1
    "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T; both papers use 2
    "method.average_every": tune.choice([0, 10, 25, 50, 100]),  # ZSCL uses 100 of 1000 steps; unpublished for CTVR
    "method.l2": tune.choice([0.0, 0.01, 0.1, 1.0]),  # ZSCL's text uses 0, its command 1 with the average
    "base.lr": tune.loguniform(1e-7, 1e-5),  # ZSCL uses 1e-5; unpublished for CTVR, whose released default is 1e-6
}
PAPER = {"method.average_every": 100, "base.lr": 1e-5}
