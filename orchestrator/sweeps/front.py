"""Pareto front of a search with several objectives, confirmed over new seeds.

Like a single best trial, a Pareto front is subject to selection bias, because its members were lucky in some objective.
So the trials on the front and the recommended settings run again on validation videos over new seeds (confirm.py). The
Pareto front is computed again from the means over these seeds, and dominated candidates are removed. A test for each
objective that varies with the seed shows whether the difference is significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import TYPE_CHECKING

from ctvr.orchestrator.on_ray.pareto import dominates, fronts, losses_of
from ctvr.orchestrator.on_ray.plan import names_of
from ctvr.orchestrator.streams.metric_names import COSTS, OBJECTIVES
from ctvr.orchestrator.sweeps.comparison import RECOMMENDED, compare, experiment_of, last_value
from ctvr.orchestrator.tables.footnotes import CHOICE
from ctvr.orchestrator.tables.paper_comparison import EXTRA_COLUMNS
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import LEVEL
from ctvr.orchestrator.tracking.run_record import RunRecord

if TYPE_CHECKING:
    from ctvr.orchestrator.settings.experiment import Experiment

WORDS = {metric: word for word, (metric, _) in OBJECTIVES.items()}  # metric -> heading of its column
UNCONFIRMED = "on the Pareto front of the search, not confirmed"
COLUMNS = {"gmacs": "gmacs", "query_gmacs": "query_gmacs", "stored": "stored"}  # heading -> column of a table


@dataclass(frozen=True)
class Member:
    """A candidate of a Pareto front, with its values over new seeds and the candidate that dominates it."""

    name: str  # RECOMMENDED, or the trial's name
    experiment: Experiment
    values: tuple[tuple[float, ...], ...]  # values of each objective, one per seed
    dominated_by: str = ""  # name of the best candidate that dominates this one; empty on the Pareto front
    is_significant: bool = True  # whether the domination is significant (5 %)

    @property
    def is_on_front(self) -> bool:
        return not self.dominated_by

    @property
    def standing(self) -> str:
        if self.is_on_front:
            return "yes"
        return f"no: {self.dominated_by} is better" + ("" if self.is_significant else ", not significantly")


@dataclass(frozen=True)
class FrontResult:
    """Result of the confirmation of a Pareto front."""

    sweep: str
    metrics: tuple[str, ...]
    members: tuple[Member, ...]
    seeds: int

    @property
    def front(self) -> list[Member]:
        return [member for member in self.members if member.is_on_front]

    @property
    def kept(self) -> str:
        """Return "" instead of the tag of a chosen candidate, since a Pareto front has no single winner."""
        return ""

    @property
    def text(self) -> str:
        """Return the candidates as a table for the user, ordered by the first objective, the best first."""
        rows = [[member.name, *map(_cell, member.values), member.standing] for member in self.members]
        searched = sum(member.name != RECOMMENDED for member in self.members)
        left = sum(member.name != RECOMMENDED for member in self.front)
        return (
            f"{_align_rows('confirmed front', self.metrics, rows, 'on the front')}\n"
            f"{left} of {searched} trials remain on the front: means over {self.seeds} new seeds on validation videos"
        )

    def tags(self, member: Member) -> dict[str, str]:
        """Return the MLflow tags for the reruns of a trial on the Pareto front, or of the recommended settings."""
        name = member.name if member.name == RECOMMENDED else _choice(self.sweep, member.name)
        note = "on the confirmed front of the search"
        note = note if member.is_on_front else f"not {note}: {member.standing.removeprefix('no: ')}"
        return {CHOICE: name, "ctvr.note": note, EXTRA_COLUMNS: _columns(self.metrics)}


def _choice(sweep: str, trial: str) -> str:
    return f"front, {trial.removeprefix(f'{sweep}-')}"


def _columns(metrics: Sequence[str]) -> str:
    """Return the additional columns that a table needs for the objectives, comma-separated."""
    return ",".join(COLUMNS[word] for metric in metrics if (word := WORDS.get(metric)) in COLUMNS)


def _align_rows(title: str, metrics: Sequence[str], rows: Sequence[Sequence[str]], *more: str) -> str:
    """Return a text with a heading and rows in aligned columns.

    Args:
        title: heading of the first column.
        metrics: metrics of the next columns.
        rows: cells of each row.
        more: headings of further columns.
    """
    lines = [[title, *(WORDS.get(metric, metric) for metric in metrics), *more], *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(values: Sequence[float]) -> str:
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{mean(values):.4g}" + (f" ± {spread:.2g}" if spread else "")


def on_front(runs: Sequence[RunRecord], metrics: Sequence[str], modes: Sequence[str]) -> list[bool]:
    """Return, for each trial, whether it is on the Pareto front of all trials, by the last values of the metrics."""
    points = [losses_of([last_value(run, metric) for metric in metrics], modes) for run in runs]
    return [number == 0 for number in fronts(points)]


def front_of(runs: Sequence[RunRecord], rule: tuple[str, str]) -> list[RunRecord]:
    """Return the trials on the Pareto front; `rule` has the comma-separated metrics and modes of the search."""
    return [run for run, is_on in zip(runs, on_front(runs, names_of(rule[0]), names_of(rule[1]))) if is_on]


def unconfirmed_tags(run: RunRecord, metric: str) -> dict[str, str]:
    """Return the MLflow tags for the reruns of a trial on a Pareto front without a (successful) confirmation.

    Args:
        run: the trial.
        metric: the comma-separated objectives of the search.
    """
    choice = _choice(run.tags.get("ctvr.sweep", ""), run.name)
    return {CHOICE: choice, "ctvr.note": UNCONFIRMED, EXTRA_COLUMNS: _columns(names_of(metric))}


def with_standing(runs: Sequence[RunRecord], rule: tuple[str, str], verdict: FrontResult | None) -> list[RunRecord]:
    """Return the runs of a search with tags for its table: columns of the objectives, and a note on the Pareto front.

    Args:
        runs: runs of the sweep; incomplete runs are returned unchanged.
        rule: metrics and modes of the search, comma-separated.
        verdict: result of the confirmation; None without a confirmation.
    """
    metrics = names_of(rule[0])
    complete = [run for run in runs if run.tags.get("ctvr.complete") == "true"]
    decided = {each.name: verdict.tags(each)["ctvr.note"] for each in verdict.members} if verdict else {}
    made = []
    for run, is_on in zip(complete, on_front(complete, metrics, names_of(rule[1]))):
        found = UNCONFIRMED if is_on else "not on the Pareto front of the search"
        tags = {"ctvr.note": decided.get(run.name, found), EXTRA_COLUMNS: _columns(metrics)}
        made.append(replace(run, tags={**run.tags, **tags}))
    return [*made, *(run for run in runs if run not in complete)]


def describe_front(runs: Sequence[RunRecord], rule: tuple[str, str]) -> str:
    """Return the Pareto front of a search as a table, before it is confirmed.

    Args:
        runs: complete trials, the best first.
        rule: metrics and modes of the search, comma-separated.
    """
    metrics = names_of(rule[0])
    front = front_of(runs, rule)
    rows = [[run.name, *(_cell([last_value(run, metric)]) for metric in metrics)] for run in front]
    title = f"Pareto front: {len(front)} of {len(runs)} complete trials"
    return _align_rows(title, metrics, rows)


def confirm_front(
    sweep: str,
    groups: Mapping[str, Sequence[RunRecord]],
    ranks: Mapping[str, Ranks],
    rule: tuple[str, str],
    order: Sequence[str],
) -> FrontResult:
    """Compute the Pareto front of candidates from their runs over new seeds.

    Args:
        sweep: name of the sweep.
        groups, ranks, order: see `comparison.compare_candidates`.
        rule: metrics and modes of the search, comma-separated.
    """
    metrics, modes = names_of(rule[0]), names_of(rule[1])
    names = [RECOMMENDED, *(name for name in order if name in groups)]
    values = {
        name: tuple(tuple(last_value(run, metric) for run in groups[name]) for metric in metrics) for name in names
    }
    losses = {name: losses_of([mean(each) for each in values[name]], modes) for name in names}
    members = []
    for name in sorted(names, key=lambda name: losses[name]):
        better = [other for other in names if dominates(losses[other], losses[name])]
        best = min(better, key=lambda other: losses[other], default="")
        is_sure = not best or any(
            _differs(groups[name], groups[best], metric, ranks, losses[name][index] - losses[best][index])
            for index, metric in enumerate(metrics)
        )
        members.append(Member(name, experiment_of(groups[name][0]), values[name], best, is_sure))
    return FrontResult(sweep, metrics, tuple(members), len(groups[RECOMMENDED]))


def _differs(
    base: Sequence[RunRecord], other: Sequence[RunRecord], metric: str, ranks: Mapping[str, Ranks], gain: float
) -> bool:
    """Return whether the observed `gain` of `other` over `base` in a metric is positive and significant.

    Costs do not depend on the seed, so a positive gain in a cost is not tested.
    """
    if gain <= 0:
        return False
    return metric.startswith(COSTS) or compare(base, [other], ranks, (metric, "max"))[0].p < LEVEL
