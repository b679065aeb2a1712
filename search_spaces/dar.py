"""Search space of methods/dar.py."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-5, 1e-3),  # the paper uses 1e-4
    "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
    "method.route": tune.choice(["block", "query"]),  # the paper routes pairs, which a search cannot
    "method.margin": tune.choice([0.0, 0.01, 0.05, 0.1]),  # the paper uses 0.05; these are table 8's
}
