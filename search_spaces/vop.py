"""Search space of methods/vop.py. No training recipe is public; the values are those of its row in TempMe."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe: 6e-4
    "method.num_prompts": tune.choice([4, 8, 16]),  # released: 8
    "method.prefix": tune.choice([0, 4, 8]),  # released: 4
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # TempMe: 0.2
}
CONFIGURATIONS = {
    "vop_fc": {  # no code of it is public: the form and places of its prompts are our interpretation
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe: 6e-4
            "method.num_prompts": tune.choice([2, 4, 8]),  # TempMe's count of tokens: 4
            "method.video_blocks": tune.choice([2, 4, 6]),  # TempMe's GFLOPs: 4
            "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # TempMe: 0.2
        },
    },
}
