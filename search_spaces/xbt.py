"""Search space of methods/xbt.py. All values are ours, since only the paper's abstract was available."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.projection": tune.choice(["linear", "mlp"]),  # unpublished
    "method.noise": tune.choice([0.0, 0.01, 0.02, 0.05, 0.1]),  # unpublished; 0 is a plain regression
    "method.sentences": tune.choice([0, 2000]),  # unpublished
    "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
}
