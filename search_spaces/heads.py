"""Search spaces of the heads on frozen towers or imported vectors. No paper publishes values; we chose all ranges."""

from ray import tune

SPACE = {
    "head_linear": {
        "method.lr": tune.loguniform(1e-4, 1e-2),
        "method.side": tune.choice(["queries", "videos", "both"]),
        "method.frame_norm": tune.choice(["none", "l2"]),
        "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),
    },
    "head_low_rank": {
        "method.lr": tune.loguniform(1e-4, 1e-2),
        "method.side": tune.choice(["queries", "videos", "both"]),
        "method.frame_norm": tune.choice(["none", "l2"]),
        "method.rank": tune.choice([8, 32, 64, 128]),
        "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),
    },
    "head_mlp": {
        "method.lr": tune.loguniform(1e-4, 1e-2),
        "method.side": tune.choice(["queries", "videos", "both"]),
        "method.frame_norm": tune.choice(["none", "l2"]),
        "method.hidden": tune.choice([128, 512, 2048]),
        "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),
    },
    "head_ridge": {
        "method.ridge": tune.loguniform(1e-1, 1e3),
        "method.features": tune.choice([0, 1000, 2000, 4000]),
        "method.frame_norm": tune.choice(["none", "l2"]),
    },
    "dns": {
        "method.lr": tune.loguniform(1e-5, 1e-2),  # the released code uses 1e-4
        "method.threshold": tune.loguniform(1e-4, 1e-1),  # the released code uses 0.1
        "method.temperature": tune.loguniform(1e-2, 1.0),  # the released code uses 1
        "method.similarity": tune.choice(["cosine", "dot"]),
    },
}
