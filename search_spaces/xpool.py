"""Search space of methods/xpool.py. CTVR publishes no rates for it; the initial values are X-Pool's own."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-7, 1e-5),  # the paper uses 1e-6
    "method.lr_head": tune.loguniform(1e-6, 1e-4),  # the paper uses 1e-5, on MSR-VTT-9k 3e-5
    "method.dropout": tune.choice([0.0, 0.1, 0.3, 0.4]),  # the paper uses 0.3, on MSR-VTT-7k and MSVD 0.4
    "method.train_scale": tune.choice([True, False]),  # the paper trains it
    "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # the paper uses 0.2
}
