"""Search space of methods/lwf.py. CTVR publishes T = 2, but neither weight nor rate (LwF itself uses a weight of 1)."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.weight": tune.loguniform(0.01, 10.0),  # lambda_o; unpublished for CTVR, LwF and ZSCL use 1
    "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T of eq. 3; the papers use 2
    "method.student": tune.choice(["video", "each", "pair"]),  # CTVR's released loss is video; the others are ours
    "base.lr": tune.loguniform(1e-7, 1e-5),  # unpublished; 1e-6 is the released default, 1e-5 ZSCL's
}
