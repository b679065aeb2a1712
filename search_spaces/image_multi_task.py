"""Search space of methods/images/multi_task.py. Values to begin with are the release's; ranges are ours."""

from ray import tune

FIXED = {"method.base": "image_finetune"}
SPACE = {"base.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
