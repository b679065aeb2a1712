"""Note of a complete run for MLflow's pages: its results, its matrix of R@1, and the next commands."""

from __future__ import annotations

from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tracking.mlflow_ui import code, plain
from ctvr.orchestrator.tracking.outbox import OFFLINE

MOST_COLUMNS = 10  # a wider table does not fit next to MLflow's column of tags


def run_note(experiment: Experiment, stream: Stream, record: RunState, run_id: str) -> str:
    """Return the note as Markdown.

    Args:
        experiment: experiment of the run.
        stream: stream of the run.
        record: state of the run after the last task.
        run_id: id of the run in MLflow; commands cannot use an id that begins with OFFLINE.
    """
    split, last, epochs = experiment.evaluation.split, len(stream.tasks), experiment.optim.epochs
    items = sum(len(getattr(task, split)) for task in stream.tasks)
    trained = ", trained without gradients" if experiment.capabilities.learns_in_end_task else ", not trained"
    if experiment.trains_by_gradients:
        trained = f", {epochs} epoch{'s' * (epochs != 1)} per task"
    value = "R@1" if stream.domain == "videos" else "Accuracy"
    lines = [
        f"**{' '.join(progress_text(record.metrics[-1]).split())}**",
        f"{code(experiment.name)} on {plain(stream.name)}, after {last} tasks, on {items} {split} {stream.domain}; "
        f"seed {experiment.run.seed}{trained}.",
    ]
    if last <= MOST_COLUMNS:
        lines += [f"{value} of each task (column) in its own gallery, after each task (row):", _table(record.own)]
    name = code(stream.name)[1:-1]
    commands = [
        f"- compare it with the other runs of its stream: `ctvr table {name}`; with pictures: `ctvr report {name}`",
        "- train it again from `config.json` under Artifacts: `ctvr run --config config.json --fresh`",
    ]
    if not run_id.startswith(OFFLINE):
        commands.append(f"- files, and where its numbers come from: `ctvr runs show {run_id[:8]}`")
    return "\n\n".join([*lines, "\n".join(commands)])


def _table(matrix: list[list[float]]) -> str:
    """Return a matrix (row: task learned, column: task tested) as a Markdown table."""
    heads = [f"&ensp;task {column + 1}" for column in range(len(matrix[-1]))]
    rows = [["after", *heads], ["---:"] * (len(heads) + 1)]
    for number, values in enumerate(matrix, 1):
        cells = [f"&ensp;{value:.1f}" for value in values] + [""] * (len(heads) - len(values))  # not padded by MLflow
        rows.append([f"task {number}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
