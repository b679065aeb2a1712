"""Two short runs on an embedded stream and their report (`ctvr demo`)."""

from __future__ import annotations

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import say
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.report import write_report
from ctvr.orchestrator.jobs.run import train
from ctvr.orchestrator.jobs.run_text import next_text
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.streams.metric_names import progress_text

STREAM, METHODS = "shapes-5", ("clip4clip", "er_ring")  # fine-tuning forgets, and replay is the simplest remedy


def demo(settings: Settings, execution: ExecutionConfig) -> tuple[str, str]:
    """Train two methods, and write the report of the stream.

    Args:
        settings: settings of both runs by dotted name.
        execution: runs folder and store.

    Returns:
        the results and the next commands as text, and the address of the report.
    """
    found = {}
    for method in METHODS:
        say(f"demo: {method}")
        found[method] = train({"method": method, "stream": STREAM, **settings}, (), execution)
    page = write_report(STREAM, execution).as_uri()
    lines = [f"{method:<10} {progress_text(done.record.metrics[-1])}" for method, done in found.items()]
    best = max(found.values(), key=lambda done: done.record.metrics[-1]["stream/t2v/r1"])
    following = next_text(best.stream, best.record.ranks, best.run_id, runs_option(execution.runs))
    return "\n".join([*lines, f"report: {page}", following]), page
