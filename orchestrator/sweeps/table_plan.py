"""Request of a table, and the check of all its rows before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ctvr.methods.backbone.architectures import SHIPPED
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import ConfigError, UntrustedCode
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.cost import sizes_only
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.factory import load_clip
from ctvr.orchestrator.learning.presets import get_method
from ctvr.orchestrator.learning.protocols import protocol_of
from ctvr.orchestrator.learning.resolve import check_domain, named_in, resolve
from ctvr.orchestrator.learning.run import check_streams
from ctvr.orchestrator.on_ray.plan import SEARCHED, SearchConfig, brackets_for
from ctvr.orchestrator.on_ray.search_space import within
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.preflight import check_table
from ctvr.orchestrator.sweeps.search_spaces import default_presets, depth_settings, upper_bounds
from ctvr.orchestrator.sweeps.selection import expand_task_orders
from ctvr.orchestrator.sweeps.sweep import PlannedSweep, SweepRequest, plan_sweep
from ctvr.orchestrator.sweeps.untrained import untrained_rows, without_epochs
from ctvr.orchestrator.tables.presets import TablePreset, TableRow
from ctvr.orchestrator.tables.shown_columns import Direction


@dataclass(frozen=True)
class TableRequest:
    """Request of `ctvr sweep --preset TABLE`. The preset already contains the options of the command line."""

    name: str
    stream: str
    preset: TablePreset
    overrides: Settings  # settings for all rows
    direction: Direction = "t2v"  # retrieval direction of the table
    orders: int = 1  # number of task orders in the rerun


@dataclass(frozen=True)
class PlannedRow:
    """A checked row."""

    row: TableRow
    experiment: Experiment  # of a trial, except the searched settings; without a search, of the rerun
    sweep: PlannedSweep | None  # None: not searched
    equal: tuple[str, ...] = ()  # names of rows with the same settings, which are not run again


@dataclass(frozen=True)
class PlannedTable:
    """A checked request."""

    request: TableRequest
    stream: Stream
    search: SearchConfig  # None if no row is searched
    rows: tuple[PlannedRow, ...]

    @property
    def searched(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.sweep is not None]

    def filling(self, places: int) -> PlannedTable:
        """Set the number of concurrent brackets so that they fill `places` trials, unless the user gave a number."""
        if self.search.brackets_at_once or not self.searched:
            return self
        share = places / len(self.searched)
        epochs = max(row.sweep.epochs for row in self.searched if row.sweep is not None)
        number = brackets_for(self.search, self.search.trials, epochs or len(self.stream.tasks), share)
        preset = replace(self.request.preset, search={**self.request.preset.search, "brackets_at_once": number})
        request, search = replace(self.request, preset=preset), replace(self.search, brackets_at_once=number)
        return replace(self, request=request, search=search)


def plan_table(request: TableRequest, execution: ExecutionConfig) -> PlannedTable:
    """Check every row before anything starts.

    Raises:
        ConfigError: for a row that cannot run; the message names the row.
    """
    preset = request.preset
    expand_task_orders((), request.orders)
    search, trials = check_table(preset.search, preset.seeds, request.overrides)
    stream = execution.load_stream(request.stream, render=False)
    if "metric" not in preset.search:  # all rows use one metric
        search = replace(search, metric=SEARCHED[protocol_of(stream).kind])
    if preset.protocol not in {"any", protocol_of(stream).kind}:
        raise ConfigError(
            f"--stream: {stream.name} is evaluated as {stream.protocol}, but this table's rows are {preset.protocol} "
            f"methods. Choose a stream such as {preset.stream}."
        )
    names = stream_names(stream)
    if not any(row.is_for(names) for row in preset.rows):
        raise ConfigError(f"--stream: none of the table's rows can run on {stream.name}. Choose {preset.stream}.")
    rows = []
    for row in preset.rows:
        if not row.is_for(names):
            continue
        try:
            with named_in(f"row {row.name}"):
                check_domain(row.method, stream)
                rows.append(_plan_row(request, row, stream, search, bool(trials), execution))
        except UntrustedCode:
            raise
        except ConfigError as error:
            raise ConfigError(error, f"row {row.name}") from error
    for row, control in () if preset.claims else untrained_rows([(each.row, each.experiment) for each in rows]):
        place = next(place for place, each in enumerate(rows) if each.row == row)
        rows.insert(place + 1, _plan_row(request, control, stream, search, False, execution))
    return PlannedTable(request, stream, search, _deduplicate(rows) if preset.varies or preset.claims else tuple(rows))


def _deduplicate(rows: Sequence[PlannedRow]) -> tuple[PlannedRow, ...]:
    """Drop rows with the settings of an earlier row, which names them; the recommended one comes first."""
    found: dict[str, PlannedRow] = {}
    for row in rows:
        first = found.setdefault(key := digest_of(row.experiment.settings), row)
        if first is not row:
            found[key] = replace(first, equal=(*first.equal, row.row.name))
    return tuple(found.values())


def _clamp_to_depth(experiment: Experiment, varies: Sequence[str]) -> Settings:
    """Return the varied numbers of blocks that exceed the vision tower's depth, limited to it."""
    counts = [name for name in depth_settings(experiment.run.method) if name in varies]
    if not counts:
        return {}
    backbone = experiment.backbone
    tower = load_clip(backbone) if backbone.name in SHIPPED else sizes_only(backbone.name)
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
    request: TableRequest,
    row: TableRow,
    stream: Stream,
    search: SearchConfig,
    is_searched: bool,
    execution: ExecutionConfig,
) -> PlannedRow:
    get_method(row.method)
    overrides = {**request.preset.settings_of(row, stream_names(stream)), **request.overrides}
    overrides = without_epochs(overrides, row.presets)
    if row.searched and is_searched:
        asked = SweepRequest(
            row.method, request.stream, f"{request.name}-{row.slug}", overrides, row.presets, asdict(search)
        )
        sweep = plan_sweep(asked, execution)
        return PlannedRow(row, sweep.experiment, sweep)
    if given := [name for name in request.preset.varies if name in request.overrides]:
        raise ConfigError("the table varies this setting", given[0], remedy="Omit it.")
    full = {**overrides, "method": row.method, "stream": request.stream, "workers": execution.workers}
    presets = default_presets(row.method, stream, row.presets)
    full |= clamp_values(full, request.preset.varies, stream.settings, presets)
    experiment = resolve(full, stream.settings, presets)
    if fewer := _clamp_to_depth(experiment, request.preset.varies):
        experiment = resolve({**full, **fewer}, stream.settings, presets)
    check_streams(experiment, stream, execution.places())
    return PlannedRow(row, experiment, None)
