"""Search space of methods/bmu_fixed.py. Gao et al., NeurIPS 2022, section 4.1."""

from ray import tune

from ctvr.search_spaces import MOCO

FIXED = MOCO
SPACE = {
    "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
    "method.m_hat": tune.choice(
        [0.9, 0.95, 0.99, 0.995, 0.999, 1.0]
    ),  # eq. 12, fig. 4; the paper uses 0.99, and 1 reviews nothing
    "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
    "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
}
