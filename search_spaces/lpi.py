"""Search space of methods/lpi.py. Values are those of the released code, which trains with SGD."""

from ray import tune

FIXED = {
    "optim.name": "sgd",
    "optim.momentum": 0.9,
    "optim.weight_decay": 2e-4,
    "optim.decay_parameters": "all",
    "optim.schedule": "cosine_epochs",
    "optim.warmup": 0.0,
    "optim.grad_clip": None,
}
SPACE = {
    "method.lr": tune.loguniform(5e-3, 5e-1),  # 0.05
    "method.num_prompts": tune.choice([4, 8, 16]),  # 16
    "method.rank": tune.choice([2, 4, 8]),  # 4
    "method.depth": tune.choice([1, 3, 9]),  # 9 as the paper describes, 1 as the release computes
    "method.align_weight": tune.choice([0.0, 0.01, 0.1, 1.0]),  # 0.1
}
