"""Search space of methods/ctp.py. Values are those of the released code, which pre-trains on products."""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.momentum_weight": tune.choice([0.0, 0.1, 1.0]),  # 1
    "method.cross_weight": tune.loguniform(0.1, 10.0),  # 1
    "method.same_weight": tune.loguniform(0.1, 10.0),  # 1
    "method.m": tune.choice([0.9, 0.99, 0.995]),  # 0.9
    "method.queue_size": tune.choice([32, 256, 1024]),  # 1024
    "base.lr": tune.loguniform(1e-7, 1e-4),  # 1e-4 from DeiT and BERT; CLIP may need less
}
PAPER = {"base.lr": 1e-5}
