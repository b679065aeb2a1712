"""Search spaces of strategies for any retriever, among them those that keep a stored index compatible."""

from ray import tune

from ctvr.search_spaces.moco import MOCO, WRAPPED_MOCO

SPACE = {
    # CTVR publishes T = 2, but neither weight nor rate (LwF itself uses a weight of 1)
    "lwf": {
        "method.weight": tune.loguniform(0.01, 10.0),  # lambda_o; unpublished for CTVR, LwF and ZSCL use 1
        "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T of eq. 3; the papers use 2
        "method.student": tune.choice(["video", "each", "pair"]),  # CTVR's released loss is video; the others are ours
        "base.lr": tune.loguniform(1e-7, 1e-5),  # unpublished; 1e-6 is the released default, 1e-5 ZSCL's
    },
    # CTVR publishes only T = 2, and the paper's values were not available. Sentences, length and weight are those of
    # LwF-VR in ZSCL's repository
    "vr_lwf": {
        "method.weight": tune.loguniform(0.03, 10.0),  # unpublished; the repository uses 1
        "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T; CTVR uses 2
        "method.sentences": tune.choice([100, 500, 1000, 2000]),  # R; unpublished, the repository uses 1000
        "method.length": tune.choice([1, 5, 10]),  # words; unpublished, the repository uses 10
        "method.student": tune.choice(["video", "each"]),  # the repository uses video; each is ours
        "base.lr": tune.loguniform(1e-7, 1e-5),  # unpublished; 1e-6 is CTVR's released default
    },
    # CTVR publishes only T = 2; the other values are ZSCL's own
    "zscl": {
        "method.weight": tune.loguniform(0.03, 10.0),  # ZSCL uses 1
        "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T; both papers use 2
        "method.average_every": tune.choice([0, 10, 25, 50, 100]),  # ZSCL uses 100 of 1000 steps; unpublished for CTVR
        "method.l2": tune.choice([0.0, 0.01, 0.1, 1.0]),  # ZSCL's text uses 0, its command 1 with the average
        "base.lr": tune.loguniform(1e-7, 1e-5),  # ZSCL uses 1e-5; unpublished for CTVR, whose released default is 1e-6
    },
    # No values are published for retrieval; these are ours
    "er_ring": {
        "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
        "method.ratio": tune.choice([0.5, 1.0, 2.0]),  # our default is 1, as in the original
        "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
    },
    "er_ring_moco": {  # as a competitor of BMU-MoCo, whose paper keeps 10,000 pairs
        "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000, fig. 5 studies fewer
        "method.ratio": tune.choice([0.5, 1.0]),  # our default is 1
        **WRAPPED_MOCO,
    },
    # No values are published for retrieval; these are ours
    "der": {
        "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
        "method.alpha": tune.loguniform(0.05, 10.0),  # our default is 0.5; DER's own values are for class scores
        "method.target": tune.choice(["features", "similarities"]),  # DER keeps the network's outputs: features
        "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
    },
    "der_moco": {  # as a competitor of BMU-MoCo, whose paper keeps 10,000 pairs
        "method.buffer_size": tune.choice([64, 256, 1024, 10_000]),  # the paper uses 10,000
        "method.alpha": tune.choice([0.1, 0.5, 1.0, 5.0]),  # not published; our default is 0.5
        **WRAPPED_MOCO,
    },
    # No values are published for retrieval; these are those of Co2L's code
    "co2l": {
        "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
        # ring: Co2L's code deals its memory to the classes so far
        "method.buffer_policy": tune.choice(["ring", "reservoir"]),
        # Co2L's code uses 1 with a loss times T / 0.07: 0.14 here, 0.28 with a sum of two directions
        "method.weight": tune.loguniform(0.03, 3.0),
        "method.kappa": tune.choice([0.01, 0.1, 0.2]),  # Co2L's code uses 0.2; 0.01 is CLIP's own temperature
        "method.kappa_teacher": tune.choice([0.01, 0.05, 0.1]),  # Co2L's code uses 0.01
        "method.ird": tune.choice(["cross", "intra"]),  # Co2L has one modality; cross is ours
        "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
    },
    # No values are published for retrieval; those of alpha are from LUMP's code
    "lump": {
        "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256, which LUMP uses for images
        "method.buffer_policy": tune.choice(["reservoir", "ring"]),  # LUMP's code uses reservoir
        "method.alpha": tune.choice([0.1, 0.2, 0.4, 1.0]),  # LUMP's code uses 0.4
        "method.mix_level": tune.choice(["input", "feature"]),  # LUMP mixes inputs
        "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
    },
    # No values are published for retrieval; these are ours
    "ewc": {
        "method.weight": tune.loguniform(1.0, 1e5),  # lambda of eq. 3; the paper uses 400 for Atari games
        "method.decay": tune.choice([0.5, 0.9, 1.0]),  # eq. 3 of the paper lacks a decay, which is 1
        "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
    },
    # Values in comments are those of the released code, which pre-trains on products
    "ctp": {
        "method.momentum_weight": tune.choice([0.0, 0.1, 1.0]),  # 1
        "method.cross_weight": tune.loguniform(0.1, 10.0),  # 1
        "method.same_weight": tune.loguniform(0.1, 10.0),  # 1
        "method.m": tune.choice([0.9, 0.99, 0.995]),  # 0.9
        "method.queue_size": tune.choice([32, 256, 1024]),  # 1024
        "base.lr": tune.loguniform(1e-7, 1e-4),  # 1e-4 for weights of DeiT and BERT; CLIP may need less
    },
    # Weights are those of the released code, whose loss is scaled differently
    "qdc": {
        "method.query_weight": tune.choice([0.0, 0.1, 1.0, 10.0]),  # the code uses 1; 0 is the paper's FT + QDC
        "method.video_weight": tune.choice([0.0, 0.1, 1.0, 10.0]),  # the code uses 1
        # 1e-6 is CTVR's released default; the code uses 2e-5 for its text model
        "base.lr": tune.loguniform(1e-7, 1e-5),
    },
    # The paper defines three kinds of maps; the other values are ours
    "drift_adapter": {
        "method.map.name": tune.choice(["procrustes", "low_rank", "mlp"]),  # the paper has all three
        "method.center": tune.choice([False, True]),  # the paper does not center
        "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
    },
    # All values are ours, since only the paper's abstract was available
    "xbt": {
        "method.projection": tune.choice(["linear", "mlp"]),  # unpublished
        "method.noise": tune.choice([0.0, 0.01, 0.02, 0.05, 0.1]),  # unpublished; 0 is a plain regression
        "method.sentences": tune.choice([0, 2000]),  # unpublished
        "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
    },
    # The paper searched lambda; sharpness and weights are unknown
    "lambda_orthogonality": {
        # lambda / sqrt(width). The paper has 0.53 for two models trained separately; smaller values suit a task's drift
        "method.map.relative_threshold": tune.choice([0.0, 0.02, 0.05, 0.53]),
        "method.map.sharpness": tune.choice([1.0, 10.0]),  # alpha; unpublished
        "method.map.contrastive_weight": tune.choice([0.0, 0.01, 0.1, 1.0]),  # unpublished
        "base.lr": tune.loguniform(1e-7, 1e-5),  # 1e-6 is CTVR's released default for fine-tuning
    },
}
FIXED = {
    **{name: {"method.base": "clip4clip"} for name in SPACE},
    **{name: {"method.base": "base_moco", **MOCO} for name in ("er_ring_moco", "der_moco")},
}
PAPER = {
    "zscl": {"method.average_every": 100, "base.lr": 1e-5},
    "er_ring_moco": {"method.buffer_size": 10_000},
    "der_moco": {"method.buffer_size": 10_000},
    "ctp": {"base.lr": 1e-5},
}
