"""Search space of methods/bmu_ensemble.py. Gao et al., NeurIPS 2022, section 4.1."""

from ray import tune

from ctvr.search_spaces import MOCO

FIXED = MOCO
SPACE = {
    "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
    "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),  # eq. 8; the paper uses 0.99
    "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
    "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
    "method.ensemble_weights": tune.choice(  # of theta, theta_m, theta~_m; not published, the plain mean comes first
        ["0.3333333,0.3333333,0.3333334", "0.5,0.25,0.25", "0.5,0,0.5", "1,0,0"]
    ),
}
PAPER = {"method.ensemble_weights": "0.3333333,0.3333333,0.3333334"}
