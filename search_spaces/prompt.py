"""Search space of methods/prompt.py."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-4, 1e-2),  # TempMe's section 4.1 uses 6e-4; prompts often need more
    "method.num_prompts": tune.choice([2, 5, 10]),  # 5 gives the printed 0.08 M parameters
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
}
