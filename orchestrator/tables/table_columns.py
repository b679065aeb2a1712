"""Columns of each protocol's tables and their metrics."""

from __future__ import annotations

from collections.abc import Sequence
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
V2T = (
    Column("v2t/r1", "V2T R@1", "up"),
    Column("v2t/r5", "V2T R@5", "up"),
    Column("v2t/r10", "V2T R@10", "up"),
    Column("v2t/medr", "V2T MedR", "down"),
    Column("v2t/meanr", "V2T MeanR", "down"),
)
V2T_SUM = Column("v2t/rsum", "V2T R-Sum", "up")
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
CURRENT = "stream/t2v/r1_current"  # mean R@1 of every task in its own gallery, just after it was learned
OWN = "stream/t2v/r1_own"  # mean R@1 of every task in its own gallery, after the last task
INCREMENTAL = (
    "stream/t2v/r1_incremental"  # mean over t of the tasks' mean R@1 among all videos after task t (DAR, eq. 6)
)


def _by_key(*listed: tuple[Column, str]) -> dict[str, tuple[Column, str]]:
    return {column.key: (column, metric) for column, metric in listed}


# Additional columns, which a table requests by its `columns`
EXTRA = _by_key(
    (Column("rsum", "R-Sum", "up"), "stream/t2v/rsum"),
    (Column("gmacs", "GMACs", "down", 1), "cost/video_gmacs"),
    (Column("tokens", "Tokens", "", 0), "cost/tokens_out"),
    (Column("current", "R@1 (current)", "up"), CURRENT),
    (Column("own", "R@1 (own gallery)", "up"), OWN),
    (Column("incremental", "R@1 (average incremental)", "up"), INCREMENTAL),
    (Column("twin", "Twins", "up"), "stream/t2v/twin"),
    # columns that papers do not print
    (Column("query_passes", "Text passes (query)", "down", 0), "cost/query_passes"),
    (Column("query_gmacs", "GMACs (query)", "down", 1), "cost/query_gmacs"),
    (Column("speed", "Videos/s", "up", 1), "cost/videos_per_second"),
    (Column("train_speed", "Clips/s (training)", "up", 1), "cost/train_clips_per_second"),
    (Column("train_memory", "Memory (MB, training)", "down", 0), "cost/train_memory_mb"),
    (Column("run_seconds", "Seconds (run)", "down", 1), "cost/seconds_run"),
    (Column("memory", "Memory (MB)", "down", 0), "cost/peak_memory_mb"),
    (Column("index_mb", "Index (MB)", "down", 2), "cost/index_bytes"),
    (Column("replay_mb", "Replay (MB)", "down", 2), "cost/replay_bytes"),
    (Column("replay_share", "Past kept (%)", "", 1), "cost/replay_share"),
    (Column("tower_copies", "Tower copies", "down", 0), "cost/tower_copies"),
    (Column("train_gmacs", "GMACs (training)", "down", 0), "cost/train_gmacs"),
    (Column("reencoded_gmacs", "GMACs (own re-encoding)", "down", 1), "cost/reencoding_gmacs"),
    (Column("stored", "Stored (kB)", "down", 2), "cost/stored_floats_per_video"),
)
ACCESS_COLUMNS = ("replay_share", "train_gmacs")  # shown where a row keeps pairs of earlier tasks
TWINS = _by_key(  # shown if a run measured them
    (Column("r1_no_twins", "R@1 (no twin)", "up"), "stream/t2v/r1_no_twins"),
    (Column("r1_twins", "R@1 (twin)", "up"), "stream/t2v/r1_twins"),
)
TWIN_NOTE = (
    "R@1 (twin): R@1 of the captions whose video has a time-reversed twin. R@1 (no twin): R@1 of all other captions. "
    "A method that averages frames gives both twins the same score, so each is found first with a probability of at "
    "most 1/2."
)
ORACLE = _by_key(  # shown if a run measured them, without bold values or comparisons
    (Column("oracle_r1", "Oracle: R@1, own prompt"), "stream/oracle/r1"),
    (Column("oracle_block", "Oracle: R@1, own block"), "stream/oracle/r1_block"),
    (Column("oracle_right", "Best video of right task (%)"), "stream/oracle/right"),
)
ORACLE_NOTE = (
    "Oracle: the task of each caption is given, which a real search does not know. Own prompt: a caption is encoded "
    "with the prompt of its task only and searches all videos. Own block: in addition, only the videos of its task "
    "are searched. Best video of right task: percentage of captions whose best video belongs to their task, without "
    "an oracle. These columns are not compared between rows."
)
PRINTED = EXTRA | TWINS | ORACLE
SCALE = {"stored": 4 / 1000, "index_mb": 1e-6, "replay_mb": 1e-6}  # float32 values to kB, bytes to MB

NEIGHBOUR_NOTE = (
    "Accuracy: accuracy of k-nearest-neighbor classification of a task's test images by its training images. The "
    "number k is that of the released code (the number of tasks so far). Fixed k: k is `evaluation.knn_k`, at most "
    "all images of the task, or the share `evaluation.knn_share` of them. The CSV file also contains the forgetting "
    "relative to the best earlier value (`_best`)."
)
ANSWER_NOTE = (
    "Accuracy: percentage of questions whose most likely answer equals the correct answer word for word. Candidates "
    "are the training answers of the question's task (all answers: of all tasks). A test answer that is not a "
    "candidate counts as wrong."
)


@dataclass(frozen=True)
class Measures:
    """The columns of a protocol's tables, and the metrics that they show."""

    names: dict[str, str]  # column -> metric
    curve: str  # metric that is plotted after each task
    matrices: dict[str, str]  # title -> metric of each task, without the prefix `task_NN/`
    columns: tuple[Column, ...] = ()  # columns of a protocol without retrieval; empty for retrieval
    note: str = ""  # definition of the columns


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


def notes_on(columns: Sequence[Column]) -> list[str]:
    """Return the notes that explain the columns of twins and of an oracle, if a table has such columns."""
    keys = {column.key for column in columns}
    return [note for group, note in ((TWINS, TWIN_NOTE), (ORACLE, ORACLE_NOTE)) if keys & group.keys()]
