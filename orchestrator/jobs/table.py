"""`ctvr table`: complete runs, as MLflow has them, beside the papers' numbers."""

from __future__ import annotations

from orchestrator.errors import ConfigError
from orchestrator.jobs.deployment import Deployment
from orchestrator.tables.build import build
from orchestrator.tables.formats import to_markdown
from orchestrator.tables.write import write


def table(where: Deployment, sweep: str | None = None, stream: str | None = None) -> str:
    """Write and return the table of a sweep's complete runs (or of every complete run of a stream)."""
    tracker = where.tracker()
    runs = tracker.find_runs(stream=stream, sweep=sweep)
    if not runs:
        raise ConfigError(
            f"table: no runs of {sweep or stream!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    made = build(tracker, runs)
    folder = where.runs.resolve() / "tables" / (sweep or stream or "all")
    files = write(made, folder)
    return f"{to_markdown(made)}\n\nwritten: {', '.join(str(file) for file in files)}"
