"""Requests of sweeps, and the check of all their rows before anything starts.

A sweep is a search of one method, or a table: several rows of one stream, searched with one budget and one metric, or
not searched. Both are a `TablePreset`; the preset of a search has one row and an empty title.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctvr.methods.backbone.architectures import SHIPPED, VECTORS
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
from ctvr.orchestrator.on_ray.plan import SEARCHED, SearchConfig, brackets_for
from ctvr.orchestrator.on_ray.plan_types import check_types, naming_plan
from ctvr.orchestrator.on_ray.search import count_listed, count_trials
from ctvr.orchestrator.on_ray.search_space import within
from ctvr.orchestrator.settings.experiment import Experiment
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

MOST_OF_FRONT = 8  # trials of a Pareto front that are confirmed by default


@dataclass(frozen=True)
class SweepRequest:
    """Arguments of a sweep. The preset already has the --rows, --seeds and search.* of the command line."""

    name: str
    stream: str
    preset: TablePreset
    overrides: Settings  # settings for all rows
    direction: Direction = "t2v"  # retrieval direction of the table
    orders: int = 1  # number of task orders in the rerun
    space: tuple[str, ...] = ()  # `name=v1,v2 [where other=w1,w2]`: the only settings that are searched
    space_add: tuple[str, ...] = ()  # `name=v1,v2`: searched together with the method's search space
    top: int = 1  # number of winners to rerun
    baselines: tuple[str, ...] = ()

    @property
    def is_table(self) -> bool:
        """Return whether the sweep is a table, not a search of one method."""
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
        search: settings of SearchConfig.
        seeds: > 0: rerun the winners and write a table.
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
    """A checked row."""

    row: TableRow
    experiment: Experiment  # settings that all trials share; for an unsearched row, the settings of its rerun
    search: PlannedSearch | None = None  # None: not searched
    duplicates: tuple[str, ...] = ()  # names of dropped rows with the same settings


@dataclass(frozen=True)
class SweepPlan:
    """A checked sweep: its request, its stream, and its rows with their experiments and searches."""

    request: SweepRequest
    stream: Stream
    search_config: SearchConfig  # the same for all searched rows; unused if no row is searched
    rows: tuple[PlannedRow, ...]

    @property
    def searches(self) -> dict[str, PlannedSearch]:
        """Return row -> its search; the search of one method has the empty name."""
        is_table = self.request.is_table
        return {each.row.name if is_table else "": each.search for each in self.rows if each.search is not None}

    @property
    def trials_per_row(self) -> int:
        """Return the largest number of trials of a searched row; 0 without a search."""
        counts = (count_trials(self.search_config, search.search_space) for search in self.searches.values())
        return max(counts, default=0)

    def with_concurrent_brackets(self, max_trials: float) -> SweepPlan:
        """Return the plan with as many concurrent brackets as keep `max_trials` trials busy.

        The number becomes part of the request, which plan.json records. A plan is unchanged if the user gave a number,
        or if no row is searched.
        """
        searches = self.searches.values()
        if self.search_config.brackets_at_once or not searches:
            return self
        length = max(search.epochs for search in searches) or len(self.stream.tasks)
        number = brackets_for(self.search_config, self.trials_per_row, length, max_trials / len(searches))
        preset = replace(self.request.preset, search={**self.request.preset.search, "brackets_at_once": number})
        request, config = replace(self.request, preset=preset), replace(self.search_config, brackets_at_once=number)
        return replace(self, request=request, search_config=config)


def plan_sweep(request: SweepRequest, execution: ExecutionConfig) -> SweepPlan:
    """Check a request before anything starts, and return its plan: rows, control rows, and the searcher.

    Raises:
        ConfigError: for an invalid option, a stream on which no row can run, or a row or baseline that cannot run; the
            message names a row that the table lists.
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
        with _naming(request, row):
            check_domain(row.method, stream)
            rows.append(_plan_row(request, row, stream, config if trials else None, execution))
    for row, control in () if preset.claims else untrained_rows([(each.row, each.experiment) for each in rows]):
        place = next(place for place, each in enumerate(rows) if each.row == row)
        rows.insert(place + 1, _plan_row(request, control, stream, None, execution))
    request = replace(request, baselines=_fit_baselines(request, stream, execution.workers))
    made = SweepPlan(request, stream, config, _deduplicate(rows) if preset.varies or preset.claims else tuple(rows))
    points = [count_listed(search.search_space) for search in made.searches.values()]
    if points and preset.search.get("searcher", "auto") == "auto" and max(points) <= config.trials:
        return replace(made, search_config=replace(config, searcher="grid"))
    return made


def _fit_baselines(request: SweepRequest, stream: Stream, workers: int) -> tuple[str, ...]:
    """Check the baselines; leave out those without training if captions and videos have features of two widths."""
    kept = []
    for word in baseline_rows(request.baselines):
        made = baseline(word, stream, request.stream, shared_overrides(request.overrides), workers)
        if fault := unfit_baseline(made.experiment, stream):
            say(f"--baselines: {word} is left out. {fault}.")
        else:
            kept.append(word)
    return tuple(kept)


def _config_of(request: SweepRequest, stream: Stream) -> tuple[SearchConfig, int]:
    """Return how the rows are searched, and the number of trials of each (0: no search)."""
    asked, kind = request.preset.search, protocol_of(stream).kind
    if request.is_table:  # all rows use one metric
        return check_table({"metric": SEARCHED[kind], **asked}, request.preset.seeds, request.overrides)
    asked = {**default_metric(request.preset.rows[0].method, kind), **asked}
    if "," in str(asked["metric"]):
        asked.setdefault("confirm", MOST_OF_FRONT)
    config = build(SearchConfig, asked, "search", dotted=False)
    return config, config.trials


@contextmanager
def _naming(request: SweepRequest, row: TableRow) -> Iterator[None]:
    """Name a table's row in the errors of a `with` block."""
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
    """Drop rows with the settings of an earlier row, which names them; the recommended one comes first."""
    found: dict[str, PlannedRow] = {}
    for row in rows:
        first = found.setdefault(key := digest_of(row.experiment.settings), row)
        if first is not row:
            found[key] = replace(first, duplicates=(*first.duplicates, row.row.name))
    return tuple(found.values())


def _clamp_to_depth(experiment: Experiment, varies: Sequence[str]) -> Settings:
    """Return the varied numbers of blocks that exceed the vision tower's depth, limited to it."""
    counts = [name for name in depth_settings(experiment.run.method) if name in varies]
    if not counts:
        return {}
    backbone = experiment.backbone
    tower = load_clip(backbone) if backbone.name in (*SHIPPED, VECTORS) else sizes_only(backbone.name)
    depth = len(tower.vision.blocks)
    return {name: depth for name in counts if experiment.settings[name] > depth}


def clamp_values(
    full: Settings, varies: Sequence[str], recommended: Mapping[str, Any], presets: tuple[str, ...]
) -> Settings:
    """Return the recipe's settings (not the user's) that exceed a varied upper bound, reduced to that bound."""
    bounds = {name: bound for name, bound in upper_bounds(full["method"]).items() if name not in full}
    if not any(bound in full for bound in bounds.values() if bound in varies):
        return {}
    plain = resolve({key: value for key, value in full.items() if key not in varies}, recommended, presets).settings
    bounded = within({**{name: plain[name] for name in bounds}, **full}, bounds)
    return {name: bounded[name] for name in bounds if bounded[name] < plain[name]}


def stream_names(stream: Stream) -> list[str]:
    """Return the name of a stream and of its published benchmark, if it is one."""
    return [stream.name, *([stream.paper] if stream.paper else [])]


def _plan_row(
    request: SweepRequest, row: TableRow, stream: Stream, config: SearchConfig | None, execution: ExecutionConfig
) -> PlannedRow:
    """Check a row; it is searched if the row says so and `config` is given."""
    get_method(row.method)
    preset = request.preset
    overrides = {**preset.settings_of(row, stream_names(stream)), **request.overrides}
    overrides = without_epochs(overrides, row.presets)
    if row.searched and config is not None:
        name = f"{request.name}-{row.slug}" if request.is_table else request.name
        spaces = request.space, request.space_add
        search = plan_search(name, row, stream, request.stream, overrides, config, spaces, execution)
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
