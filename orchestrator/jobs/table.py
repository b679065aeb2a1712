"""`ctvr table`: complete runs, as MLflow has them, beside the papers' numbers."""

from __future__ import annotations

from orchestrator.config import Settings
from orchestrator.errors import ConfigError
from orchestrator.jobs.deployment import Deployment
from orchestrator.learning.resolve import presets_of, resolve
from orchestrator.tables.build import Direction, build
from orchestrator.tables.differences import of_benchmark
from orchestrator.tables.formats import to_markdown
from orchestrator.tables.write import write
from orchestrator.tracking.values import RunRecord


def table(where: Deployment, sweep: str | None = None, stream: str | None = None, direction: Direction = "t2v") -> str:
    """Write and return the table of a sweep's complete runs (or of every complete run of a stream)."""
    tracker = where.tracker()
    runs = tracker.find_runs(stream=stream, sweep=sweep)
    if not runs:
        raise ConfigError(
            f"table: no runs of {sweep or stream!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    made = build(tracker, runs, paper_settings, direction)
    folder = where.runs.resolve() / "tables" / (sweep or stream or "all")
    files = write(made, folder)
    return f"{to_markdown(made)}\n\nwritten: {', '.join(str(file) for file in files)}"


def paper_settings(run: RunRecord) -> Settings | None:
    """Every setting that a run's method has in its paper on the run's benchmark; None for a method that is not known.

    Off the papers' benchmarks these are the method's settings of its paper, with the data and the optimiser that it
    names, or else the defaults, which are CTVR's.
    """
    method = run.tags.get("ctvr.method") or str(run.settings.get("method", ""))
    recommended = of_benchmark(run.tags.get("ctvr.paper", ""))
    wanted = str(recommended.get("preset", "paper"))
    try:
        preset = wanted if wanted in presets_of(method) else "paper"
        return resolve({"method": method, "stream": ""}, recommended, (preset,)).settings
    except ConfigError:
        return None
