"""From MLflow's records to tables and figures, with the published numbers beside ours.

A number of a table is the mean over seeds of the metrics after the last task, of complete runs only (tag
`ctvr.complete`), with the sample standard deviation. Nothing here reads a checkpoint.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.config import ConfigError
from orchestrator.table import Column, Row, Table, Value, number, to_csv, to_latex, to_markdown
from orchestrator.unpublished import footnote

if TYPE_CHECKING:
    from orchestrator.tracking import RunRecord, Tracker

__all__ = [
    "build",
    "collect",
    "holm",
    "number",
    "paired_bootstrap",
    "paper_numbers",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write",
]

PAPER_FOLDER = Path(__file__).parent / "paper_numbers"
PARAMETERS = "cost/trained_parameters"
INCIDENTAL = {"seed", "data.load_threads", "evaluation.batch_size", "evaluation.chunk"}  # do not set runs apart
COLUMNS = (
    Column("r1", "R@1", "up"),
    Column("r5", "R@5", "up"),
    Column("r10", "R@10", "up"),
    Column("medr", "MedR", "down"),
    Column("meanr", "MeanR", "down"),
    Column("bwf", "BWF", "down"),
    Column("params_m", "Params (M)"),
)
OVERALL = (Column("r1", "R@1", "up"), Column("fr", "FR", "down"), Column("hm", "HM", "up"))  # CVLM
TEXTS = {
    "best": "the epoch kept for each task is the best one on the reported {split} videos (best-on-test)",
    "best_val": "the epoch kept for each task is the best one on the validation videos",
    "val": "measured on validation videos",
    "transductive": "transductive scoring: a query's result depends on the other queries of the test set",
    "searched": "settings are the best of {n} trials",
    "backbone": "backbone {name}, the paper has ViT-B/32",
    "tied": "R@1 is not distinguishable from the best (paired bootstrap over queries, Holm-corrected p >= 0.05)",
}


# --- statistics ---------------------------------------------------------------------------------------------


def paired_bootstrap(
    ranks_a: Sequence[float] | np.ndarray, ranks_b: Sequence[float] | np.ndarray, seed: int = 0, samples: int = 10_000
) -> float:
    """Two-sided p that the R@1 of two methods differs, over resampled queries.

    The queries are drawn with replacement; the p is the share of resampled differences that lie further from the
    observed one than the observed one lies from zero. It speaks of the queries; seeds are averaged before.

    Args:
        ranks_a: (Q,) or (S, Q), 1 = found first; the same queries in the same order as `ranks_b`.
        ranks_b: the other method's.
        seed: of the resampling.

    Raises:
        ValueError: if the numbers of queries differ or are zero.
    """
    a, b = (np.atleast_2d(np.asarray(ranks, float)) for ranks in (ranks_a, ranks_b))
    if a.shape[-1] != b.shape[-1] or a.size == 0:
        raise ValueError(f"ranks of {a.shape[-1]} and {b.shape[-1]} queries cannot be paired.")
    difference = (a <= 1).mean(axis=0) - (b <= 1).mean(axis=0)  # (Q,)
    observed = abs(float(difference.mean()))
    steps, counts = np.unique(difference, return_counts=True)  # few: resampling counts equals resampling queries
    total = len(difference)
    drawn = np.random.default_rng(seed).multinomial(total, counts / total, size=samples) @ steps / total
    further = int((np.abs(drawn - difference.mean()) >= observed - 1e-12).sum())
    return (further + 1) / (samples + 1)


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values for as many comparisons; the order is kept."""
    order = sorted(range(len(pvalues)), key=lambda index: pvalues[index])
    corrected, largest = [0.0] * len(pvalues), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(pvalues) - place) * pvalues[index]))
        corrected[index] = largest
    return corrected


# --- records to rows ----------------------------------------------------------------------------------------


def collect(records: Iterable[RunRecord], ranks: Mapping[str, Mapping[str, float]] | None = None) -> list[Row]:
    """One row per method and settings, over its seeds; incomplete runs are left out.

    Args:
        records: runs of one stream.
        ranks: run id -> query -> final rank, for the comparison with the best row.
    """
    groups: dict[tuple[Any, ...], dict[str, RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.tags.get("ctvr.complete") == "true":
            own = tuple(sorted((k, str(v)) for k, v in record.settings.items() if k not in INCIDENTAL))
            tags = tuple(record.tags.get(tag, "") for tag in ("ctvr.note", "ctvr.transductive"))
            seed = str(record.settings.get("seed", "0"))
            groups.setdefault((_method(record), own, tags), {})[seed] = record  # a seed run twice counts once
    rows = [_row(list(group.values())) for group in groups.values()]
    rows = [_with_paper(row, next(iter(group.values()))) for row, group in zip(rows, groups.values())]
    rows = _named(rows, list(groups.values()))
    rows.sort(key=lambda row: (_place(row.method), row.label))
    is_ctvr = all(_protocol(next(iter(group.values()))) == "ctvr" for group in groups.values())
    return _compared(rows, ranks) if ranks and is_ctvr else rows  # CVLM's R@1 is a mean over galleries, not queries


def build(tracker: Tracker, records: Sequence[RunRecord]) -> list[Table]:
    """The tables of these runs, one per stream; their stored ranks are read for the comparison with the best.

    Raises:
        ConfigError: if no run is complete.
    """
    complete = [record for record in records if record.tags.get("ctvr.complete") == "true"]
    if not complete:
        raise ConfigError(f"table: none of the {len(records)} runs is complete. `make ui` shows how far they are.")
    ranks = {record.run_id: found for record in complete if (found := _read_ranks(tracker, record.run_id))}
    return tables(records, ranks)


def tables(records: Sequence[RunRecord], ranks: Mapping[str, Mapping[str, float]] | None = None) -> list[Table]:
    """As `build`, from what was read before."""
    found = []
    for stream in sorted({_stream(record) for record in records}):
        of_stream = [record for record in records if _stream(record) == stream]
        rows = collect(of_stream, ranks)
        if not rows:
            continue
        left_out = sum(record.tags.get("ctvr.complete") != "true" for record in of_stream)
        notes = ["Mean and sample standard deviation over seeds, text to video, after the last task."]
        complete = [record for record in of_stream if record.tags.get("ctvr.complete") == "true"]
        if len({record.tags.get("ctvr.stream_digest", "") for record in complete}) > 1:
            notes.append("These runs saw different versions of the stream (tag ctvr.stream_digest): do not compare.")
        if left_out:
            notes.append(f"{left_out} incomplete runs are left out.")
        if any(row.paper for row in rows):
            paper = paper_numbers(of_stream[0].tags.get("ctvr.paper", "")) or {}
            notes += [f"Paper: {note}" for note in paper.get("notes", [])]
        found.append(Table(stream, _columns(rows, of_stream), tuple(rows), tuple(notes)))
    return found


def paper_numbers(name: str) -> dict[str, Any] | None:
    """The published numbers of a stream (`msrvtt-10`, ..., `cvlm`); None if there are none."""
    path = PAPER_FOLDER / f"{name}.json"
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def _row(runs: list[RunRecord]) -> Row:
    """Seeds of one configuration, averaged."""
    first = runs[0]
    finals = [_final(run) for run in runs]
    keys = dict.fromkeys(key for final in finals for key in final)
    means = {key: _mean([final.get(key, math.nan) for final in finals]) for key in keys}
    matrices = {
        name: _matrix(runs, suffix) for name, suffix in (("own gallery", "r1_own"), ("all galleries so far", "r1"))
    }
    if _protocol(first) == "cvlm":
        names = {"r1": "stream/t2v/r1_mean", "fr": "stream/t2v/fr", "hm": "stream/t2v/hm"}
        means |= _per_task(runs)
        curve = "stream/t2v/r1_mean"
    else:
        names = {column.key: f"stream/t2v/{column.key}" for column in COLUMNS[:-1]}
        curve = "stream/t2v/r1"
    values = {key: means.get(name, Value()) for key, name in names.items()}
    values |= {key: value for key, value in means.items() if re.fullmatch(r"task_\d+/(r1|fr)", key)}
    parameters = means.get(PARAMETERS, Value())
    values["params_m"] = Value(parameters.mean / 1e6, parameters.std / 1e6 if parameters.std else math.nan)
    return Row(
        label=_method(first),
        method=_method(first),
        values=values,
        seeds=tuple(str(run.settings.get("seed", "0")) for run in runs),
        runs=tuple(run.run_id for run in runs),
        marks=tuple(_marks(first)),
        extra={key: value for key, value in means.items() if key not in {*names.values(), *values}},
        curve=tuple(_curve(runs, curve)),
        matrices={name: matrix for name, matrix in matrices.items() if matrix},
    )


def _final(run: RunRecord) -> dict[str, float]:
    """Metrics after the last task; a stream metric that stopped earlier is unknown there."""
    last = {key: run.last(key) for key in run.metrics if key.startswith(("stream/", "task_", "cost/"))}
    done = max((point[0] for key, point in last.items() if point and key.startswith("stream/")), default=0)
    finals = {}
    for key, point in last.items():
        if point is not None:
            finals[key] = point[1] if point[0] == done or key.startswith("cost/") else math.nan
    return finals


def _mean(values: Sequence[float]) -> Value:
    """Mean and sample standard deviation; unknown as soon as one seed's value is."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Value(float(np.mean(values)), std)


def _curve(runs: Sequence[RunRecord], key: str) -> list[tuple[int, float, float]]:
    histories = [dict(run.metrics.get(key, [])) for run in runs]
    steps = sorted(set.intersection(*(set(history) for history in histories)))
    points = [(step, _mean([history[step] for history in histories])) for step in steps]
    return [(step, value.mean, value.std) for step, value in points if math.isfinite(value.mean)]


def _matrix(runs: Sequence[RunRecord], suffix: str) -> list[list[float]]:
    """R@1 of task i after task t as lower-triangular lists, the mean over seeds; empty if it is not known."""
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(rf"task_\d+/t2v/{suffix}", key))
    columns = [{step: mean for step, mean, _ in _curve(runs, key)} for key in keys]
    return [[column.get(t, math.nan) for column in columns[:t]] for t in range(1, len(keys) + 1)]


def _per_task(runs: Sequence[RunRecord]) -> dict[str, Value]:
    """CVLM: final R@1 of each task in its own gallery, and what was lost since it was learned."""
    found: dict[str, Value] = {}
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(r"task_\d+/t2v/r1_own", key))
    for index, key in enumerate(keys, start=1):
        task = key.partition("/")[0]
        histories = [dict(run.metrics.get(key, [])) for run in runs]
        found[f"{task}/r1"] = _mean([history.get(len(keys), math.nan) for history in histories])
        if index < len(keys):
            lost = [history.get(index, math.nan) - history.get(len(keys), math.nan) for history in histories]
            found[f"{task}/fr"] = _mean(lost)
    return found


def _marks(run: RunRecord) -> list[str]:
    """What a reader must know before believing the row."""
    tags, marks = run.tags, []
    split = str(run.settings.get("evaluation.split", tags.get("ctvr.split", "test")))
    if str(run.settings.get("evaluation.select", tags.get("ctvr.select", "last"))).startswith("best"):
        marks.append(TEXTS["best_val"] if split == "val" else TEXTS["best"].format(split=split))
    if split == "val":
        marks.append(TEXTS["val"])
    if tags.get("ctvr.mark"):
        marks.append(tags["ctvr.mark"])
    if tags.get("ctvr.transductive") == "true":
        marks.append(TEXTS["transductive"])
    if tags.get("ctvr.note"):
        marks.append(tags["ctvr.note"])
    method, _, trials = tags.get("ctvr.searched", "").partition(":")
    if trials and method == _method(run):
        marks.append(TEXTS["searched"].format(n=trials))
    if ours := footnote(run.settings):
        marks.append(ours)
    return marks


def _with_paper(row: Row, run: RunRecord) -> Row:
    """The row with the published numbers, where the run is on that benchmark and on its test videos."""
    paper = paper_numbers(run.tags.get("ctvr.paper", "")) or {}
    entry = paper.get("methods", {}).get(row.method)
    if entry is None or str(run.settings.get("evaluation.split", "test")) != "test":
        return row
    values = {key: _published(value) for key, value in entry["values"].items()}
    backbone = str(run.settings.get("backbone.name", "ViT-B-32"))
    marks = row.marks
    if paper["protocol"] == "ctvr" and not backbone.startswith("ViT-B-32"):
        marks += (TEXTS["backbone"].format(name=backbone),)
    return replace(
        row, marks=marks, paper=values, paper_source=entry["source"], paper_marks=tuple(entry.get("notes", ()))
    )


def _published(value: float | list[float | None]) -> Value:
    mean, std = value if isinstance(value, list) else (value, None)
    return Value(math.nan if mean is None else mean, math.nan if std is None else std)


def _named(rows: list[Row], groups: list[dict[str, RunRecord]]) -> list[Row]:
    """Labels that tell the rows of one method apart: its presets, else the settings that differ."""
    firsts = [next(iter(group.values())) for group in groups]
    named = []
    for row, first in zip(rows, firsts):
        others = [run for run in firsts if _method(run) == row.method]
        presets = {run.tags.get("ctvr.presets", "") for run in others}
        names = {name for run in others for name in run.settings} - INCIDENTAL
        differing = {
            name: str(first.settings.get(name, "unset"))
            for name in sorted(names)
            if len({str(run.settings.get(name, "unset")) for run in others}) > 1
        }
        label = row.method
        if len(others) > 1 and len(presets) == len(others):
            label += f" ({first.tags.get('ctvr.presets') or 'paper'})"
        elif differing:
            shown = ", ".join(f"{name}={value}" for name, value in list(differing.items())[:4])
            label += f" ({shown}{', ...' if len(differing) > 4 else ''})"
        named.append(replace(row, label=label, settings=differing))
    return named


def _compared(rows: list[Row], ranks: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Rows with p against the best R@1 and a mark where they cannot be told from it."""
    able = [row for row in rows if row.method != "upper_bound" and row.runs and all(run in ranks for run in row.runs)]
    able = [row for row in able if math.isfinite(row.values["r1"].mean)]
    if len(able) < 2:
        return rows
    best = max(able, key=lambda row: row.values["r1"].mean)
    queries = sorted(set.intersection(*(set(ranks[run]) for row in able for run in row.runs)))
    if not queries:
        return rows
    of = {id(row): np.array([[ranks[run][query] for query in queries] for run in row.runs]) for row in able}
    others = [row for row in able if row is not best]
    p = dict(zip(map(id, others), holm([paired_bootstrap(of[id(best)], of[id(row)]) for row in others])))
    return [
        replace(row, p_best=p[id(row)], marks=row.marks + ((TEXTS["tied"],) if p[id(row)] >= 0.05 else ()))
        if id(row) in p
        else row
        for row in rows
    ]


def _columns(rows: Sequence[Row], records: Sequence[RunRecord]) -> tuple[Column, ...]:
    if _protocol(records[0]) != "cvlm":
        return COLUMNS
    paper = paper_numbers(records[0].tags.get("ctvr.paper", "")) or {}
    tasks = sorted({key.partition("/")[0] for row in rows for key in row.values if key.startswith("task_")})
    named = dict(zip(tasks, paper.get("tasks", []))) if len(paper.get("tasks", [])) == len(tasks) else {}
    columns = list(OVERALL)
    for task in tasks:
        title = named.get(task, f"T{int(task[5:])}")
        columns.append(Column(f"{task}/r1", f"{title} R@1", "up"))
        if any(f"{task}/fr" in row.values for row in rows):
            columns.append(Column(f"{task}/fr", f"{title} FR", "down"))
    return (*columns, COLUMNS[-1])


def _place(method: str) -> tuple[int, int]:
    """The papers' order: zero-shot first, the upper bound last."""
    order = [*(paper_numbers("msrvtt-10") or {}).get("methods", {}), *(paper_numbers("cvlm") or {}).get("methods", {})]
    if method == "upper_bound":
        return 2, 0
    return (0, order.index(method)) if method in order else (1, 0)


def _method(run: RunRecord) -> str:
    return str(run.settings.get("method") or run.tags.get("ctvr.method", run.name))


def _stream(run: RunRecord) -> str:
    return str(run.tags.get("ctvr.stream") or run.settings.get("stream", ""))


def _protocol(run: RunRecord) -> str:
    return run.tags.get("ctvr.protocol", "ctvr")


def _read_ranks(tracker: Tracker, run_id: str) -> dict[str, float]:
    """The stored ranks of a run; empty where it has none."""
    try:
        stored = json.loads(tracker.download(run_id, "ranks.json").read_text(encoding="utf-8"))
        return dict(zip(map(str, stored["query ids"]), map(float, stored["ranks"])))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return {}


# --- files --------------------------------------------------------------------------------------------------


def write(made: Table | Sequence[Table], folder: Path) -> list[Path]:
    """Write `<stream>.md|.tex|.csv` and the figures of every table; each file appears whole or not at all.

    Returns:
        The paths: the tables first, then R@1 over the tasks, then the two matrices of each row.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in [made] if isinstance(made, Table) else made:
        name = _slug(table.stream)
        for suffix, text in ((".md", to_markdown(table)), (".tex", to_latex(table)), (".csv", to_csv(table))):
            written.append(_publish(folder / f"{name}{suffix}", text.encode()))
        written += _write_figures(table, folder, name)
    return written


def _write_figures(table: Table, folder: Path, name: str) -> list[Path]:
    from orchestrator import figures  # matplotlib takes a second to import

    drawn = {}
    curves = {row.label: row.curve for row in table.rows if len(row.curve) > 1}
    if curves:
        drawn[f"{name}_r1"] = figures.draw_curves(curves, f"{table.stream}: R@1 after each task")
    for row in table.rows:
        if row.matrices:
            seeds = f"mean of {len(row.seeds)} seeds" if len(row.seeds) > 1 else f"seed {row.seeds[0]}"
            title = f"{row.label} on {table.stream}, {seeds}"
            drawn[f"{name}_{_slug(row.label)}_matrices"] = figures.draw_matrices(row.matrices, title)
    paths = []
    for stem, figure in drawn.items():
        buffer = io.BytesIO()
        figures.save(figure, buffer)
        paths.append(_publish(folder / f"{stem}.png", buffer.getvalue()))
    return paths


def _publish(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80] or "table"
