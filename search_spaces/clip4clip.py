"""Search space of methods/clip4clip.py."""

from ray import tune

SPACE = {
    # CTVR's released default is 1e-6. CLIP4Clip's 1e-7 is a rate of float16 weights, which moves float32 ones far less
    # (docs/protocol.md): an equivalent rate may be higher
    "method.lr": tune.loguniform(1e-7, 1e-4),
    "method.frame_norm": tune.choice(["none", "l2"]),  # CTVR: none, CLIP4Clip: l2
    "method.train_scale": tune.choice([True, False]),  # CLIP4Clip and CTVR's released code train it
    "optim.weight_decay": tune.choice([0.0, 0.01, 0.2]),  # CLIP4Clip and CTVR's released code use 0.2; CTVR prints none
}
