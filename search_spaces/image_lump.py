"""Search space of methods/images/replay.py, LUMP. Initial values are those of the release; ranges are ours."""

from ray import tune

FIXED = {"method.base": "image_finetune"}
SPACE = {"method.alpha": tune.loguniform(0.04, 4.0), "base.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
