"""Origin of a value in a table: runs, files of ranks, keys, commits, and the commands that repeat the runs."""

from __future__ import annotations

import csv

from ctvr.orchestrator.config import closest, suggest
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.runs import find_record, repeat_command
from ctvr.orchestrator.tables.table_columns import PRINTED, SCALE
from ctvr.orchestrator.text_files import read_text
from ctvr.orchestrator.tracking.run_record import RunRecord

ENDS = ("_std", "_paper", "_minus_paper", "_vs_best")  # suffixes of derived columns
OTHERS = {"stream", "method", "label", "n", "seeds", "trials", "marks", "differs", "settings", "runs", "paper_source"}


def explain_cell(table: str, row: str, column: str, execution: ExecutionConfig) -> str:
    """Describe the origin of one value in a table that `ctvr table` has written.

    Args:
        table: name of the table's sweep or stream.
        row: name of the row, as printed.
        column: title (`R@1`) or key (`stream/t2v/r1`) of the column.
        execution: the runs folder.

    Raises:
        ConfigError: for a table, a row or a column that does not exist; the message suggests the most similar name.
    """
    folder = execution.runs.resolve() / "tables"
    known = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
    if table not in known:
        from ctvr.orchestrator.sweeps.table import no_runs_of  # imports NumPy

        tracker = execution.existing_tracker()
        if not (tracker.find_sweep(table) or tracker.find_runs(stream=table)):
            raise ConfigError(no_runs_of(table, tracker), "runs explain")
        remedy = f"{suggest(table, known)} Run: ctvr table {table}".strip()
        raise ConfigError(f"table {table!r} does not exist", "runs explain", remedy=remedy)
    files = sorted((folder / table).glob("*.csv"))
    rows = [line for file in files for line in csv.DictReader(read_text(file).splitlines())]
    labels = [line["label"] for line in rows]
    if row not in labels:
        remedy = f"{suggest(row, labels)} Rows: {', '.join(labels)}.".strip()
        raise ConfigError(f"no row {row!r} in {table}", "runs explain", remedy=remedy)
    found = rows[labels.index(row)]
    metrics = [name for name in found if name not in OTHERS and not name.endswith(ENDS)]
    key = _find_column(column, metrics)
    if not key:
        some = ", ".join(metrics[:8])
        raise ConfigError(f"no column {column!r} in {table}", "runs explain", remedy=f"Columns: {some}, ...")
    mean = f"{found[key]}, the mean of {count(int(found['n']), 'seed')} (std {found[key + '_std']})"
    lines = [f"{key} of {row} in table {table}: {mean}"]
    lines += [f"settings    {found['settings']}"] if found["settings"] else []
    tracker = execution.existing_tracker()
    for seed, run_id in zip(found["seeds"].split(), found["runs"].split()):
        lines += _describe_run(f"seed {seed}", key, find_record(run_id, tracker), execution)
    return "\n".join(lines)


def _describe_run(title: str, key: str, run: RunRecord, execution: ExecutionConfig) -> list[str]:
    """Describe one run of a row in lines: value, key, stream, commit, files, and the command that repeats the run."""
    tags, folder = run.tags, run.folder
    value = value_of(run, key)
    lines = [
        f"{title}: {'not recorded' if value is None else f'{value:.4f}'}, run {run.name} ({run.run_id})",
        f"  key       {tags.get('ctvr.result', 'unknown')} (its parts: ctvr runs explain {run.run_id[:8]})",
        f"  stream    digest {tags.get('ctvr.stream_digest', 'unknown')}",
        f"  commit    {tags.get('ctvr.commit', 'unknown')}",
    ]
    for name, file in (("ranks", "ranks.json"), ("versions", "environment.json")):
        if folder is not None and (folder / file).is_file():
            lines.append(f"  {name:<10}{folder / file}")
    if command := repeat_command(run, execution):
        lines.append(f"  repeat    {command}")
    return lines


def value_of(run: RunRecord, key: str) -> float | None:
    """Return a run's last value of the metric of a column, in the column's unit; None if it was not recorded."""
    metrics = [f"stream/t2v/{key}", f"stream/{key}", key, *([PRINTED[key][1]] if key in PRINTED else [])]
    last = next((found for metric in metrics if (found := run.last(metric))), None)
    return None if last is None else last[1] * SCALE.get(key, 1)


def _find_column(name: str, metrics: list[str]) -> str:
    """Return the metric key that a column title or key names, such as `stream/t2v/r1` for `R@1`; "" if unknown."""
    typed = name.lower().replace("@", "").removesuffix("↑").removesuffix("↓").strip()
    exact = [key for key in metrics if typed in (key.lower(), key.lower().rpartition("/")[2])]
    return exact[0] if exact else closest(typed, metrics, 0.8)
