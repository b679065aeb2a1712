"""Construction of result tables from MLflow runs, with published numbers next to ours. write.py writes the files.

A value of a table is the mean over seeds of a metric after the last task, with the sample standard deviation. Only
complete runs (tag `ctvr.complete`) count. No checkpoint is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.metric_names import ADDS_METRICS, GAIN
from ctvr.orchestrator.tables.curves import FORGOTTEN, average_incremental, curve, mean, training
from ctvr.orchestrator.tables.footnotes import (
    CHOICE,
    access_of,
    by_hand,
    marks_of,
    method_of,
    trials_of,
    uses_untrained_preset,
)
from ctvr.orchestrator.tables.index_age import age_notes, with_gap_intervals
from ctvr.orchestrator.tables.paper_comparison import ROW, PapersOf, beside_paper, more_values, with_differences
from ctvr.orchestrator.tables.paper_numbers import paper_numbers, place
from ctvr.orchestrator.tables.selection import measured_on, select
from ctvr.orchestrator.tables.setting_diff import between_seeds
from ctvr.orchestrator.tables.shown_columns import Direction, columns, protocol_of
from ctvr.orchestrator.tables.significance import (
    NOTE,
    Ranks,
    compare_rows,
    gallery_sizes,
    one_rule_of_ties,
    rank_curve,
    read_ranks,
)
from ctvr.orchestrator.tables.table import ACCESS, TRIALS_NOTE, Row, Table, Value
from ctvr.orchestrator.tables.table_columns import CURRENT, OF, OWN, V2T, V2T_SUM, notes_on
from ctvr.orchestrator.tables.task_orders import by_order, content_of, in_any_order, mark, order_of, seed_names

if TYPE_CHECKING:
    from ctvr.orchestrator.tracking.run_record import RunRecord
    from ctvr.orchestrator.tracking.tracker import Tracker

PARAMETERS, SECONDS = "cost/trained_parameters", "cost/seconds_task"
NUMBER = "ctvr.number"  # tag of a trial: its number in the search
VARIES = "ctvr.varies"  # tag: settings that the rows of a table vary one at a time
INCIDENTAL = {"seed", "data.prefetch_threads", "evaluation.batch_size", "evaluation.query_chunk"}
INCIDENTAL |= {"tracking.mirror", "tracking.keep_checkpoints", *ADDS_METRICS}
DIRECTIONS = {
    "t2v": "text to video",
    "v2t": "video to text (V2T)",
    "both": "text to video and video to text (V2T)",
}


def collect(
    records: Iterable[RunRecord],
    ranks: Mapping[str, Ranks] | None = None,
    papers_of: PapersOf | None = None,
    has_footnotes: bool = True,
) -> list[Row]:
    """Return one row for each combination of method and settings, averaged over seeds. Omit incomplete runs.

    Args:
        records: runs of one stream.
        ranks: run id -> final ranks, for the comparison with the best row.
        papers_of: returns the paper runs with which a run is compared (paper_comparison.py). If given, a row gets the
            published numbers only if it ran with the settings of the paper.
        has_footnotes: whether rows have their footnotes and trials by hand, which may import torch.
    """
    groups: dict[tuple[Any, ...], dict[str, RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.started):
        if record.tags.get("ctvr.complete") == "true":
            read = {k: v for k, v in record.settings.items() if k not in INCIDENTAL}
            tags = (record.tags.get("ctvr.note", ""), record.tags.get("ctvr.transductive", ""), content_of(record))
            seed = f"{record.settings.get('seed', '0')}@{order_of(record)}"
            trained = record.last(PARAMETERS)
            if trained and trained[1] == 0:  # optimizer settings have no effect; the newest run represents all
                read = {k: v for k, v in read.items() if not k.startswith("optim.")}
                seed = str(order_of(record))
            own = tuple(sorted((k, in_any_order(k, v)) for k, v in read.items()))
            groups.setdefault((method_of(record), own, tags), {})[seed] = record  # a seed run twice counts once
    rows = [_row(list(group.values()), has_footnotes) for group in groups.values()]
    firsts = [next(iter(group.values())) for group in groups.values()]
    rows = [  # papers do not report means over task orders
        row if row.orders else beside_paper(row, run, papers_of(run) if papers_of else [])
        for row, run in zip(rows, firsts)
    ]
    rows = _named(rows, list(groups.values()))
    rows = with_gap_intervals(rows, ranks or {})
    if ranks and not any(row.orders for row in rows):
        rows = [replace(row, ranks=rank_curve([ranks[run] for run in row.runs if run in ranks])) for row in rows]
    blocks = list(ACCESS)
    rows.sort(key=lambda row: (blocks.index(row.access), row.place, place(row.method), row.label))
    protocols = set(map(protocol_of, firsts))
    is_ranked = bool(ranks) and len(protocols) == 1 and not any(OF[name].columns for name in protocols)
    return compare_rows(rows, ranks or {}, protocols == {"cvlm"}) if is_ranked else rows


def build(
    tracker: Tracker,
    records: Sequence[RunRecord],
    papers_of: PapersOf | None = None,
    direction: Direction = "t2v",
    split: str = "",
    of_stream: bool = False,
) -> list[Table]:
    """Build one table per stream from runs. Their stored ranks are read for the comparison with the best row.

    The arguments `split` and `of_stream` are those of `selection.select`, `papers_of` is that of `collect`.

    Raises:
        ConfigError: if no run is complete, or no run was measured on `split`.
    """
    complete = [record for record in records if record.tags.get("ctvr.complete") == "true"]
    if not complete:
        raise ConfigError(
            f"{count(len(records), 'run')} found, none complete. `ctvr ui` shows their progress.",
            "table",
        )
    ranks = {record.run_id: found for record in complete if (found := read_ranks(tracker, record.run_id))}
    return tables(records, ranks, papers_of, direction, split, of_stream)


def tables(
    records: Sequence[RunRecord],
    ranks: Mapping[str, Ranks] | None = None,
    papers_of: PapersOf | None = None,
    direction: Direction = "t2v",
    split: str = "",
    of_stream: bool = False,
) -> list[Table]:
    """Build the tables like `build`, from records and ranks that were already read."""
    found = []
    for stream in sorted({_stream(record) for record in records}):
        own, left_out_notes = select([record for record in records if _stream(record) == stream], split, of_stream)
        own, of_ties = one_rule_of_ties(own, ranks or {})
        rows, shared = with_differences(collect(own, ranks, papers_of))
        if not rows:
            continue
        complete = [record for record in own if record.tags.get("ctvr.complete") == "true"]
        notes = [*_notes(rows, complete, direction, shared), measured_on(complete, ranks or {})]
        notes += [NOTE] if any(row.vs_best for row in rows) else []
        shown = columns(rows, own, direction)
        notes += notes_on(shown)
        notes += age_notes(rows)
        notes += [*of_ties, *left_out_notes]
        if left_out := len(own) - len(complete):
            notes.append(f"{count(left_out, 'incomplete run is', 'incomplete runs are')} left out.")
        if any(row.paper for row in rows):
            paper = paper_numbers(own[0].tags.get("ctvr.paper", "")) or {}
            notes += [f"Paper: {note}" for note in paper.get("notes", [])]
        titles = {record.tags.get("ctvr.table", "") for record in complete}
        title = titles.pop() if len(titles) == 1 else ""
        varies = dict.fromkeys(name for run in complete for name in run.tags.get(VARIES, "").split(",") if name)
        sizes = gallery_sizes([ranks[run.run_id] for run in complete if run.run_id in ranks]) if ranks else ()
        found.append(Table(stream, shown, tuple(rows), tuple(notes), title, tuple(varies), sizes))
    return found


def _notes(rows: Sequence[Row], runs: Sequence[RunRecord], direction: Direction, shared: Sequence[str]) -> list[str]:
    """Return the notes on a table: its statistic, its definitions, and the settings of the trials among its rows."""
    shown = OF[protocol_of(runs[0])]
    what = "" if shown.columns else f" {DIRECTIONS[direction]},"
    notes = [f"Mean and sample standard deviation over seeds,{what} after the last task."]
    notes += [shown.note] if shown.note else []
    notes += shared
    if any(row.trials is not None for row in rows):
        notes.append(TRIALS_NOTE)
    for row in (row for row in rows if "(trial " in row.label):
        values = [f"{name.removeprefix('method.')}={_brief(value)}" for name, value in row.settings.items()]
        notes.append(f"{row.label}: {', '.join(values)}")
    return notes


def seconds_of(run: RunRecord) -> float:
    """Return the seconds that a run spent on training and evaluation. A task adopted from another run adds 0.

    The start-up of the run's processes is not counted.
    """
    reused = int(run.tags.get("ctvr.reused_tasks") or 0)
    return sum(seconds for task, seconds in run.metrics.get(SECONDS, []) if task > reused)


def _row(runs: list[RunRecord], has_footnotes: bool) -> Row:
    """Return the row of one configuration, averaged over its runs (seeds and task orders)."""
    first = runs[0]
    finals = [_final(run) for run in runs]
    keys = dict.fromkeys(key for final in finals for key in final)
    means = {key: mean([final.get(key, math.nan) for final in finals]) for key in keys}
    shown = OF[protocol_of(first)]
    names, matrices = shown.names, {name: _matrix(runs, suffix) for name, suffix in shown.matrices.items()}
    if protocol_of(first) == "cvlm":
        means |= _per_task(runs)
    elif protocol_of(first) == "ctvr":
        means |= {key: value for key, value in _per_task(runs).items() if key in (CURRENT, OWN)}
        means |= average_incremental(runs)
    values = {key: means.get(name, Value()) for key, name in names.items()}
    values |= {key: value for key, value in means.items() if re.fullmatch(r"task_\d+/(r1|fr)", key)}
    values |= more_values({**means, "cost/seconds_run": mean([seconds_of(run) for run in runs])})
    parameters = means.get(PARAMETERS, Value())
    backwards = {column.key: column.key for column in V2T} | {V2T_SUM.key: V2T_SUM.key}
    if protocol_of(first) == "cvlm":
        backwards = {"v2t/r1": "v2t/r1_mean"}
    values |= {key: means.get(f"stream/{name}", Value()) for key, name in backwards.items()}
    values["params_m"] = Value(parameters.mean / 1e6, parameters.std / 1e6 if parameters.std else math.nan)
    compared = names if shown.columns else ("r1", "bwf", "fr")
    measured: dict[str, str] = {key: names[key] for key in compared if key in names}
    orders = by_order(runs, measured, finals)
    of_first = orders.get("r1", orders.get("accuracy", ()))
    points = tuple(curve(runs, shown.curve))
    if first.settings.get("method.only_final", "").lower() == "true":  # an untrained model cannot forget
        values |= {key: Value() for key in FORGOTTEN & values.keys()}
        matrices, points = {}, points[-1:]
    if uses_untrained_preset(first):  # random parameters of a new task do not transfer
        values.pop("fwt", None)
    return Row(
        label=method_of(first),
        method=method_of(first),
        values=values,
        seeds=seed_names(runs),
        runs=tuple(run.run_id for run in runs),
        marks=tuple(filter(None, [*(marks_of(first) if has_footnotes else ()), between_seeds(runs), mark(of_first)])),
        trials=trials_of(first),
        by_hand=by_hand(first) if has_footnotes else "",
        is_transductive=first.tags.get("ctvr.transductive") == "true",
        access=access_of(first),
        seconds=sum(map(seconds_of, runs)) + float(first.tags.get("ctvr.search_seconds", 0)),
        place=int(first.tags.get("ctvr.place", 0)),
        recorded=means,
        extra={key: value for key, value in means.items() if key not in {*names.values(), *values}},
        curve=points,
        gains=tuple(curve(runs, GAIN)) if points else (),
        matrices={name: matrix for name, matrix in matrices.items() if matrix},
        training=training(runs),
        orders=orders,
    )


def _final(run: RunRecord) -> dict[str, float]:
    """Return the last value of each metric. A stream or task metric without a value after the last task is NaN."""
    last = {key: run.last(key) for key in run.metrics if key.startswith(("stream/", "task_", "cost/"))}
    done = max((point[0] for key, point in last.items() if point and key.startswith("stream/")), default=0)
    finals = {}
    for key, point in last.items():
        if point is not None:
            finals[key] = point[1] if point[0] == done or key.startswith("cost/") else math.nan
    return finals


def _matrix(runs: Sequence[RunRecord], suffix: str) -> list[list[float]]:
    """Return the mean over seeds of metric `task_NN/<suffix>` as lower-triangular lists, or [] if no task has it.

    Row t contains the values of the tasks 1 to t after task t.
    """
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(rf"task_\d+/{suffix}", key))
    columns = [{step: value for step, value, _ in curve(runs, key)} for key in keys]
    return [[column.get(t, math.nan) for column in columns[:t]] for t in range(1, len(keys) + 1)]


def _per_task(runs: Sequence[RunRecord]) -> dict[str, Value]:
    """Return the final R@1 of each task in its own gallery, the R@1 lost since, and `CURRENT` and `OWN`."""
    found: dict[str, Value] = {}
    learned: list[list[float]] = []  # task -> R@1 of every seed just after it was learned
    final: list[list[float]] = []  # task -> R@1 of every seed after the last task
    keys = sorted(key for key in runs[0].metrics if re.fullmatch(r"task_\d+/t2v/r1_own", key))
    for index, key in enumerate(keys, start=1):
        task = key.partition("/")[0]
        histories = [dict(run.metrics.get(key, [])) for run in runs]
        final.append([history.get(len(keys), math.nan) for history in histories])
        found[f"{task}/r1"] = mean(final[-1])
        learned.append([history.get(index, math.nan) for history in histories])
        if index < len(keys):
            lost = [history.get(index, math.nan) - history.get(len(keys), math.nan) for history in histories]
            found[f"{task}/fr"] = mean(lost)
    if learned:
        found[CURRENT] = mean([sum(of_seed) / len(of_seed) for of_seed in zip(*learned)])
        found[OWN] = mean([sum(of_seed) / len(of_seed) for of_seed in zip(*final)])
    return found


def _named(rows: list[Row], groups: list[dict[str, RunRecord]]) -> list[Row]:
    """Label each row with its name in a table preset, or with the name of its method. Equal labels get a suffix.

    The suffix is the first of these that distinguishes the rows: the presets, the tag `ctvr.choice` (for example
    `searched`), the number of the trial, the settings that differ.
    """
    firsts = [next(iter(group.values())) for group in groups]
    bases = [_row_name(group) or row.method for row, group in zip(rows, groups)]
    named = []
    for row, first, base in zip(rows, firsts, bases):
        alike = [run for run, other in zip(firsts, bases) if other == base]
        presets = {run.tags.get("ctvr.presets", "") for run in alike}
        choices = {run.tags.get(CHOICE, "") for run in alike}
        label = base
        if len(alike) > 1 and len(presets) == len(alike):
            label += f" ({first.tags.get('ctvr.presets') or 'paper'})"
        elif len(alike) > 1 and len(choices) == len(alike) and "" not in choices:
            label += f" ({first.tags[CHOICE]})"
        elif len(alike) > 1 and len({run.tags.get(NUMBER) for run in alike} - {None}) == len(alike):
            label += f" (trial {first.tags[NUMBER].lstrip('0') or 0})"
        elif differing := _differing(first, alike):
            shown = ", ".join(f"{name}={_brief(value)}" for name, value in list(differing.items())[:4])
            label += f" ({shown}{', ...' if len(differing) > 4 else ''})"
        settings = _differing(first, [run for run in firsts if method_of(run) == row.method])
        named.append(replace(row, label=label, settings=settings))
    return named


def _brief(value: str) -> str:
    """Format the value of a setting. A number of more than 8 characters is rounded to three significant digits."""
    try:
        return value if len(value) <= 8 else f"{float(value):.3g}"
    except ValueError:
        return value


def _row_name(group: Mapping[str, RunRecord]) -> str:
    """Return the last row name in the tags `ctvr.row` of the runs, or "" if no run has this tag."""
    names = [run.tags[ROW] for run in group.values() if run.tags.get(ROW)]
    return names[-1] if names else ""


def _differing(run: RunRecord, others: Sequence[RunRecord]) -> dict[str, str]:
    """Return the values of `run` for the settings that are not equal in all of `others`."""
    names = {name for other in others for name in other.settings} - INCIDENTAL
    return {
        name: str(run.settings.get(name, "unset"))
        for name in sorted(names)
        if len({in_any_order(name, other.settings.get(name, "unset")) for other in others}) > 1
    }


def _stream(run: RunRecord) -> str:
    return str(run.tags.get("ctvr.stream") or run.settings.get("stream", ""))
