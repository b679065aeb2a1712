"""Search space of methods/mv_adapter.py."""

from ray import tune

SPACE = {
    # 5e-6 and 1e-7 are rates of float16 weights, which move float32 ones far less (docs/protocol.md)
    "method.lr": tune.loguniform(5e-6, 5e-3),
    "method.lr_bias": tune.loguniform(1e-7, 1e-4),
    "method.tied": tune.choice([0, 1, 2, 3]),  # MSRVTT 2, LSMDC 3, ActivityNet 1
    "method.tying": tune.choice(["down_out", "down_in"]),  # MSRVTT and DiDeMo: down_out; the others: down_in
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # released: 0.2
}
