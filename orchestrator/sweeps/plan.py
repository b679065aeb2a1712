"""Requests of sweeps, and the check of all their rows before anything starts.

A sweep is a search of one method, or a table. A table has several rows on one stream, which are not searched, or
searched with one budget and one metric. Both are a `TablePreset`; the preset of a search has one row and an empty
title.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctvr.methods.backbone.architectures import UMT
from ctvr.methods.backbone.load import describe_architecture
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.orchestrator.config import Settings, build
from ctvr.orchestrator.console import say
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, UntrustedCode
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.evaluation.cost import sizes_only
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.run.execute import check_streams
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.learning.run.vector_towers import unfit_baseline
from ctvr.orchestrator.on_ray.plan import SEARCHED, SearchConfig
from ctvr.orchestrator.on_ray.plan_types import check_types, naming_plan
from ctvr.orchestrator.on_ray.search import count_listed, count_trials
from ctvr.orchestrator.on_ray.search_budget import fit_search
from ctvr.orchestrator.on_ray.search_space import within
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.optim_config import refuse_unread
from ctvr.orchestrator.settings.presets import get_method
from ctvr.orchestrator.settings.resolve import check_domain, named_in, resolve
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.planned_search import PlannedSearch, plan_search
from ctvr.orchestrator.sweeps.preflight import check_search_arguments, check_table
from ctvr.orchestrator.sweeps.rerun import baseline, baseline_rows, shared_overrides
from ctvr.orchestrator.sweeps.search_spaces import default_metric, default_presets, depth_settings, upper_bounds
from ctvr.orchestrator.sweeps.selection import expand_task_orders
from ctvr.orchestrator.sweeps.untrained import untrained_rows, without_epochs
from ctvr.orchestrator.tables.presets import TablePreset, TableRow, parse_preset
from ctvr.orchestrator.tables.shown_columns import Direction

MOST_OF_FRONT = 8  # maximum number of trials of a Pareto front that are confirmed by default


@dataclass(frozen=True)
class SweepRequest:
    """Arguments of a sweep. The preset already includes --rows, --seeds and search.* of the command line."""

    name: str
    stream: str
    preset: TablePreset
    overrides: Settings  # settings for all rows
    direction: Direction = "t2v"  # retrieval direction of the table
    orders: int = 1  # number of task orders in the rerun
    space: tuple[str, ...] = ()  # texts `name=v1,v2 [where other=w1,w2]` of the only settings that are searched
    space_add: tuple[str, ...] = ()  # texts `name=v1,v2` of settings that are added to the method's search space
    top: int = 1  # number of winners to rerun
    baselines: tuple[str, ...] = ()  # rows that are rerun next to the winners

    @property
    def is_table(self) -> bool:
        """Return whether the sweep is a table instead of a search of one method."""
        return bool(self.preset.title)


def request_search(
    method: str,
    stream: str,
    name: str,
    overrides: Settings,
    presets: tuple[str, ...] = (),
    search: Settings | None = None,
    seeds: int = 0,
    **more: Any,
) -> SweepRequest:
    """Return the request to search one method.

    Args:
        method, stream, name: names of the method, the stream and the sweep.
        overrides: settings of all trials.
        presets: presets of the method.
        search: settings of SearchConfig.
        seeds: number of seeds of the rerun; 0 skips the rerun and the table.
        more: other fields of SweepRequest.
    """
    row = TableRow(name=method, method=method, presets=presets)
    preset = TablePreset(title="", protocol="any", stream=stream, rows=(row,), seeds=seeds, search=search or {})
    return SweepRequest(name, stream, preset, overrides, **more)


def read_request(file: Path, kept: Mapping[str, Any]) -> SweepRequest:
    """Restore a request from the file plan.json, whose part `request` is `kept`.

    Raises:
        ConfigError: for a wrong value, or if another version wrote the plan.
    """
    check_types(SweepRequest, kept, file, "request")
    with naming_plan(file):
        preset = parse_preset(kept.get("preset"))
        return build(SweepRequest, {**kept, "preset": preset}, "request", dotted=False)


@dataclass(frozen=True)
class PlannedRow:
    """A row of a sweep whose settings were checked, with its experiment and its search."""

    row: TableRow
    experiment: Experiment  # settings that all trials share; for an unsearched row, the settings of its rerun
    search: PlannedSearch | None = None  # None for a row that is not searched
    duplicates: tuple[str, ...] = ()  # names of dropped rows with the same settings


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep with its request, its stream, and its rows with their experiments and searches."""

    request: SweepRequest
    stream: Stream
    search_config: SearchConfig  # the same for all searched rows; unused if no row is searched
    rows: tuple[PlannedRow, ...]

    @property
    def searches(self) -> dict[str, PlannedSearch]:
        """Map the name of each searched row to its search; the search of one method has the name ""."""
        is_table = self.request.is_table
        return {each.row.name if is_table else "": each.search for each in self.rows if each.search is not None}

    @property
    def trials_per_row(self) -> int:
        """Return the largest number of trials of a searched row; 0 without a search."""
        counts = (count_trials(self.search_config, search.search_space) for search in self.searches.values())
        return max(counts, default=0)

    @property
    def length(self) -> int:
        """Return the number of tasks of a trial, or the number of epochs if trials are compared after epochs."""
        return max((search.epochs for search in self.searches.values()), default=0) or len(self.stream.tasks)

    def fit_to(self, max_trials: float) -> SweepPlan:
        """Return the plan with brackets or a `search.lag` that suit a cluster of `max_trials` concurrent trials.

        Both become part of the request, which plan.json records. The plan is returned unchanged if the user set them,
        or if no row is searched.
        """
        if not self.searches:
            return self
        config = fit_search(self.search_config, self.trials_per_row, self.length, max_trials / len(self.searches))
        if config == self.search_config:
            return self
        chosen = {"brackets_at_once": config.brackets_at_once, "lag": config.lag}
        preset = replace(self.request.preset, search={**self.request.preset.search, **chosen})
        return replace(self, request=replace(self.request, preset=preset), search_config=config)


def plan_sweep(request: SweepRequest, execution: ExecutionConfig) -> SweepPlan:
    """Check a request before anything starts, and return its plan with all rows, including control rows.

    Raises:
        ConfigError: for an invalid option, a stream on which no row can run, or a row or baseline that cannot run; the
            message names the row.
    """
    preset = request.preset
    if not request.is_table:
        words = (*request.space, *request.space_add)
        check_search_arguments(preset.search, words, request.overrides, request.top, preset.seeds)
    expand_task_orders((), request.orders)
    stream = execution.load_stream(request.stream, render=False)
    if preset.protocol not in {"any", protocol_of(stream).kind}:
        raise ConfigError(
            f"--stream: {stream.name} is evaluated as {stream.protocol}, but this table's rows are {preset.protocol} "
            f"methods. Choose a stream such as {preset.stream}."
        )
    listed = [row for row in preset.rows if row.is_for(stream_names(stream))]
    if not listed:
        raise ConfigError(f"--stream: none of the table's rows can run on {stream.name}. Choose {preset.stream}.")
    rows: list[PlannedRow] = []
    config, trials = _config_of(request, stream)
    for row in listed:
        with _name_row_in_errors(request, row):
            check_domain(row.method, stream)
            rows.append(_plan_row(request, row, stream, config if trials else None, execution))
    for row, control in () if preset.claims else untrained_rows([(each.row, each.experiment) for each in rows]):
        place = next(place for place, each in enumerate(rows) if each.row == row)
        rows.insert(place + 1, _plan_row(request, control, stream, None, execution))
    request = replace(request, baselines=_fit_baselines(request, stream, execution.workers))
    made = SweepPlan(request, stream, config, _deduplicate(rows) if preset.varies or preset.claims else tuple(rows))
    if config.depends_on_timing and len(made.searches) > 1:
        fault = f"compares the trials of one search, and this table has {len(made.searches)}"
        raise ConfigError(fault, "search.scheduler", config.scheduler, remedy="Use --scheduler halving.")
    if config.depends_on_timing and config.grace_tasks > made.length:
        fault = f"exceeds the {made.length} tasks, or epochs, of a trial"
        raise ConfigError(fault, "search.grace_tasks", config.grace_tasks, remedy="Use search.grace_tasks=1.")
    points = [count_listed(search.search_space) for search in made.searches.values()]
    if points and preset.search.get("searcher", "auto") == "auto" and max(points) <= config.trials:
        return replace(made, search_config=replace(config, searcher="grid"))
    return made


def _fit_baselines(request: SweepRequest, stream: Stream, workers: int) -> tuple[str, ...]:
    """Return the checked baselines that can run: if feature widths differ, untrained baselines cannot."""
    kept = []
    for word in baseline_rows(request.baselines):
        made = baseline(word, stream, request.stream, shared_overrides(request.overrides), workers)
        if fault := unfit_baseline(made.experiment, stream):
            say(f"--baselines: {word} is left out. {fault}.")
        else:
            kept.append(word)
    return tuple(kept)


def _config_of(request: SweepRequest, stream: Stream) -> tuple[SearchConfig, int]:
    """Return the search settings of the rows, and the number of trials of each row (0 without a search)."""
    asked, kind = request.preset.search, protocol_of(stream).kind
    if request.is_table:  # all rows use one metric
        return check_table({"metric": SEARCHED[kind], **asked}, request.preset.seeds, request.overrides)
    asked = {**default_metric(request.preset.rows[0].method, kind), **asked}
    if "," in str(asked["metric"]):
        asked.setdefault("confirm", MOST_OF_FRONT)
    config = build(SearchConfig, asked, "search", dotted=False)
    return config, config.trials


@contextmanager
def _name_row_in_errors(request: SweepRequest, row: TableRow) -> Iterator[None]:
    """Context manager that adds the name of a table's row to errors."""
    if not request.is_table:
        yield
        return
    try:
        with named_in(f"row {row.name}"):
            yield
    except UntrustedCode:
        raise
    except ConfigError as error:
        raise ConfigError(error, f"row {row.name}") from error


def _deduplicate(rows: Sequence[PlannedRow]) -> tuple[PlannedRow, ...]:
    """Drop rows whose settings equal an earlier row, and list their names in the earlier row's `duplicates`."""
    found: dict[str, PlannedRow] = {}
    for row in rows:
        first = found.setdefault(key := digest_of(row.experiment.settings), row)
        if first is not row:
            found[key] = replace(first, duplicates=(*first.duplicates, row.row.name))
    return tuple(found.values())


def _clamp_to_depth(experiment: Experiment, varies: Sequence[str]) -> Settings:
    """Return the depth of the vision tower for each varied setting that counts more blocks than the tower has."""
    counts = [name for name in depth_settings(experiment.run.method) if name in varies]
    if not counts:
        return {}
    backbone = experiment.backbone
    is_sized = describe_architecture(backbone.name) and not is_own(backbone.name)
    tower = sizes_only(backbone.name) if is_sized or backbone.name in UMT else load_clip(backbone)
    depth = len(tower.vision.blocks)
    return {name: depth for name in counts if experiment.settings[name] > depth}


def clamp_values(
    full: Settings, varies: Sequence[str], recommended: Mapping[str, Any], presets: tuple[str, ...]
) -> Settings:
    """Return reduced values of settings that exceed an upper bound that a table varies.

    Args:
        full: settings of the user and of the row, whose values are not reduced.
        varies: names of the settings that the table varies.
        recommended: settings that the stream recommends.
        presets: presets of the row.
    """
    bounds = {name: bound for name, bound in upper_bounds(full["method"]).items() if name not in full}
    if not any(bound in full for bound in bounds.values() if bound in varies):
        return {}
    plain = resolve({key: value for key, value in full.items() if key not in varies}, recommended, presets).settings
    bounded = within({**{name: plain[name] for name in bounds}, **full}, bounds)
    return {name: bounded[name] for name in bounds if bounded[name] < plain[name]}


def stream_names(stream: Stream) -> list[str]:
    """Return the name of a stream and, if it is a published benchmark, the name of the benchmark."""
    return [stream.name, *([stream.paper] if stream.paper else [])]


def _plan_row(
    request: SweepRequest, row: TableRow, stream: Stream, config: SearchConfig | None, execution: ExecutionConfig
) -> PlannedRow:
    """Check a row and return its plan, with a search if `row.searched` and `config` is not None."""
    get_method(row.method)
    preset = request.preset
    overrides = {**preset.settings_of(row, stream_names(stream)), **request.overrides}
    overrides = without_epochs(overrides, row.presets)
    if row.searched and config is not None:
        name = f"{request.name}-{row.slug}" if request.is_table else request.name
        spaces = request.space, request.space_add
        search = plan_search(name, row, stream, request.stream, overrides, config, spaces, execution)
        if not request.is_table and "optim.name" not in search.space:
            refuse_unread(search.experiment.optim, request.overrides)
        return PlannedRow(row, search.experiment, search)
    if given := [name for name in preset.varies if name in request.overrides]:
        raise ConfigError("the table varies this setting", given[0], remedy="Omit it.")
    full = {**overrides, "method": row.method, "stream": request.stream, "workers": execution.workers}
    presets = default_presets(row.method, stream, row.presets)
    full |= clamp_values(full, preset.varies, stream.settings, presets)
    experiment = resolve(full, stream.settings, presets)
    if fewer := _clamp_to_depth(experiment, preset.varies):
        experiment = resolve({**full, **fewer}, stream.settings, presets)
    check_streams(experiment, stream, execution.places())
    return PlannedRow(row, experiment)
