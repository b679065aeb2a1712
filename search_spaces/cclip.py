"""Search space of methods/cclip.py. Values are those of re-implementations of the paper, whose code is not public."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(3e-6, 3e-4),  # six of the paper's eight data sets: 3e-5
    "method.lr_text": tune.loguniform(3e-5, 3e-3),  # ten times the image tower's: 3e-4
    "method.rank": tune.choice([8, 16, 32]),  # 16; table 6 compares ranks
    "method.merge": tune.choice([0.25, 0.5, 0.75, 1.0]),  # eq. 2: 0.5
    "method.weight": tune.choice([0.0, 0.3, 1.0, 3.0]),  # 1
    "method.temperature": tune.choice([0.03, 0.07, 0.2]),  # 0.07, not seen in the paper
    "method.projector": tune.choice(["mlp", "linear"]),  # the paper does not specify it
}
