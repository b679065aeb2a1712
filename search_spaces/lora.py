"""Search space of methods/lora.py."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
    "method.rank": tune.choice([4, 8, 16, 32]),  # the paper uses 8
    "optim.weight_decay": tune.choice([0.0, 0.05, 0.2]),  # section 4.1 prints none; the released code uses 0.2
}
CONFIGURATIONS = {
    "tome": {  # for a ViT-B/32; with a ViT-B/16 the paper's r is 10
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
            "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
            "method.reducer.r": tune.choice([1, 2, 3]),  # the paper uses 2; more trades accuracy for speed
            "method.reducer.name": tune.choice(["tome", "tome_shared"]),  # the paper merges every frame on its own
        },
        "PAPER": {"method.reducer.r": 2},
    },
    "evit": {
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
            "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
            # EViT's released models; with 0.7 the multiply-adds are those of TempMe's table, which prints no rate
            "method.reducer.keep_rate": tune.choice([0.5, 0.6, 0.7, 0.8, 0.9]),
        },
    },
    "sta": {
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
            "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
            "method.reducer.r": tune.choice(
                [6, 8, 9, 10, 12]
            ),  # of a ViT-B/32; printed nowhere; 9 and 10 have the cost of the table
        },
        "PAPER": {"method.reducer.r": 9},
    },
    "diffrate": {  # its rates form a schedule, which is not searched
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
            "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
        },
    },
    "testa": {
        "SPACE": {
            "method.lr": tune.loguniform(6e-5, 6e-3),  # TempMe's section 4.1 uses 6e-4
            "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
            "method.reducer.temporal_rank": tune.choice([4, 8, 16]),  # 8 gives the table's number of parameters
        },
    },
}
