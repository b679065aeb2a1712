"""Data model of a results table: columns, rows, bold cells. Formatting: formats.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ctvr.orchestrator.console import format_duration

MISSING = "n/a"
LEVEL = 0.05  # p below which a difference gets a star
TRIALS_NOTE = (
    "Trials: search trials of the row, plus trials by hand that chose its recipe for this stream (?: not all, or none, "
    "are recorded). Time: total over all tasks of its search trials and reruns."
)
# Titles of a table's blocks, in order, by the data that training reads besides the pairs of the current task. Rows are
# compared within their block only, and joint training is not compared
ACCESS = {
    "": "Trains on the current task",
    "searched": "Trains on features of searched videos",
    "videos": "Keeps pairs of earlier tasks",
    "videos+searched": "Keeps pairs of earlier tasks, trains on features of searched videos",
    "joint": "Trains on all tasks at once",
}


@dataclass(frozen=True)
class Value:
    """A mean over seeds with its sample standard deviation (n - 1); NaN where it is unknown."""

    mean: float = math.nan
    std: float = math.nan


@dataclass(frozen=True)
class Column:
    """One metric. `better` gives the direction in which a value is bold; empty: none is."""

    key: str
    title: str
    better: Literal["up", "down", ""] = ""
    digits: int = 2


@dataclass(frozen=True)
class Difference:
    """R@1 of a row minus that of another, in points, with its 95 % interval and p."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    detectable: float = math.nan  # true difference that this comparison detects with a power of 80 %

    def turned(self) -> Difference:
        """Return the difference in the opposite direction."""
        return Difference(-self.value, -self.high, -self.low, self.p, self.detectable)

    def __str__(self) -> str:
        star = "*" if self.p < LEVEL else ""
        p = "p<0.001" if self.p < 0.001 else f"p={self.p:.3f}"
        if math.isinf(self.low):
            return f"{_fixed(self.value, 2)} [interval not known]"
        return f"{self.with_bounds()} {p}{star}"

    def with_bounds(self) -> str:
        """Return the difference and its interval."""
        return f"{_fixed(self.value, 2)} [{_fixed(self.low, 2)}, {_fixed(self.high, 2)}]"


@dataclass(frozen=True)
class Row:
    """One method in one configuration, averaged over its seeds, with the paper's numbers."""

    label: str
    method: str
    values: Mapping[str, Value]
    seeds: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # MLflow run ids, in the order of `seeds`
    marks: tuple[str, ...] = ()  # caveats of our numbers
    settings: Mapping[str, str] = field(default_factory=dict)  # distinguishes it from other rows of the same method
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # setting -> (our value, the paper's)
    differs_from: str = ""  # the part of its paper that it is compared with
    extra: Mapping[str, Value] = field(default_factory=dict)  # every other final metric, for the CSV
    intervals: Mapping[str, Difference] = field(default_factory=dict)  # column -> difference that it shows
    vs_best: Difference | None = None  # R@1 minus that of its block's best row; p and interval are simultaneous
    is_reference: bool = False  # True: best R@1 among the compared rows of its block
    access: str = ""  # its block, a key of ACCESS
    is_transductive: bool = False  # True: a query's result depends on the other queries
    trials: int | None = None  # number of search trials; None: not recorded
    by_hand: str = ""  # trials by hand of its recipe; `?`: some or all are not recorded
    seconds: float = math.nan  # total time of its trials and runs
    place: int = 0  # position in a table with a given order
    paper: Mapping[str, Value] = field(default_factory=dict)
    paper_source: str = ""
    paper_marks: tuple[str, ...] = ()
    curve: tuple[tuple[int, float, float], ...] = ()  # (tasks learned, mean R@1, std)
    matrices: Mapping[str, list[list[float]]] = field(default_factory=dict)  # name -> mean over seeds
    orders: Mapping[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)  # key -> (order, ., .)
    training: Mapping[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)  # name -> (epoch, ., .)


@dataclass(frozen=True)
class Table:
    """All rows of one stream."""

    stream: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    title: str = ""
    varies: tuple[str, ...] = ()  # settings that rows change one at a time

    @property
    def heading(self) -> str:
        return f"{self.stream}: {self.title}" if self.title else self.stream

    @property
    def measured(self) -> str:
        """Return the metric of curves and matrices, in percent: R@1, or accuracy for images."""
        return "accuracy" if any(column.key == "accuracy" for column in self.columns) else "R@1"

    def cost_cells(self, row: Row) -> list[str]:
        """Return the last cells of a row: trials searched and time; empty if they are recorded for no row."""
        if all(each.trials is None for each in self.rows):
            return []
        searched = MISSING if row.trials is None else str(row.trials)
        return [f"{searched} + {row.by_hand}" if row.by_hand else searched, format_duration(row.seconds)]

    @property
    def comparison_titles(self) -> list[str]:
        """Return the title of the column of `comparison_cells`; empty if no rows were compared."""
        return ["R@1 vs best"] if any(row.vs_best for row in self.rows) else []

    def comparison_cells(self, row: Row) -> list[str]:
        """Return the row's difference from the best one; empty if no rows were compared."""
        if not self.comparison_titles:
            return []
        return ["best" if row.is_reference else str(row.vs_best) if row.vs_best else "not compared"]

    @property
    def blocks(self) -> list[tuple[str, tuple[Row, ...]]]:
        """Return the rows of each kind of access with the title of their block, which is empty if there is only one."""
        kinds = {access: tuple(row for row in self.rows if row.access == access) for access in ACCESS}
        found = [(title, kinds[access]) for access, title in ACCESS.items() if kinds[access]]
        return found if len(found) > 1 else [("", self.rows)]

    def best(self, access: str = "") -> dict[str, float]:
        """Map column keys to the best mean of a block's competing rows, as printed; only columns with two or more."""
        found: dict[str, float] = {}
        rows = [row for row in self.rows if row.access == access]
        for column in self.columns:
            means = [row.values.get(column.key, Value()).mean for row in rows if competes(row, column)]
            means = [round(mean, column.digits) for mean in means if math.isfinite(mean)]
            if column.better and len(means) > 1:
                found[column.key] = max(means) if column.better == "up" else min(means)
        return found

    def is_best(self, row: Row, column: Column) -> bool:
        """Report whether this cell is printed bold."""
        mean, best = row.values.get(column.key, Value()).mean, self.best(row.access)
        return competes(row, column) and column.key in best and round(mean, column.digits) == best[column.key]


def competes(row: Row, column: Column) -> bool:
    """Report whether a row can win a column of its block.

    Joint training sees all data at once, a transductive row sees the other queries, and an untrained row can neither
    forget nor cost training.
    """
    is_of_training = column.key.rpartition("/")[2] in {"bwf", "fr", "train_gmacs"}
    if row.access == "joint" or (row.is_transductive and column.key != "params_m"):
        return False
    is_trained = row.method != "zero_shot" and row.values.get("params_m", Value()).mean != 0
    return is_trained or not is_of_training


def cell(row: Row, column: Column) -> str:
    """Format a cell as `number` does, or as `-1.04 [-3.81, 1.73]` where the row has an interval of this column."""
    if (known := row.intervals.get(column.key)) is None:
        return number(row.values.get(column.key, Value()), column.digits)
    return known.with_bounds()


def number(value: Value, digits: int = 2, sign: str = "±") -> str:
    """Format as `25.87±0.33`, as the papers do; only the mean without a known std; `n/a` without a mean."""
    if not math.isfinite(value.mean):
        return MISSING
    mean = _fixed(value.mean, digits)
    return f"{mean}{sign}{value.std:.{digits}f}" if math.isfinite(value.std) else mean


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text  # avoids -0.00
