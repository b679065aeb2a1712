"""Search space of methods/images/bmu_moco.py. No values are published for images; these are ours."""

from ray import tune

SPACE = {
    "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),
    "method.m_hat": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),
    "method.tau": tune.choice([0.03, 0.07, 0.2]),
    "method.lr": tune.loguniform(3e-3, 0.3),
}
METRIC, MODE = "stream/knn/accuracy", "max"
