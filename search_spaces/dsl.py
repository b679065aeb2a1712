"""Search space of methods/dsl.py: settings of the loss only, because rows with a revised search are not comparable."""

from ray import tune

FIXED = {"method.base": "clip4clip", "method.search": False}
SPACE = {
    "method.temperature": tune.loguniform(10.0, 3000.0),  # unpublished; the authors' code uses 1000
    "method.gain": tune.choice(["batch", "one"]),  # batch in the code, one in the paper's equations
    # CLIP4Clip uses 1e-7 with float16 weights (docs/protocol.md), CTVR's released default is 1e-6
    "base.lr": tune.loguniform(1e-7, 1e-4),
}
