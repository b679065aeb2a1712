"""Results of the functions of `ctvr`: a run and a sweep."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.retrieval.model import Model


@dataclass(frozen=True, repr=False)
class Run:
    """A complete run. Values of R@1 are in percent."""

    run_id: str  # MLflow's run id
    method: str
    stream: str
    settings: dict[str, Any]  # every setting, flat and dotted
    metrics: dict[str, float]  # after the last task, as in MLflow
    own: list[list[float]]  # R@1 of task i among its own videos after task t: own[t][i], i <= t
    union: list[list[float]]  # R@1 of task i among all videos stored after task t: union[t][i]
    ranks: dict[str, float]  # query "<video>#<number of the caption>" -> rank, 1 if found first; a tie counts 1/2
    history: list[dict[str, float]]  # metrics after each task
    execution: ExecutionConfig

    def __repr__(self) -> str:
        """Return one line: method, stream, results after the last task, run id."""
        from ctvr.orchestrator.streams.metric_names import progress_text

        return f"Run({self.method} on {self.stream}: {progress_text(self.metrics)}, run {self.run_id[:8]})"

    def _repr_html_(self) -> str:
        """Return the line of `repr` and the two matrices of R@1 (%) as HTML, for notebooks."""
        from ctvr.orchestrator.pages.matrix_html import notebook_html

        return notebook_html(repr(self), {"own gallery": self.own, "all galleries so far": self.union})

    def plot(self) -> Any:
        """Return a matplotlib figure: mean R@1 (%) after each task, among own videos and among all videos so far."""
        from ctvr.orchestrator.figures.plots import Line, Panel, draw

        matrices = {"own gallery": self.own, "all videos so far": self.union}
        lines = [
            Line(name, self.method, [(task, sum(row) / len(row), float("nan")) for task, row in enumerate(matrix, 1)])
            for name, matrix in matrices.items()
        ]
        return draw([Panel("tasks learned", "mean R@1 of the tasks (%)", lines)], f"{self.method} on {self.stream}")

    def frame(self) -> Any:
        """Return the metrics after each task: a row for each learned task, a column for each metric."""
        return as_frame([{"task": number, **row} for number, row in enumerate(self.history, 1)])

    def model(self) -> Model:
        """Load the trained model of this run, which searches videos by text."""
        from ctvr.orchestrator.jobs.load_model import load as find

        return find(self.run_id, self.execution)


@dataclass(frozen=True, repr=False)
class Sweep:
    """A finished sweep. `text` is the command's output: the winner, its confirmation, the table."""

    name: str
    text: str
    execution: ExecutionConfig

    def __repr__(self) -> str:
        """Return one line with the name. `print(sweep.text)` shows the winner, its confirmation and the table."""
        return f"Sweep({self.name})"

    def trials(self) -> Any:
        """Return a row for each complete trial, best first: settings, R@1 (%), metrics of the search, run id."""
        from ctvr.orchestrator.sweeps.selection import best_trials, selection_metric

        sweep = self.execution.tracker().find_sweep(self.name)
        metrics = selection_metric(sweep)[0].replace(" ", "").split(",") if sweep else []
        rows = []
        for run in best_trials(self.execution.tracker(), self.name, None):
            values = {key: last[1] for key in (*metrics, "stream/t2v/r1") if (last := run.last(key))}
            rows.append({"run_id": run.run_id, "name": run.name, **values, **run.settings})
        return as_frame(rows)

    def model(self) -> Model:
        """Return the model of the best trial, which has seed 0 and was selected on validation videos.

        With several objectives, it is the trial of the Pareto front with the best first objective.
        """
        from ctvr.orchestrator.jobs.load_model import load as find

        return find(self.name, self.execution)


def as_frame(rows: list[dict[str, Any]]) -> Any:
    """Return rows as a pandas data frame if pandas is installed, otherwise unchanged."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
