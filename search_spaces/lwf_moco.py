"""Search space of methods/lwf_moco.py. BMU-MoCo publishes nothing of the strategy; 1 weighs both losses alike."""

from ray import tune

FIXED = {
    "method": "lwf_moco",
    "method.base": "base_moco",
    "optim.schedule": "first_epoch",  # a tenth of the rate after the first epoch of each task
    "optim.warmup": 0.0,
    "optim.weight_decay": 0.01,
}
SPACE = {
    "method.alpha": tune.choice([0.1, 0.5, 1.0, 2.0, 5.0]),  # our default is 1
    "method.tau": tune.choice([0.07, 0.14]),  # the retriever's, and twice as much as T = 2 would
    "method.distill": tune.choice(["inbatch_kl", "queue_kl", "feature_l2"]),  # our default is inbatch_kl
    "base.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; BMU-MoCo's paper uses 5e-5
    "base.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),  # BMU-MoCo's paper uses 0.99
    "base.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # BMU-MoCo's paper uses 0.07
}
METRIC, MODE = "stream/t2v/r1_gain", "max"
