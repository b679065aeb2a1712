"""Names of each protocol's main metrics, for searches and progress lines."""

from __future__ import annotations

import math
from collections.abc import Mapping

GAIN = "stream/t2v/r1_gain"
MEAN = "stream/t2v/r1_mean"  # mean over tasks, each with its own gallery, as in CVLM's tables
ACCURACY, FORGETTING = "stream/knn/accuracy", "stream/knn/forgetting"
ANSWERED = "stream/qa/accuracy"
# Settings that only add metrics, with the values (as `Experiment.settings` has them) that the key of a run omits
ADDS_METRICS: dict[str, object] = {
    "evaluation.every_epoch": False,
    "evaluation.oracle_task": False,
    "evaluation.costs": False,
    "evaluation.reencode": [],
    "evaluation.reencode_after": "last",
    "evaluation.unlearned_tasks": False,
    "evaluation.also": [],
    "evaluation.distractors": [],
    "evaluation.distractors_from": "",
    "evaluation.metrics": [],
}
# Names after `stream/t2v/` that runs or tables compute, which metrics of other packages cannot have
OF_QUERIES = frozenset(
    {"r1", "r5", "r10", "rsum", "medr", "meanr", "twin", "r1_twins", "r1_no_twins", "bwf", "bwf_union", "fr", "hm"}
    | {"r1_gain", "r1_mean", "r1_current", "r1_own", "r1_incremental"}
)
COSTS = "stream/cost/"  # prefix of the metrics of evaluation.costs
OBJECTIVES = {  # word of `ctvr sweep --objectives` -> metric, better direction
    "gain": (GAIN, "max"),
    "r1": ("stream/t2v/r1", "max"),
    "r1_mean": (MEAN, "max"),
    "forgetting": ("stream/t2v/bwf", "min"),
    "gmacs": (f"{COSTS}video_gmacs", "min"),
    "query_gmacs": (f"{COSTS}query_gmacs", "min"),
    "parameters": (f"{COSTS}trained_parameters", "min"),
    "stored": (f"{COSTS}stored_floats", "min"),
}
SEARCHED = {"ctvr": GAIN, "cvlm": MEAN, "ucl": ACCURACY, "qa": ANSWERED}  # protocol -> metric of a search


def progress_text(metrics: Mapping[str, float]) -> str:
    """Format the main metrics after a task for a progress line."""
    for accuracy, forgetting in ((ACCURACY, FORGETTING), (ANSWERED, "stream/qa/forgetting")):
        if accuracy in metrics:
            forgotten = f"  forgetting {metrics[forgetting]:.2f}" if forgetting in metrics else ""  # none after task 1
            return f"accuracy {metrics[accuracy]:.2f}{forgotten}"
    gain = f"  ({metrics[GAIN]:+.2f} over zero-shot)" if GAIN in metrics else ""
    bwf = round(metrics.get("stream/t2v/bwf", math.nan), 2) + 0.0  # -0.0 + 0.0 is 0.0
    return f"R@1 {metrics.get('stream/t2v/r1', math.nan):.2f}{gain}  forgetting {bwf:.2f}"
