"""Search spaces of methods over images. Initial values are those of the released code; we chose the ranges."""

from ray import tune

SPACE = {
    "image_finetune": {"method.lr": tune.loguniform(3e-3, 0.3)},
    "image_si": {"method.strength": tune.loguniform(0.04, 40.0), "base.lr": tune.loguniform(3e-3, 0.3)},
    "image_der": {"method.alpha": tune.loguniform(0.04, 4.0), "base.lr": tune.loguniform(3e-3, 0.3)},
    "image_lump": {"method.alpha": tune.loguniform(0.04, 4.0), "base.lr": tune.loguniform(3e-3, 0.3)},
    "image_bmu_moco": {
        "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),
        "method.m_hat": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),
        "method.tau": tune.choice([0.03, 0.07, 0.2]),
        "method.lr": tune.loguniform(3e-3, 0.3),
    },
    "image_multi_task": {"base.lr": tune.loguniform(3e-3, 0.3)},
    "image_progressive": {"base.lr": tune.loguniform(3e-3, 0.3)},
}
FIXED = {name: {"method.base": "image_finetune"} for name, space in SPACE.items() if "base.lr" in space}
METRIC = dict.fromkeys(SPACE, "stream/knn/accuracy")
