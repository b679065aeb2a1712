"""Search space of methods/vr_lwf.py. Of the values CTVR publishes only T = 2; the paper's were not available.

Sentences, length and weight are those of LwF-VR in ZSCL's repository.
"""

from ray import tune

FIXED = {"method.base": "clip4clip"}
SPACE = {
    "method.weight": tune.loguniform(0.03, 10.0),  # unpublished; the repository uses 1
    "method.temperature": tune.choice([1.0, 2.0, 4.0]),  # T; CTVR uses 2
    "method.sentences": tune.choice([100, 500, 1000, 2000]),  # R; unpublished, the repository uses 1000
    "method.length": tune.choice([1, 5, 10]),  # words; unpublished, the repository uses 10
    "method.student": tune.choice(["video", "each"]),  # the repository uses video; each is ours
    "base.lr": tune.loguniform(1e-7, 1e-5),  # unpublished; 1e-6 is CTVR's released default
}
