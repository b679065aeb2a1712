"""The searched settings and the trials of a search, and the marks of trials in its charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ctvr.orchestrator.tables.table import MISSING

STAR = "M0 -7L1.8 -2.2L7 -2.2L2.9 1L4.3 6L0 3L-4.3 6L-2.9 1L-7 -2.2L-1.8 -2.2z"
CIRCLE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"


@dataclass(frozen=True)
class SearchedSetting:
    """One setting of the searched space: listed values, or a range."""

    name: str
    values: tuple[str, ...] = ()
    low: float = math.nan
    high: float = math.nan
    is_log: bool = False
    is_known: bool = True  # False: the record has no space, so the range covers the values tried

    def place(self, value: str) -> float:
        """Return the position of a value: 0 to 1 in the range. It is NaN for an unlisted value or text."""
        if self.values:
            return (self.values.index(value) + 0.5) / len(self.values) if value in self.values else math.nan
        try:
            number = float(value)
            if self.is_log:
                return math.log(number / self.low) / math.log(self.high / self.low)
            return (number - self.low) / (self.high - self.low)
        except (ValueError, ZeroDivisionError):
            return math.nan

    def __str__(self) -> str:
        if self.values:
            return ", ".join(map(round_number, self.values))
        text = f"{self.low:.3g} to {self.high:.3g}" + (" (log scale)" if self.is_log else "")
        return text if self.is_known else f"{text}, as tried"


@dataclass(frozen=True)
class Trial:
    """One trial. `value` is the metric of the search after task `tasks`, the last task that the trial learned."""

    number: str
    settings: Mapping[str, str]
    value: float
    tasks: int
    state: str  # "complete", "stopped: halving after task 2", ...
    is_complete: bool
    is_winner: bool = False
    history: tuple[tuple[int, float], ...] = ()  # (tasks learned, metric)

    @property
    def kind(self) -> str:
        return "winner" if self.is_winner else "complete" if self.is_complete else "stopped"

    @property
    def result(self) -> str:
        """Return the value as text, or `n/a` without a value. The text of an incomplete trial states its last task."""
        if not math.isfinite(self.value):
            return MISSING
        return f"{self.value:+.2f}" if self.is_complete else f"after task {self.tasks}: {self.value:+.2f}"


@dataclass(frozen=True)
class SearchedSpace:
    """The searched settings and all trials. `metric` is the name and the unit of the values of trials."""

    settings: tuple[SearchedSetting, ...]
    trials: tuple[Trial, ...]
    metric: str
    is_front: bool = False  # the winners are the trials of a Pareto front
    less_is_better: bool = False

    @property
    def last_task(self) -> int:
        """Return the task after which the charts compare trials: the last task with a value.

        Values after other tasks are of other galleries.
        """
        return max([trial.tasks for trial in self.trials if math.isfinite(trial.value)], default=0)

    def is_on_scale(self, trial: Trial) -> bool:
        return trial.tasks == self.last_task and math.isfinite(trial.value)


def round_number(value: str) -> str:
    """Round a number to three significant digits. Return other values unchanged."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def point(kind: str, x: float, y: float) -> str:
    """Return the mark (SVG) of a trial at (x, y): a star, a filled or an open circle, which differ also in gray."""
    look = {
        "winner": (STAR, 'fill="var(--c1)" stroke="var(--page)"'),
        "complete": (CIRCLE, 'fill="var(--c0)"'),
        "stopped": (CIRCLE, 'fill="none" stroke="var(--soft)" stroke-width="1.5"'),
    }
    shape, ink = look[kind]
    return f'<path d="{shape}" transform="translate({x} {y})" {ink}/>'
