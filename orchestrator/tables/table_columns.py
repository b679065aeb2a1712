"""Columns of each protocol's tables and their metrics."""

from __future__ import annotations

from dataclasses import dataclass

from ctvr.orchestrator.streams.metric_names import ACCURACY, ANSWERED, FORGETTING, MEAN
from ctvr.orchestrator.tables.table import Column

COLUMNS = (
    Column("r1", "R@1", "up"),
    Column("r5", "R@5", "up"),
    Column("r10", "R@10", "up"),
    Column("medr", "MedR", "down"),
    Column("meanr", "MeanR", "down"),
    Column("bwf", "BWF", "down"),
    Column("params_m", "Params (M)"),
)
OVERALL = (Column("r1", "R@1", "up"), Column("fr", "FR", "down"), Column("hm", "HM", "up"))  # CVLM
NEIGHBOURS = (  # UCL
    Column("accuracy", "Accuracy", "up"),
    Column("forgetting", "Forgetting", "down"),
    Column("accuracy_fixed", "Accuracy (fixed k)", "up"),
    Column("forgetting_fixed", "Forgetting (fixed k)", "down"),
    COLUMNS[-1],
)
ANSWERS = (  # QA
    Column("accuracy", "Accuracy", "up"),
    Column("forgetting", "Forgetting", "down"),
    Column("accuracy_all", "Accuracy (all answers)", "up"),
    COLUMNS[-1],
)
OF_VIDEOS = {"own gallery": "t2v/r1_own", "all galleries so far": "t2v/r1"}

NEIGHBOUR_NOTE = (
    "Accuracy: the classes of a task's test images as its nearest training images have them, with the k of the release "
    "(the number of tasks so far) and with one k for all (`evaluation.knn_k`, or all images of the task, or "
    "`evaluation.knn_share` of them). The CSV also has forgetting from the best former value (`_best`)."
)
ANSWER_NOTE = (
    "Accuracy: questions whose likeliest answer is the right one, word for word, among the training answers of the "
    "question's task; all answers: among those of all tasks. Test answers that no training question has are wrong."
)


@dataclass(frozen=True)
class Measures:
    """The metrics in a protocol's tables."""

    names: dict[str, str]  # column -> metric
    curve: str  # metric over tasks
    matrices: dict[str, str]  # title -> metric of each task, without the prefix `task_NN/`
    columns: tuple[Column, ...] = ()  # all of them, if nothing is searched
    note: str = ""  # their definition


OF = {
    "ctvr": Measures({column.key: f"stream/t2v/{column.key}" for column in COLUMNS[:-1]}, "stream/t2v/r1", OF_VIDEOS),
    "cvlm": Measures({"r1": MEAN, "fr": "stream/t2v/fr", "hm": "stream/t2v/hm"}, MEAN, OF_VIDEOS),
    "ucl": Measures(
        {
            "accuracy": ACCURACY,
            "forgetting": FORGETTING,
            "accuracy_fixed": f"{ACCURACY}_fixed",
            "forgetting_fixed": f"{FORGETTING}_fixed",
        },
        ACCURACY,
        {"accuracy, k of the release": "knn/accuracy", "accuracy, fixed k": "knn/accuracy_fixed"},
        NEIGHBOURS,
        NEIGHBOUR_NOTE,
    ),
    "qa": Measures(
        {"accuracy": ANSWERED, "forgetting": "stream/qa/forgetting", "accuracy_all": f"{ANSWERED}_all"},
        ANSWERED,
        {"accuracy, answers of the task": "qa/accuracy", "accuracy, all answers so far": "qa/accuracy_all"},
        ANSWERS,
        ANSWER_NOTE,
    ),
}
