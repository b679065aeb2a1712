"""Search space of methods/camoe.py. The paper prints rates and schemes, but neither temperature nor widths."""

from ray import tune

SPACE = {
    # Both towers; the paper uses 1e-7, as CLIP4Clip's code does with float16 weights (docs/protocol.md)
    "method.lr": tune.loguniform(3e-8, 1e-4),
    "method.lr_experts": tune.loguniform(1e-6, 1e-3),  # the paper uses 1e-4
    "method.sentences": tune.choice(["muw", "rkw", "akwe"]),  # table 5; the paper settles on muw
    "method.fusion": tune.choice(["mean", "se", "attention"]),  # table 5; se
    "method.entity": tune.choice(["mean", "se", "attention"]),  # table 5; attention
    "method.action": tune.choice(["mean", "se", "attention"]),  # table 5; attention
    "method.gates": tune.choice(["single", "multi"]),  # table 4; single
    "method.loss": tune.choice(["cross_entropy", "dual_softmax"]),  # table 1 has both
    "method.temperature": tune.loguniform(100.0, 3000.0),  # the authors' code uses 1000
}
