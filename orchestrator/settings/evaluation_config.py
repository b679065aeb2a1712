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

    split: Literal["val", "test"] = setting("test", doc="evaluated split; searches optimize on val, tables report test")
    select: Literal["last", "best"] = setting(
        "last", doc="epoch whose weights are kept. best: highest R@1 on select_split (marked in tables)"
    )
    select_split: Literal["val", "test", "same"] | None = setting(
        None,
        doc="split on which select=best compares epochs. same: the evaluated split; none: val if the stream has "
        "validation videos, otherwise the evaluated split",
    )
    patience: int | None = setting(
        None,
        doc="with select=best, number of epochs without improvement after which a task ends, counted from "
        "`patience_start`",
    )
    patience_start: int = setting(10, doc="number of first epochs of a task that `patience` skips", exact=True)
    batch_size: int = setting(32, doc="number of videos that are read, or captions that are encoded, in a step")
    query_chunk: int = setting(512, doc="queries per scoring step")
    log_losses: bool = setting(
        False, doc="whether to log all losses on the evaluated split's pairs after every epoch (CAMoE, fig. 6)"
    )
    every_epoch: bool = setting(
        False,
        doc="whether to measure the metrics of a task after each of its epochs, too, as epoch/...; searches of streams "
        "with one task set it to stop trials early",
    )
    own_gallery: Literal["alone", "cut"] = setting(
        "alone",
        doc="captions and videos over which scores in a task's own gallery are normalized (z-scores, Dual Softmax, "
        "re-ranking). alone: of the task only; cut: of all tasks so far, so that BWF also changes with the gallery "
        "(StructAlign's release)",
    )
    oracle_task: bool = setting(
        False,
        doc="whether to measure R@1 with a known task for each caption, after every task; all captions are encoded "
        "again",
    )
    reencode: tuple[int, ...] = setting(
        (),
        doc="shares (%) of the old videos that are re-encoded by the current model, oldest first, for the metrics "
        "stream/index/... (docs/protocol.md); 0 is always measured, 100 gives the compatibility gap",
    )
    reencode_after: Literal["all", "last"] = setting("last", doc="tasks after which `reencode` applies")
    unlearned_tasks: bool = setting(
        False, doc="whether to measure R@1 of the tasks not learned yet, in their own galleries, for forward transfer"
    )
    also: tuple[str, ...] = setting(
        (),
        doc="other streams that are searched before task 1 and after every task, for the metrics stream/also/... and "
        "the retention",
    )
    distractors: tuple[int, ...] = setting(
        (), doc="numbers of videos of `distractors_from` that are added to the gallery after the last task"
    )
    distractors_from: str = setting("", doc="stream of the distractors, none of whose videos may be in the run")
    costs: bool = setting(
        False,
        doc="whether to count the multiply-adds of a video and of a query, the trained parameters and the stored "
        "values after every task, as stream/cost/...; searches with such an objective set it",
    )
    metrics: tuple[str, ...] = setting(
        (),
        doc="metrics of other packages, or MODULE:FUNCTION of your own, that are also computed in every evaluation, as "
        "stream/t2v/... (docs/metrics.md)",
    )
    knn_k: int = setting(200, doc="k of the second k-NN accuracy on image streams, equal after every task")
    knn_share: float | None = setting(
        None,
        doc="k as a share of a task's training images (at least 1 image), instead of `knn_k`; 0.02 gives the "
        "release's 200 of CIFAR-10's 10,000 images",
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
