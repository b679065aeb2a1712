"""Bundles of runs (`ctvr runs publish`): the ranks after each task from the commits, and digests of what ran."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ctvr.orchestrator.bundles.bundle import Bundle, to_bytes, write_parquet
from ctvr.orchestrator.bundles.check import seal
from ctvr.orchestrator.bundles.from_commits import bundle_of
from ctvr.orchestrator.bundles.signature import sign, signature_of
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.runs import find_record, is_complete
from ctvr.orchestrator.output_dir import runs_option, write_in_runs
from ctvr.orchestrator.sweeps.table import made_tables
from ctvr.orchestrator.sweeps.trust import trust_text
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker


def publish(
    name: str,
    execution: ExecutionConfig,
    out: Path | None = None,
    captions: bool = False,
    key: Path | None = None,
    parquet: Path | None = None,
) -> str:
    """Write a bundle of a run, or of the runs of a table; return a text on it.

    Args:
        name: name of a sweep or stream, as for `ctvr table`; or of a run, as for `ctvr runs show`.
        execution: runs folder and store.
        out: the file; default: `bundles/NAME.zip` in the runs folder.
        captions: whether to add the text of each caption.
        key: private key of SSH with which to sign the file.
        parquet: file for the ranks as one table.

    Raises:
        ConfigError: if no run can be published, or a file cannot be written.
    """
    tracker, store = execution.existing_tracker(), execution.existing_store()
    runs = _runs_of(name, execution, tracker)
    bundle, left_out = bundle_of(name, runs, tracker, store)
    if captions:
        bundle = seal({**bundle.about, "captions": _captions(bundle, runs, execution)}, bundle.ranks)
    file = out or execution.runs / "bundles" / f"{name}.zip"
    content = to_bytes(bundle)
    signature = None if key is None else sign(content, file.name, key)  # first: a refused key leaves no bundle
    ranks = None if parquet is None else write_parquet(bundle, parquet)
    write_in_runs(file, content, "Use another file.")
    about, place = bundle.about, os.path.relpath(file)
    queries = count(len(about["queries"]), "query", "queries")
    counts = f"{count(len(about['table']), 'row')}, {count(len(about['runs']), 'run')}, {queries}"
    lines = [f"written: {place} ({counts}, {len(content) / 1000:.1f} kB, digest {about['digest'][:12]})"]
    if signature is not None:
        write_in_runs(signature_of(file), signature, "Use another file.")
        lines.append(f"written: {os.path.relpath(signature_of(file))} (its signature)")
    if parquet is not None:
        lines.append(f"written: {os.path.relpath(parquet)} ({ranks} ranks)")
    folders = {"--store": execution.store, "--videos": execution.videos}
    given = "".join(f" {option} {shlex.quote(str(folder))}" for option, folder in folders.items() if folder)
    options = f"{runs_option(execution.runs)}{given}{trust_text()}"
    return "\n".join([*lines, *left_out, f"next: ctvr runs verify {shlex.quote(place)}{options}"])


def _runs_of(name: str, execution: ExecutionConfig, tracker: Tracker) -> list[RunRecord]:
    """Return the runs of the table of a sweep or stream, or one run."""
    is_sweep = tracker.find_sweep(name) is not None
    if not is_sweep and not tracker.find_runs(stream=name):
        run = find_record(name, tracker, methods=True)
        if not is_complete(run):
            raise ConfigError("is not complete", f"run {run.name}", remedy="Use a complete run.")
        return [run]
    tables = made_tables(execution, sweep=name if is_sweep else None, stream=None if is_sweep else name)
    if len(tables) > 1:
        streams = ", ".join(table.stream for table in tables)
        raise ConfigError(f"has tables of several streams ({streams})", name, remedy="Use the name of one stream.")
    shown = {run for row in tables[0].rows for run in row.runs}
    return [run for run in tracker.find_runs() if run.run_id in shown]


def _captions(bundle: Bundle, runs: Sequence[RunRecord], execution: ExecutionConfig) -> list[str]:
    """Return the text of each query.

    Raises:
        ConfigError: if the stream is not on this machine.
    """
    stream = execution.stream_of(runs[0])
    if stream is None:
        fault = f"the stream of run {runs[0].name} is not here, or has changed"
        raise ConfigError(fault, "--captions", remedy="Omit it, or pass --videos.")
    split = runs[0].tags.get("ctvr.split", "test")
    items = [item for task in range(len(stream.tasks)) for item in stream.items(task, split)]
    texts = {f"{item.video}#{number}": text for item in items for number, text in enumerate(item.captions)}
    return [texts[query] for query in bundle.about["queries"]]
