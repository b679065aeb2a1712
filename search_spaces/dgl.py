"""Search space of methods/dgl.py. Its paper searches no setting; the values are those of the released scripts."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(2e-4, 2e-2),  # released: 1e-2, 5e-3; transformer 2e-3
    "method.num_prompts": tune.choice([2, 4, 8]),  # released: 4
    "method.readout": tune.choice(["global", "globals_and_frames"]),  # released: the first global prompt
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # released: 0.2
}
PAPER = {"method.lr": 1e-2}
