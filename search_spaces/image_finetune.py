"""Search space of methods/images/siamese.py. Values to begin with are the release's; ranges are ours."""

from ray import tune

SPACE = {"method.lr": tune.loguniform(3e-3, 0.3)}
METRIC, MODE = "stream/knn/accuracy", "max"
