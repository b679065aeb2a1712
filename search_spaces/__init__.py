"""Search spaces of the methods, one file per method.

FIXED: settings of every trial, if any. SPACE: setting -> Ray Tune domain. PAPER: values of SPACE's settings with which
a search begins, where they differ from the defaults. CONFIGURATIONS: replacements of the above for rows of tables that
are the method with a preset (methods.CONFIGURATIONS). METRIC, MODE: objective of a search without `search.metric`
(default: the gain over zero-shot in the union of all galleries, in the CVLM protocol the mean R@1).

Facts about a setting (not published, read by later tasks only, bounded by another setting, number of blocks) are in
the method's Config: methods/settings.py.
"""

from ray import tune

MOCO = {  # of BMU-MoCo's retrievers and its competitors
    "optim.schedule": "first_epoch",  # a tenth of the rate after the first epoch of each task
    "optim.warmup": 0.0,
    "optim.weight_decay": 0.01,
}
WRAPPED_MOCO = {  # the space of `base_moco` in a strategy
    "base.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; BMU-MoCo's paper uses 5e-5
    "base.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),  # BMU-MoCo's paper uses 0.99
    "base.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # BMU-MoCo's paper uses 0.07
}
