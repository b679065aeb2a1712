"""Results of the evaluation after a task, and the state of a run between two tasks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ctvr.orchestrator.streams.query_rank import Rank, read_all


@dataclass
class Evaluation:
    """Results of the evaluation after one task."""

    metrics: dict[str, float] = field(default_factory=dict)
    own: list[float] = field(default_factory=list)  # R@1 of task i among its own videos, i = 0..t
    union: list[float] = field(default_factory=list)  # R@1 of task i among all stored videos
    ranks: dict[str, Rank] = field(default_factory=dict)  # query name -> rank among all stored videos
    own_ranks: dict[str, Rank] = field(default_factory=dict)  # query name -> rank among its own task's videos
    v2t: dict[str, Rank] = field(
        default_factory=dict
    )  # captioned video -> its rank as a query; others by their best caption
    aged_ranks: dict[str, dict[str, Rank]] = field(default_factory=dict)  # % of old videos re-encoded -> query -> rank

    def add(self, *others: Evaluation) -> None:
        """Merge the metrics and aged ranks of another measurement after the same task."""
        for other in others:
            self.metrics.update(other.metrics)
            self.aged_ranks.update(other.aged_ranks)


@dataclass
class RunState:
    """State of a run after a task: everything that a resumed run or a table needs, except weights."""

    done: int = 0  # number of finished tasks
    own: list[list[float]] = field(default_factory=list)  # R@1 of task i among its own videos, row = task learned
    union: list[list[float]] = field(default_factory=list)  # R@1 of task i among all stored videos
    metrics: list[dict[str, float]] = field(default_factory=list)  # one dictionary per task learned
    training: list[dict[str, float]] = field(default_factory=list)  # mean losses and metrics per epoch, with "step"
    ranks: dict[str, Rank] = field(default_factory=dict)  # query -> rank in the protocol's gallery, at the end
    # query -> rank among its own task's videos, at the end; {} if `ranks` are these, or an older version ran
    own_ranks: dict[str, Rank] = field(default_factory=dict)
    v2t: dict[str, Rank] = field(default_factory=dict)  # captioned video -> its rank as a query, at the end
    # % of old videos re-encoded ("0": as stored) -> query -> rank among all videos; empty unless measured
    aged_ranks: dict[str, dict[str, Rank]] = field(default_factory=dict)
    steps: int = 0  # optimizer steps so far
    seconds: list[float] = field(default_factory=list)  # wall time of each task, as it was trained
    timing: list[dict[str, float]] = field(default_factory=list)  # per epoch, with "step"; see epoch_timing.py

    def __post_init__(self) -> None:  # JSON has a list for each `Rank`, and older commits have a single value
        self.ranks, self.v2t, self.own_ranks = map(read_all, (self.ranks, self.v2t, self.own_ranks))
        self.aged_ranks = {share: read_all(ranks) for share, ranks in self.aged_ranks.items()}

    def add(self, found: Evaluation, ranks: dict[str, Rank], seconds: float) -> None:
        """Add a task's results, its ranks in the protocol's gallery, and its duration."""
        self.done += 1
        self.own.append(found.own)
        self.union.append(found.union)
        self.metrics.append(found.metrics)
        self.ranks, self.v2t, self.aged_ranks = read_all(ranks), found.v2t, found.aged_ranks
        self.own_ranks = {} if ranks is found.own_ranks else found.own_ranks
        self.seconds.append(seconds)


MEASURED = frozenset({"seconds", "timing"})  # fields whose values differ between two runs of equal settings
