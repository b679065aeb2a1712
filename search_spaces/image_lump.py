"""Search space of methods/images/replay.py, LUMP. Values to begin with are the release's; ranges are ours."""

from ray import tune

FIXED = {"method.base": "image_finetune"}
SPACE = {"method.alpha": tune.loguniform(0.04, 4.0), "base.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
