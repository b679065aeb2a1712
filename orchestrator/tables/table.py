"""Data model of a results table: columns, rows, bold cells. formats.py formats it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ctvr.orchestrator.console import format_duration

MISSING = "n/a"
LEVEL = 0.05  # p below which a difference gets a star
TRIALS_NOTE = (
    "Trials: number of search trials of the row, plus the number of trials by hand that chose its recipe for this "
    "stream (?: some or all of these are not recorded). Time: total time of all tasks of its search trials and reruns."
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
    """A mean over seeds with its sample standard deviation (n - 1). Either is NaN if it is unknown."""

    mean: float = math.nan
    std: float = math.nan


@dataclass(frozen=True)
class Column:
    """A column with one metric. `better` is the direction of better values; if it is empty, no value is bold."""

    key: str
    title: str
    better: Literal["up", "down", ""] = ""
    digits: int = 2


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two rows (of R@1: in points), with its 95 % interval and p."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    detectable: float = math.nan  # true difference that this comparison detects with a power of 80 %

    def turned(self) -> Difference:
        """Return the difference with the opposite sign: the second row minus the first."""
        return Difference(-self.value, -self.high, -self.low, self.p, self.detectable)

    def __str__(self) -> str:
        star = "*" if self.p < LEVEL else ""
        p = "p<0.001" if self.p < 0.001 else f"p={self.p:.3f}"
        if math.isinf(self.low):
            return f"{_fixed(self.value, 2)} [interval not known]"
        return f"{self.with_bounds()} {p}{star}"

    def with_bounds(self) -> str:
        """Return the difference and its interval as text: `-1.04 [-3.81, 1.73]`."""
        return f"{_fixed(self.value, 2)} [{_fixed(self.low, 2)}, {_fixed(self.high, 2)}]"


@dataclass(frozen=True)
class Row:
    """A row: one method in one configuration, averaged over seeds, with the published numbers."""

    label: str
    method: str
    values: Mapping[str, Value]
    seeds: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()  # MLflow run ids, in the order of `seeds`
    marks: tuple[str, ...] = ()  # caveats of our numbers
    settings: Mapping[str, str] = field(default_factory=dict)  # settings that differ between rows of the method
    differs: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # setting -> (our value, the paper's)
    differs_from: str = ""  # the paper run with which the row is compared, as text
    recorded: Mapping[str, Value] = field(default_factory=dict)  # every final metric, by the name that runs record
    extra: Mapping[str, Value] = field(default_factory=dict)  # those that are not in `values`, for the CSV
    intervals: Mapping[str, Difference] = field(default_factory=dict)  # column -> difference that the cell shows
    vs_best: Difference | None = None  # R@1 minus R@1 of the best row of the block, simultaneous
    is_reference: bool = False  # True: best R@1 among the compared rows of its block
    access: str = ""  # the block of the row, a key of ACCESS
    is_transductive: bool = False  # True: a query's result depends on the other queries
    trials: int | None = None  # number of search trials; None: not recorded
    by_hand: str = ""  # number of trials by hand of the recipe; `?`: some or all are not recorded
    seconds: float = math.nan  # total time of the trials and runs of the row
    place: int = 0  # position of the row in a table preset
    paper: Mapping[str, Value] = field(default_factory=dict)
    paper_source: str = ""
    paper_marks: tuple[str, ...] = ()
    curve: tuple[tuple[int, float, float], ...] = ()  # (tasks learned, mean R@1, std)
    gains: tuple[tuple[int, float, float], ...] = ()  # (tasks learned, mean R@1 minus zero-shot CLIP's R@1, std)
    ranks: tuple[tuple[int, float], ...] = ()  # (k, percent of queries whose match is among the first k)
    matrices: Mapping[str, list[list[float]]] = field(default_factory=dict)  # title -> mean over seeds
    orders: Mapping[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)  # key -> (order, ., .)
    training: Mapping[str, tuple[tuple[int, float, float], ...]] = field(default_factory=dict)  # name -> (epoch, ., .)


@dataclass(frozen=True)
class Table:
    """A table of results: all rows of one stream."""

    stream: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    title: str = ""
    varies: tuple[str, ...] = ()  # settings that rows change one at a time
    galleries: tuple[int, ...] = ()  # number of searched videos of each task; empty if unknown

    @property
    def heading(self) -> str:
        return f"{self.stream}: {self.title}" if self.title else self.stream

    @property
    def measured(self) -> str:
        """Return the metric of curves and matrices, in percent: R@1, or accuracy for images."""
        return "accuracy" if any(column.key == "accuracy" for column in self.columns) else "R@1"

    def cost_cells(self, row: Row) -> list[str]:
        """Return the last cells of a row: search trials and time. Return [] if no row has recorded trials."""
        if all(each.trials is None for each in self.rows):
            return []
        searched = MISSING if row.trials is None else str(row.trials)
        return [f"{searched} + {row.by_hand}" if row.by_hand else searched, format_duration(row.seconds)]

    @property
    def comparison_titles(self) -> list[str]:
        """Return the title of the column of `comparison_cells`, or [] if no rows were compared."""
        return ["R@1 vs best"] if any(row.vs_best for row in self.rows) else []

    def comparison_cells(self, row: Row) -> list[str]:
        """Return the cell with the difference of a row from the best row, or [] if no rows were compared."""
        if not self.comparison_titles:
            return []
        return ["best" if row.is_reference else str(row.vs_best) if row.vs_best else "not compared"]

    @property
    def blocks(self) -> list[tuple[str, tuple[Row, ...]]]:
        """Return (title, rows) of each block: rows with equal access to data. A single block has the title ""."""
        kinds = {access: tuple(row for row in self.rows if row.access == access) for access in ACCESS}
        found = [(title, kinds[access]) for access, title in ACCESS.items() if kinds[access]]
        return found if len(found) > 1 else [("", self.rows)]

    def best(self, access: str = "") -> dict[str, float]:
        """Map column keys to the best mean, rounded as printed, of the rows of a block that compete in the column.

        Columns in which fewer than two rows compete are omitted.
        """
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

    Joint training uses all data at once, a transductive row uses the other queries, and an untrained row can neither
    forget nor have a cost of training.
    """
    is_of_training = column.key.rpartition("/")[2] in {"bwf", "fr", "train_gmacs"}
    if row.access == "joint" or (row.is_transductive and column.key != "params_m"):
        return False
    is_trained = row.method != "zero_shot" and row.values.get("params_m", Value()).mean != 0
    return is_trained or not is_of_training


def cell(row: Row, column: Column) -> str:
    """Format a cell as `number` does, or as `-1.04 [-3.81, 1.73]` if the row has an interval in this column."""
    if (known := row.intervals.get(column.key)) is None:
        return number(row.values.get(column.key, Value()), column.digits)
    return known.with_bounds()


def number(value: Value, digits: int = 2, sign: str = "±") -> str:
    """Format a value as `25.87±0.33`, as `25.87` if the std is unknown, or as `n/a` if the mean is unknown."""
    if not math.isfinite(value.mean):
        return MISSING
    mean = _fixed(value.mean, digits)
    return f"{mean}{sign}{value.std:.{digits}f}" if math.isfinite(value.std) else mean


def decimals(value: float, most: int) -> int:
    """Return the number of decimals, at most `most`, with which a value has at most four significant digits."""
    if not math.isfinite(value) or abs(value) < 1:
        return most
    return max(0, min(most, 3 - int(math.log10(abs(value)))))


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text  # avoids -0.00
