"""Search space of methods/co2l.py. No values are published for retrieval; these are those of Co2L's code."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.buffer_size": tune.choice([64, 256, 1024]),  # pairs; our default is 256
    "method.buffer_policy": tune.choice(
        ["ring", "reservoir"]
    ),  # ring: Co2L's code deals its memory to the classes so far
    # Co2L's code uses 1 with a loss times T / 0.07: 0.14 here, 0.28 with a sum of two directions
    "method.weight": tune.loguniform(0.03, 3.0),
    "method.kappa": tune.choice([0.01, 0.1, 0.2]),  # Co2L's code uses 0.2; 0.01 is CLIP's own temperature
    "method.kappa_teacher": tune.choice([0.01, 0.05, 0.1]),  # Co2L's code uses 0.01
    "method.ird": tune.choice(["cross", "intra"]),  # Co2L has one modality; cross is ours
    "base.lr": tune.loguniform(1e-7, 1e-5),  # CTVR's released default for fine-tuning is 1e-6
}
