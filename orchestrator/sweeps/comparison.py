"""Comparison of a search's best trials with the recommended settings, and its minimum detectable effect.

R@1 of the best challenger (a trial of the search) is compared over videos and seeds (tables/intervals.py). The
challenger wins if it is significantly better at 5 %; otherwise the recommended settings are kept (docs/search.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from ctvr.methods import EVERY_METHOD
from ctvr.orchestrator.memo import remembered
from ctvr.orchestrator.on_ray.plan import GAIN, MEAN, SEARCHED
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tables.footnotes import CHOICE
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import LEVEL, Difference
from ctvr.orchestrator.tracking.run_record import RunRecord

if TYPE_CHECKING:
    from ctvr.orchestrator.settings.experiment import Experiment

RECOMMENDED = "recommended"
GAINED = "ctvr.gained"  # tag of reruns: the gain in the confirmation
BY_RANKS = {GAIN, MEAN, "stream/t2v/r1"}  # R@1 metrics, which can be compared query by query
POWER = 0.8  # statistical power of the minimum detectable effect
NORMAL = NormalDist()


def last_value(run: RunRecord, key: str) -> float:
    """Return a metric's value at its last step; NaN if it was never recorded."""
    last = run.last(key)
    return last[1] if last else float("nan")


def experiment_of(run: RunRecord) -> Experiment:
    """Return the configuration of a complete trial from its MLflow record."""
    from ctvr.orchestrator.settings.resolve import named_in, resolve  # imports torch

    presets = [name for name in run.tags.get("ctvr.presets", "").split(",") if name]
    typed = {
        name: str(value).strip("[]") if str(value).startswith("[") else value for name, value in run.settings.items()
    }
    with named_in(f"run {run.name}"):
        return resolve(typed, None, presets)


def is_trained(run: RunRecord) -> bool:
    """Return whether a complete run trained parameters, so that it depends on its seed."""

    def compute() -> bool:
        from ctvr.orchestrator.learning.run.execute import has_training  # imports torch

        return has_training(experiment_of(run))

    named = {str(run.settings[name]) for name in ("method", "method.base") if name in run.settings}
    if not named <= EVERY_METHOD.keys():  # a plug-in, whose sources may change
        return compute()
    return bool(remembered(["is trained", run.settings, run.tags.get("ctvr.presets", "")], compute))


@dataclass(frozen=True)
class ConfirmationResult:
    """Result of the confirmation of a search."""

    sweep: str
    recommended: Experiment
    searched: Experiment  # the best challenger, confirmed or not
    trial: str  # name of the challenger
    is_confirmed: bool
    against: Difference  # metric of the challenger minus metric of the recommended settings, on validation videos
    challengers: int  # number of challengers
    seeds: int  # number of seeds
    detectable: float  # minimum detectable effect in points of R@1, at a power of 80 %

    @property
    def chosen(self) -> Experiment:
        return self.searched if self.is_confirmed else self.recommended

    @property
    def kept(self) -> str:
        """Return the name of the chosen candidate, which is a tag of its runs."""
        return self.trial if self.is_confirmed else RECOMMENDED

    @property
    def on_validation(self) -> str:
        return f"{self.against} on validation videos over {self.seeds} new seeds"

    @property
    def text(self) -> str:
        """Return the result as one sentence for the user."""
        many = f", for the best of {self.challengers} challengers" if self.challengers > 1 else ""
        said = f"{self.trial} against the recommended settings: {self.on_validation}{many}"
        end = "confirmed" if self.is_confirmed else "not confirmed, so the recommended settings are kept"
        power = f"this comparison detects a difference of {self.detectable:.1f} points in 4 of 5 cases"
        if not math.isfinite(self.detectable):
            power = "the detectable difference is unknown, because its seeds do not differ"
        return f"confirmation: {said}; {end} ({power})"

    def tags(self, is_searched: bool) -> dict[str, str]:
        """Return the MLflow tags for the reruns of the searched row (`is_searched`) or of the recommended settings."""
        if not is_searched:
            return {CHOICE: RECOMMENDED, "ctvr.note": "the recommended settings, which were not searched"}
        return {CHOICE: "searched", "ctvr.note": self.note, GAINED: self.on_validation}

    @property
    def note(self) -> str:
        """Return the footnote of the searched row."""
        word = "confirmed" if self.is_confirmed else "NOT confirmed: the recommended settings are kept"
        return f"{word}; difference from them {self.on_validation}"


def compare_candidates(
    sweep: str,
    groups: Mapping[str, Sequence[RunRecord]],
    ranks: Mapping[str, Ranks],
    rule: tuple[str, str],
    order: Sequence[str],
) -> ConfirmationResult:
    """Compare every challenger with the recommended settings; return the result for the best challenger.

    Args:
        sweep: name of the sweep.
        groups: runs of each candidate, one per seed.
        ranks: final ranks on validation videos by run id.
        rule: metric and mode of the search.
        order: names of trials, best first, to break ties between challengers.
    """
    base = groups[RECOMMENDED]
    names = [name for name in order if name in groups]
    seen = compare(base, [groups[name] for name in names], ranks, rule)
    better = 1.0 if rule[1] == "max" else -1.0
    winning = [better * each.value > 0 and each.p < LEVEL for each in seen]
    best = max(range(len(names)), key=lambda index: (winning[index], better * seen[index].value))
    trial = names[best]
    return ConfirmationResult(
        sweep=sweep,
        recommended=experiment_of(base[0]),
        searched=experiment_of(groups[trial][0]),
        trial=trial,
        is_confirmed=winning[best],
        against=seen[best],
        challengers=len(names),
        seeds=len(base),
        detectable=seen[best].detectable,
    )


def compare(
    base: Sequence[RunRecord],
    others: Sequence[Sequence[RunRecord]],
    ranks: Mapping[str, Ranks],
    rule: tuple[str, str],
    page: Sequence[Sequence[RunRecord]] = (),
) -> list[Difference]:
    """Return the difference in a metric between each of `others` and `base`, over videos and seeds.

    Metrics other than R@1 are compared over seeds only.

    Args:
        base: runs of the reference, one per seed.
        others: runs of each compared row, one per seed.
        ranks: final ranks by run id.
        rule: metric and mode.
        page: further rows of the table, toward whose mean the variance over seeds is moderated. They are not compared,
            and rows without the metric are ignored.
    """
    from ctvr.orchestrator.tables.intervals import compare_over_seeds, differences  # SciPy: a second to import
    from ctvr.orchestrator.tables.multiple_comparisons import Family

    family, compared = Family(1 + len(others), is_chosen=False), slice(1, 1 + len(others))
    rows, page = [base, *others], [row for row in page if is_trained(row[0])]
    if rule[0] not in BY_RANKS or any(run.run_id not in ranks for row in rows for run in row):
        values = [[last_value(run, rule[0]) for run in row] for row in [*rows, *page]]
        known = [row for row in values[len(rows) :] if all(map(math.isfinite, row))]
        return compare_over_seeds([*values[: len(rows)], *known], family)[compared]
    rows += [row for row in page if all(run.run_id in ranks for run in row)]
    first = ranks[base[0].run_id]
    queries = sorted(set.intersection(*(set(ranks[run.run_id].of) for row in rows for run in row)))
    found = [np.array([[ranks[run.run_id].of[q].first for q in queries] for run in row]) for row in rows]
    videos = [query.rpartition("#")[0] or query for query in queries]
    tasks = [first.task[query] for query in queries] if rule[0] == MEAN and first.task else None
    fixed = [not is_trained(row[0]) for row in rows]
    return differences(found, 0, videos, tasks, fixed=fixed, family=family)[compared]


# --------------------------------------------------------------------------------------- minimum detectable effect


def minimum_detectable_effect(queries: int, videos: int, disagreeing: float = 0.2) -> float:
    """Estimate the minimum detectable difference of R@1 in points, before anything is measured.

    Args:
        queries, videos: numbers of queries and videos in the split. Captions of one video count as one sample.
        disagreeing: share of queries that exactly one of the two candidates ranks first.
    """
    independent = min(queries, videos)
    if not independent:
        return math.inf
    return 100 * math.sqrt(disagreeing / independent) * (NORMAL.inv_cdf(1 - LEVEL / 2) + NORMAL.inv_cdf(POWER))


def describe_mde(stream: Stream, split: str) -> str:
    """Return a text on the minimum detectable effect of a search on a split."""
    items = [item for task in range(len(stream.tasks)) for item in stream.items(task, split)]
    queries, videos = sum(len(item.captions) for item in items), len({item.video for item in items})
    return (
        f"about {minimum_detectable_effect(queries, videos):.1f} points of R@1 with {queries} queries of {videos} "
        f"{split} videos in {len(stream.tasks)} tasks, for one seed each "
        "(5 %, power 80 %, if only one of the two candidates finds the video of 1 query in 5)"
    )


# ------------------------------------------------------------------------------------------------ the test videos


def gain_notes(runs: Sequence[RunRecord], ranks: Mapping[str, Ranks]) -> list[str]:
    """Return a note on the gain of the searched row over the recommended settings, on validation and test videos.

    The list is empty if one of the two rows is missing.
    """
    of: dict[str, list[RunRecord]] = {}
    for run in runs:
        if run.tags.get("ctvr.complete") == "true" and run.tags.get(CHOICE):
            of.setdefault(run.tags[CHOICE], []).append(run)
    if not {RECOMMENDED, "searched"} <= of.keys():
        return []
    base, other = of[RECOMMENDED], of["searched"]
    metric = SEARCHED[base[0].tags.get("ctvr.protocol", "ctvr")]
    (on_test,) = compare(base, [other], ranks, (metric, "max"))
    return [
        f"Gain of the search over the recommended settings: {other[0].tags[GAINED]}; "
        f"{on_test} on test videos over {len(other)} seeds (R@1 in points)."
    ]
