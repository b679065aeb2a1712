"""Search space of methods/drift_adapter.py. The paper defines three kinds of maps; the other values are ours."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.map.name": tune.choice(["procrustes", "low_rank", "mlp"]),  # the paper has all three
    "method.center": tune.choice([False, True]),  # the paper does not centre
    "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
}
