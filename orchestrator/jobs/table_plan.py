"""What a table was asked for, and every row of it checked before anything starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from orchestrator.config import Settings
from orchestrator.errors import ConfigError
from orchestrator.jobs.deployment import Deployment
from orchestrator.jobs.methods import default_presets
from orchestrator.jobs.sweep import Sweep, SweepRequest, plan_sweep
from orchestrator.jobs.words import check_table
from orchestrator.learning.experiment import Experiment
from orchestrator.learning.resolve import find, resolve
from orchestrator.on_ray.plan import GAIN, MEAN, SearchConfig
from orchestrator.streams.load import load_stream
from orchestrator.streams.stream import Stream
from orchestrator.tables.build import Direction
from orchestrator.tables.presets import TablePreset, TableRow


@dataclass(frozen=True)
class TableRequest:
    """What `ctvr sweep --preset TABLE` was asked for. Words of the command line are in the preset already."""

    name: str
    stream: str
    preset: TablePreset
    overrides: Settings  # of all rows
    direction: Direction = "t2v"  # what the table shows


@dataclass(frozen=True)
class PlannedRow:
    """A row that was checked."""

    row: TableRow
    experiment: Experiment  # of a trial, but for what is searched; of a rerun, where nothing is
    sweep: Sweep | None  # None: not searched


@dataclass(frozen=True)
class PlannedTable:
    """A request that was checked."""

    request: TableRequest
    stream: Stream
    search: SearchConfig  # of no meaning where no row is searched
    rows: tuple[PlannedRow, ...]

    @property
    def searched(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.sweep is not None]


def plan_table(request: TableRequest, where: Deployment) -> PlannedTable:
    """Check every row before anything starts.

    Raises:
        ConfigError: for whatever could not run; the message names the row.
    """
    preset = request.preset
    search, trials = check_table(preset.search, preset.seeds, request.overrides)
    places = where.places()
    stream = load_stream(request.stream, places.root, places.videos, render=False)
    if "metric" not in preset.search:  # one rule for all rows
        search = replace(search, metric=MEAN if stream.protocol == "cvlm" else GAIN)
    if preset.protocol not in {"any", stream.protocol}:
        raise ConfigError(
            f"--stream: {stream.name} is evaluated as {stream.protocol}, this table's rows are {preset.protocol} "
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
            rows.append(_plan_row(request, row, stream, search, bool(trials), where))
        except ConfigError as error:
            raise ConfigError(f"row {row.name}: {error}") from error
    return PlannedTable(request, stream, search, tuple(rows))


def stream_names(stream: Stream) -> list[str]:
    """What a stream is called, and the published benchmark that it is."""
    return [stream.name, *([stream.paper] if stream.paper else [])]


def _plan_row(
    request: TableRequest, row: TableRow, stream: Stream, search: SearchConfig, is_searched: bool, where: Deployment
) -> PlannedRow:
    find(row.method)
    overrides = {**request.preset.settings_of(row, stream_names(stream)), **request.overrides}
    if row.searched and is_searched:
        asked = SweepRequest(
            row.method, request.stream, f"{request.name}-{row.slug}", overrides, row.presets, asdict(search)
        )
        sweep = plan_sweep(asked, where)
        return PlannedRow(row, sweep.experiment, sweep)
    full = {**overrides, "method": row.method, "stream": request.stream, "workers": where.workers}
    return PlannedRow(row, resolve(full, stream.settings, default_presets(row.method, stream, row.presets)), None)
