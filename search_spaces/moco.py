"""Search spaces of BMU-MoCo, its controls and its competitors (Gao et al., NeurIPS 2022, section 4.1)."""

from ray import tune

MOCO = {  # fixed settings of BMU-MoCo's retrievers and its competitors
    "optim.schedule": "first_epoch",  # a tenth of the rate after the first epoch of each task
    "optim.warmup": 0.0,
    "optim.weight_decay": 0.01,
}
WRAPPED_MOCO = {  # the space of `base_moco` in a strategy
    "base.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; BMU-MoCo's paper uses 5e-5
    "base.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999]),  # BMU-MoCo's paper uses 0.99
    "base.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # BMU-MoCo's paper uses 0.07
}
SPACE = {
    "base_moco": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
        "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),  # eq. 8; the paper uses 0.99
        "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
        "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
    },
    "bmu_moco": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
        "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),  # eq. 8; the paper uses 0.99
        # eq. 12, fig. 4; the paper uses 0.99, and 1 reviews nothing
        "method.m_hat": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),
        "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
        "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
        "method.method_start_task": tune.choice([1, 2]),  # the paper's tables imply 2, its text says 1
        # The paper says simultaneous; its equations list the encoders first
        "method.order": tune.choice(["enc_first", "mom_first", "simultaneous"]),
    },
    "bmu_fixed": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
        # eq. 12, fig. 4; the paper uses 0.99, and 1 reviews nothing
        "method.m_hat": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),
        "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
        "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
    },
    "bmu_ensemble": {
        "method.lr": tune.loguniform(1e-6, 1e-4),  # first epoch; the paper uses 5e-5, CLIP may need less
        "method.m": tune.choice([0.9, 0.95, 0.99, 0.995, 0.999, 1.0]),  # eq. 8; the paper uses 0.99
        "method.tau": tune.choice([0.01, 0.03, 0.05, 0.07]),  # the paper uses 0.07, CLIP was trained at 0.01
        "method.queue_size": tune.choice([32, 480, 1440, 4320]),  # the paper uses 1440
        # Weights of theta, theta_m, theta~_m; not published, so a search begins with equal weights
        "method.ensemble_weights": tune.choice(
            ["0.3333333,0.3333333,0.3333334", "0.5,0.25,0.25", "0.5,0,0.5", "1,0,0"]
        ),
    },
    # BMU-MoCo does not publish values for it
    "lwf_moco": {
        "method.alpha": tune.choice([0.1, 0.5, 1.0, 2.0, 5.0]),  # our default is 1, which weights both losses equally
        "method.tau": tune.choice([0.07, 0.14]),  # the retriever's temperature, and twice this value, as with T = 2
        "method.distill": tune.choice(["inbatch_kl", "queue_kl", "feature_l2"]),  # our default is inbatch_kl
        **WRAPPED_MOCO,
    },
    # Values of the strategy are those of Co2L's code; the others are BMU-MoCo's
    "co2l_moco": {
        "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
        # Co2L's code uses 1 with a loss times T / 0.07, which is 0.28 with base_moco's sum of two directions
        "method.weight": tune.choice([0.1, 0.28, 0.5, 1.0, 2.0]),
        "method.kappa": tune.choice([0.1, 0.2]),  # Co2L's code uses 0.2
        "method.kappa_teacher": tune.choice([0.01, 0.05, 0.1]),  # Co2L's code uses 0.01
        **WRAPPED_MOCO,
    },
    # Values of the strategy are those of LUMP's code; the others are BMU-MoCo's
    "lump_moco": {
        "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
        "method.alpha": tune.choice([0.1, 0.2, 0.4, 1.0]),  # LUMP's code uses 0.4
        "method.mix_level": tune.choice(["input", "feature"]),  # LUMP mixes inputs
        **WRAPPED_MOCO,
    },
}
SPACE["bmu_moco_local"] = {name: domain for name, domain in SPACE["bmu_moco"].items() if name != "method.order"}
FIXED = {
    **dict.fromkeys(("base_moco", "bmu_moco", "bmu_fixed", "bmu_ensemble"), MOCO),
    **{name: {"method.base": "base_moco", **MOCO} for name in ("lwf_moco", "co2l_moco", "lump_moco")},
}
PAPER = {
    "bmu_ensemble": {"method.ensemble_weights": "0.3333333,0.3333333,0.3333334"},
    "co2l_moco": {"method.buffer_size": 10_000},
    "lump_moco": {"method.buffer_size": 10_000},
}
