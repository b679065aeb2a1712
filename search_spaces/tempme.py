"""Search space of methods/tempme.py, for a ViT-B/32; with a ViT-B/16 the paper uses r=10, 60 and 80 %."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(6e-5, 6e-3),  # section 4.1 uses 6e-4
    "method.rank": tune.choice([4, 8, 16]),  # the paper uses 8
    "method.reducer.r": tune.choice([1, 2, 3]),  # the paper uses 2
    "method.reducer.keep_cross": tune.choice([50, 60, 70, 80, 90]),  # R_C, studied in fig. 5; the paper uses 70 %
    "method.reducer.keep_intra": tune.choice([70, 80, 90, 100]),  # R_I, studied in fig. 5; the paper uses 90 %
    "method.train_positions": tune.choice(["all", "first"]),  # the paper has one task only
}
PAPER = {"method.reducer.r": 2, "method.reducer.keep_cross": 70, "method.reducer.keep_intra": 90}
