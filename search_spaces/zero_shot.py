"""Search space of methods/zero_shot.py: its only setting, the normalization of frames."""

from ray import tune

SPACE = {"method.frame_norm": tune.choice(["none", "l2"])}  # CTVR averages raw frame features
METRIC, MODE = "stream/t2v/r1_gain", "max"  # its gain over itself is 0
