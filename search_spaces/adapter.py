"""Search space of methods/adapter.py."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
    "method.bottleneck": tune.choice([8, 16, 64]),  # 8 gives the printed 0.26 M parameters
    "method.placement": tune.choice(["after_mlp", "beside_mlp", "after_attention"]),  # printed nowhere; ours first
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
}
