"""Search space of methods/images/progressive.py. Initial values are those of the release; ranges are ours."""

from ray import tune

FIXED = {"method.base": "image_finetune"}
SPACE = {"base.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
