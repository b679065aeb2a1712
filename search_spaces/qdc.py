"""Search space of methods/qdc.py. Weights are those of the released code, whose loss is scaled differently."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.query_weight": tune.choice([0.0, 0.1, 1.0, 10.0]),  # the code uses 1; 0 is the paper's FT + QDC
    "method.video_weight": tune.choice([0.0, 0.1, 1.0, 10.0]),  # the code uses 1
    "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default; the code uses 2e-5 for its text model
}
