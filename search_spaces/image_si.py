"""Search space of methods/images/si.py. Initial values are those of the release; ranges are ours."""

from ray import tune

FIXED = {"method.base": "image_finetune"}
SPACE = {"method.strength": tune.loguniform(0.04, 40.0), "base.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
