"""Search space of methods/umt.py. Its recipe is that of its authors for MSR-VTT."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-6, 1e-4),  # released: 1e-5; 2e-5 and 6e-5 for questions
    "method.hard_negatives": tune.choice([True, False]),  # released: true
    "optim.weight_decay": tune.choice([0.0, 0.02, 0.2]),  # released: 0.02
}
PAPER = {"optim.weight_decay": 0.02}
