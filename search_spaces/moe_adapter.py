"""Search space of methods/moe_adapter.py. CTVR publishes its 59.8 M parameters; the values are the original's."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-6, 1e-2),  # MoE-Adapters uses 1e-3 for classes; unpublished for retrieval
    "method.num_experts": tune.choice([10, 22, 40]),  # the original uses 22, which gives the printed 59.8 M parameters
    "method.top_k": tune.choice([1, 2, 4]),  # the original uses 2
    "method.bottleneck": tune.choice([16, 64]),  # the original uses 64
    "method.text_gate": tune.choice(["sot", "eot"]),  # both codes use sot; eot is ours
    "optim.weight_decay": tune.choice([0.0, 0.2]),  # MoE-Adapters uses 0, CTVR's released code 0.2
}
PAPER = {"optim.weight_decay": 0.0}
