"""Search space of methods/umt_qa.py. Its recipe is that of its authors for MSRVTT-QA."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-6, 1e-4),  # released: 2e-5 for MSRVTT-QA, 6e-5 for MSVD-QA
    "optim.weight_decay": tune.choice([0.0, 0.02, 0.2]),  # released: 0.02
}
PAPER = {"optim.weight_decay": 0.02}
METRIC, MODE = "stream/qa/accuracy", "max"
