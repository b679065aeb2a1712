"""What the numbers of a protocol are called: by which a search goes, and what a line of progress says."""

from __future__ import annotations

import math
from collections.abc import Mapping

GAIN = "stream/t2v/r1_gain"
MEAN = "stream/t2v/r1_mean"  # over tasks, each in its own gallery: what the tables of the CVLM protocol show
ACCURACY, FORGETTING = "stream/knn/accuracy", "stream/knn/forgetting"
ANSWERED = "stream/qa/accuracy"
SEARCHED = {"ctvr": GAIN, "cvlm": MEAN, "ucl": ACCURACY, "qa": ANSWERED}  # protocol -> metric that a search goes by


def progress_text(metrics: Mapping[str, float]) -> str:
    """The first numbers after a task, in words."""
    for accuracy, forgetting in ((ACCURACY, FORGETTING), (ANSWERED, "stream/qa/forgetting")):
        if accuracy in metrics:
            forgotten = f"  forgetting {metrics[forgetting]:.2f}" if forgetting in metrics else ""  # not after task 1
            return f"accuracy {metrics[accuracy]:.2f}{forgotten}"
    gain = f"  ({metrics[GAIN]:+.2f} over zero-shot)" if GAIN in metrics else ""
    return f"R@1 {metrics.get('stream/t2v/r1', math.nan):.2f}{gain}  BWF {metrics.get('stream/t2v/bwf', math.nan):.2f}"
