"""The settings `evaluation.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ctvr.methods.settings import SettingError, require, setting
from ctvr.orchestrator.settings.plugins import Plugins

METRICS = Plugins("metric", "metrics", "evaluation.metrics")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of evaluation and of the selection of an epoch."""

    split: Literal["val", "test"] = setting("test", doc="evaluated split; searches use val, and tables report test")
    select: Literal["last", "best"] = setting(
        "last",
        doc="epoch of a task whose weights are kept. last: the last epoch; best: the epoch with the highest R@1 on "
        "select_split (tables have a footnote)",
    )
    select_split: Literal["val", "test", "same"] | None = setting(
        None,
        doc="split on which epochs are compared, with select=best. same: the evaluated split; none: val if the "
        "stream has validation videos, otherwise the evaluated split",
    )
    patience: int | None = setting(
        None,
        doc="number of epochs without improvement after which a task ends, with select=best; the first "
        "`patience_start` epochs do not count",
    )
    patience_start: int = setting(
        10, doc="number of epochs at the start of a task that `patience` does not count", exact=True
    )
    batch_size: int = setting(32, doc="number of videos or captions in a batch of the evaluation")
    query_chunk: int = setting(512, doc="number of queries whose scores are computed at once")
    log_losses: bool = setting(
        False, doc="whether to log all losses on the evaluated split's pairs after every epoch (CAMoE, fig. 6)"
    )
    every_epoch: bool = setting(
        False,
        doc="whether to evaluate the model after every epoch, not only after every task, and log metrics as "
        "epoch/...; searches on streams of one task set it, so that they can stop trials early",
    )
    own_gallery: Literal["alone", "cut"] = setting(
        "alone",
        doc="captions and videos over which scores in a task's own gallery are normalized (z-scores, Dual Softmax, "
        "re-ranking). alone: those of the task only; cut: those of all tasks so far, as in StructAlign's "
        "released code, so that BWF also changes with the gallery",
    )
    oracle_task: bool = setting(
        False,
        doc="whether to measure, after every task, R@1 if the task of each caption is known; all captions are "
        "encoded a second time",
    )
    reencode: tuple[int, ...] = setting(
        (),
        doc="percentages of earlier tasks' videos, oldest first, that the current model re-encodes for the metrics "
        "stream/index/... (docs/protocol.md). 0 is always measured. The compatibility gap needs 100",
    )
    reencode_after: Literal["all", "last"] = setting(
        "last", doc="tasks after which the percentages in `reencode` are measured"
    )
    unlearned_tasks: bool = setting(
        False,
        doc="whether to measure R@1 of the tasks that are not learned yet, in their own galleries, for forward "
        "transfer",
    )
    also: tuple[str, ...] = setting(
        (),
        doc="names of other streams on which the model is evaluated before task 1 and after every task, for the "
        "metrics stream/also/...",
    )
    distractors: tuple[int, ...] = setting(
        (), doc="numbers of videos of the stream `distractors_from` that are added to the gallery after the last task"
    )
    distractors_from: str = setting(
        "", doc="name of the stream of the distractors, which must not share videos with the stream of the run"
    )
    costs: bool = setting(
        False,
        doc="whether to log stream/cost/... after every task: multiply-adds per video and per query, trained "
        "parameters and stored values (searches with a cost objective set it)",
    )
    metrics: tuple[str, ...] = setting(
        (),
        doc="additional metrics that every evaluation computes and logs as stream/t2v/...: names from other "
        "packages, or MODULE:FUNCTION of your own code (docs/metrics.md)",
    )
    knn_k: int = setting(
        200,
        doc="number k of neighbors of the second k-NN accuracy on image streams, which is the same after every task",
    )
    knn_share: float | None = setting(
        None,
        doc="number k of neighbors as a share of a task's training images (at least 1 image), instead of `knn_k`; "
        "0.02 gives the released code's 200 of 10,000 images on CIFAR-10",
    )

    def __post_init__(self) -> None:
        require(self, ">= 1", "batch_size", "query_chunk", "knn_k")
        require(self, "in (0, 1]", "knn_share", hint="Use 0.02, or none for `knn_k`.")
        require(self, ">= 1", "patience", hint="Use none to train all epochs.")
        if self.patience is not None and self.select == "last":
            raise SettingError(
                f"<patience>={self.patience} counts epochs without improvement, which <select>=last does not measure",
                "Use <select>=best, or <patience>=none.",
            )
        if wrong := [share for share in self.reencode if not 0 <= share <= 100]:
            raise SettingError(
                f"<reencode> lists shares of the old videos in percent, 0 to 100, got {wrong[0]}", "Use 25,50,100."
            )
        if wrong := [count for count in self.distractors if count < 1]:
            raise SettingError(f"<distractors> lists numbers of videos >= 1, got {wrong[0]}", "Use 100,1000.")
        if self.distractors and not self.distractors_from:
            raise SettingError(
                "<distractors> needs the stream of the distractors", "Add evaluation.distractors_from=STREAM."
            )
        require(self, ">= 0", "patience_start", hint="Use 0.")

    @property
    def measures_more(self) -> bool:
        """Return whether these settings request a metric of index_age.py or unseen.py."""
        return bool(self.reencode or self.unlearned_tasks or self.also or self.distractors)

    def fixed_k(self, bank: int) -> int:
        """Return the constant k of the second k-NN accuracy (see `UCL`) for a task with `bank` training images."""
        if self.knn_share is None:
            return min(self.knn_k, bank)
        return max(1, round(self.knn_share * bank))

    def selects_on(self, has_val: bool) -> str | None:
        """Return the split on which a task's best epoch is selected; None if the last epoch is kept.

        Args:
            has_val: whether the stream has validation videos.
        """
        if self.select == "last":
            return None
        if self.select_split is None:
            return "val" if has_val else self.split
        return self.split if self.select_split == "same" else self.select_split
