"""Search space of methods/plevu.py."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-5, 1e-2),  # its documented command: 1e-4; the default of its code: 1e-3
    "method.prefix": tune.choice([0, 4, 8, 16]),  # its documented command: 16
    "method.postfix": tune.choice([0, 4, 8, 16]),
    "method.layers": tune.choice([1, 2, 4]),  # its documented command: 1; two have the weights that TempMe prints
    "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # released: 0.01
}
PAPER = {"optim.weight_decay": 0.01}
