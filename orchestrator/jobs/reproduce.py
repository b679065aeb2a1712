"""Requirements of a paper's table or figure (rows, runs, videos, weights), and their availability."""

from __future__ import annotations

from collections import Counter

from ctvr.methods.backbone.load import are_here
from ctvr.orchestrator.console import format_duration
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.streams.load import BENCHMARKS, is_embedded, split_order
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.streams.videos import check_videos, missing_videos
from ctvr.orchestrator.sweeps.claims import claims_of
from ctvr.orchestrator.sweeps.plan import SweepPlan, SweepRequest, plan_sweep
from ctvr.orchestrator.tables.build import seconds_of
from ctvr.orchestrator.tables.claims import names_in
from ctvr.orchestrator.tables.footnotes import method_of
from ctvr.orchestrator.tables.paper_items import Item
from ctvr.orchestrator.tables.paper_numbers import benchmarks
from ctvr.orchestrator.tables.presets import TablePreset


def plan_text(item: Item, request: SweepRequest, execution: ExecutionConfig) -> str:
    """Return the plan of an item as text, checked like a sweep, without running it or writing to MLflow.

    Raises:
        ConfigError: for a setting that a row does not accept, and for an unknown stream.
    """
    lines = [f"{item.item}: {item.shows}", f"  table     {request.preset.title}"]
    if printed := benchmarks(item.preset):
        lines.append(f"  printed   of {', '.join(printed)}")
    lines += [f"  note      {note}" for note in item.notes]
    try:
        stream = execution.load_stream(find_manifest(request.stream), render=False)
    except ConfigError as error:
        name = split_order(request.stream)[0]
        if name not in BENCHMARKS or (execution.runs / "streams" / f"{name}.json").is_file():
            raise  # an unknown name or an invalid manifest, which no import can repair
        rows = [row.name for row in request.preset.rows]
        lines += [f"  rows      {len(rows)}: {', '.join(rows)}", f"  videos    not available: {error}"]
        lines.insert(-1, f"  runs      {_count(len(rows), request.preset.seeds)}")
        return "\n".join([*lines, "  weights   known when the stream is available", *_claims(request.preset)])
    planned = plan_sweep(request, execution)
    lines += [*_runs(planned), f"  time      {_time(planned, execution)}"]
    lines += ["  videos    " + _videos(stream).replace("\n", "\n            ")]
    lines += [f"  weights   {line}" for line in _weights(planned)]
    return "\n".join([*lines, *_claims(request.preset)])


def _claims(preset: TablePreset) -> list[str]:
    """Return lines on the claims that a table tests, each with the two rows that the claim compares."""
    lines = [f"  claims    {len(preset.claims)}"] if preset.claims else []
    for claim in claims_of(preset):
        row, than = names_in(preset, claim)
        lines.append(f"            {claim.claim}: {row} against {than}, {claim.column} ({claim.asserted})")
    return lines


def _time(planned: SweepPlan, execution: ExecutionConfig) -> str:
    """Return a text with the time of all reruns one after the other, estimated from complete runs of the stream."""
    try:
        done = execution.existing_tracker().find_runs(stream=planned.stream.name, tags={"ctvr.complete": "true"})
    except ConfigError:  # no records
        done = []
    taken: dict[str, list[float]] = {}
    for run in done:
        if not int(run.tags.get("ctvr.reused_tasks") or 0):
            taken.setdefault(method_of(run), []).append(seconds_of(run))
    if not taken:
        first, stream = planned.rows[0].row.method, planned.stream.name
        return f"unknown: no run of {stream} is recorded here. Run one: ctvr run {first} {stream}"
    means = {method: sum(each) / len(each) for method, each in taken.items()}
    usual = sum(means.values()) / len(means)
    each = [means.get(row.row.method, usual) for row in planned.rows]
    known = sum(row.row.method in means for row in planned.rows)
    runs = sum(map(len, taken.values()))
    text = f"about {format_duration(sum(each) * planned.request.preset.seeds)} one after the other, by {runs} run"
    return text + f"{'s' * (runs != 1)} of {known} of these {len(each)} rows' methods; other rows count as their mean"


def _videos(stream: Stream) -> str:
    if is_embedded(stream.name) and (missing := len(missing_videos(stream))):
        return f"{stream.name}: embedded; a run renders the {missing} missing videos"
    return check_videos(stream)


def _runs(planned: SweepPlan) -> list[str]:
    """Describe the rows and the number of runs."""
    rows, seeds = planned.rows, planned.request.preset.seeds
    trials = planned.trials_per_row * len(planned.searches)
    names = [row.row.name for row in rows]
    lines = [f"  rows      {len(names)}: {', '.join(names)}"]
    equal = {name: row.row.name for row in rows for name in row.duplicates}
    lines += [f"            {name} has the settings of {row}, so it is not run again" for name, row in equal.items()]
    if left := [row.name for row in planned.request.preset.rows if row.name not in {*names, *equal}]:
        lines.append(f"            not on {planned.stream.name}: {', '.join(left)}")
    tasks = len(planned.stream.tasks)
    searched = f"{trials} trials, then " if trials else ""
    return [*lines, f"  runs      {searched}{_count(len(rows), seeds)} of {tasks} task{'s' * (tasks != 1)}"]


def _count(rows: int, seeds: int) -> str:
    return f"{rows} rows x {seeds} seeds = {rows * seeds} runs"


def _weights(planned: SweepPlan) -> list[str]:
    settings = [row.experiment.backbone for row in planned.rows]
    counted = Counter((backbone.name, backbone.weights) for backbone in settings)
    return [
        f"{name}, {weights}: {'available' if are_here(name, weights) else 'missing; a run downloads them'}"
        f" ({rows} row{'s' * (rows != 1)})"
        for (name, weights), rows in counted.items()
    ]
