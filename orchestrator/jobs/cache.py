"""Functions of `ctvr cache`: fill, list, verify and clean the store. Each returns text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import count
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.imported_features import frame_source
from ctvr.orchestrator.data.prepare import DecodeMissing, Prepared, decode_stream, passes
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.learning.run.featurize import Featurize, featurize_here, featurize_stream
from ctvr.orchestrator.processes import count_processors
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.gc import DAY, Garbage, by_kind, find_garbage, find_weights, remove_garbage
from ctvr.orchestrator.store.store import Size, Store, size_of
from ctvr.orchestrator.streams.load import is_embedded
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.selection import best_trials
from ctvr.orchestrator.tracking.left import is_left
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker

SHOWN = 20  # maximum number of listed objects or videos


def build_cache(
    stream_name: str, overrides: Settings, execution: ExecutionConfig, on_cluster: bool = False, features: bool = False
) -> str:
    """Decode every video of a stream into the store, for runs with these settings.

    Videos in the store are not decoded again, so an interrupted job resumes.

    Args:
        stream_name: name of a stream, or a manifest file.
        overrides: settings by dotted name, as for `ctvr run`.
        execution: execution settings; if it has an `address`, all nodes of that Ray cluster decode.
        on_cluster: whether to use the nodes of the Ray cluster.
        features: whether to also store the features of the method's frozen vision blocks.

    Raises:
        ConfigError: if videos are missing or broken and `data.skip_missing` is false. All other videos are decoded.
    """
    execution.check()
    places = execution.places()
    name = find_manifest(stream_name)
    stream = execution.load_stream(name, render=False)
    experiment = resolve({"method": "zero_shot", "stream": name, **overrides}, stream.settings)
    if is_embedded(name):
        stream = execution.load_stream(name)
    store = places.open_store()
    store.check_writable()
    clip = load_clip(experiment.backbone)
    source = frame_source(stream, store, experiment.data, clip.image_size, clip.resize)

    def build(decoder: Callable[[FrameSource], DecodeMissing], workers: int, featurize: Featurize | None) -> str:
        found = [
            decode_stream(stream, each, its, workers, decode=decoder(each))
            for each, its in passes(source, stream.splits)
        ]
        broken = {item: (item, error) for each in found for item, error in each.broken}
        decoded, known = (sum(getattr(each, name) for each in found) for name in ("decoded", "known"))
        done = replace(found[0], decoded=decoded, known=known, broken=list(broken.values()))
        lost = _list_lost(done)
        made = featurize_stream(stream, stream.splits, lost, featurize) if featurize is not None else ""
        return _report(stream, done, lost, made, execution, experiment.data.skip_missing)

    if not (on_cluster or execution.address):
        here = featurize_here(experiment.settings, places) if features else None
        return build(lambda each: each.decode_missing, count_processors(), here)
    from ctvr.orchestrator.on_ray.capacity import choose_gpus
    from ctvr.orchestrator.on_ray.connection import cluster
    from ctvr.orchestrator.on_ray.decode import decode_on_nodes
    from ctvr.orchestrator.on_ray.featurize import featurize_on_nodes

    with cluster(execution.address, execution.local_cpus, execution.nodes):
        gpus = choose_gpus(execution.gpus_per_trial, 1) if features else 0.0
        there = featurize_on_nodes(experiment.settings, places, gpus) if features else None
        return build(lambda each: partial(decode_on_nodes, each), 0, there)  # 0: use every CPU of the cluster


def _list_lost(done: Prepared) -> dict[str, str]:
    """Map each video without frames to the reason."""
    lost = {item.video: f"{item.path}: no such file" for item in done.missing}
    return lost | {item.video: str(error) for item, error in done.broken}


def _report(
    stream: Stream, done: Prepared, lost: Mapping[str, str], made: str, execution: ExecutionConfig, skip_missing: bool
) -> str:
    """Return a report on decoded and unusable videos, followed by `made`, the text on features.

    Raises:
        ConfigError: with the report as its text, if videos are unusable and `skip_missing` is false.
    """
    text = f"stream {stream.name}: {count(done.decoded, 'video')} decoded, {done.known} were in the store"
    if lost:
        lines = [f"{video}: {reason}" for video, reason in sorted(lost.items())]
        text += f", {len(lost)} cannot be used"
        if len(lines) > SHOWN:
            file = execution.runs.resolve() / f"broken-{re.sub(r'[^A-Za-z0-9_-]', '-', stream.name)}.txt"
            file.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")
            text += f" (all of them in {file})"
        text += _indent_lines(lines)
    text = "\n".join(filter(None, (text, made)))
    if lost and not skip_missing:
        raise ConfigError(text)
    return text


def list_cache(execution: ExecutionConfig) -> str:
    """Return a table: number and size of each kind of object, and of this machine's copies of remote objects."""
    store = execution.existing_store()
    entries = store.entries()
    lines = [_line(kind, size) for kind, size in by_kind(entries).items()]
    lines.append(f"{_line('all', size_of(entries))}  in {store.uri}")
    if (copies := store.copies()) is not None:
        folder, size, limit = copies
        lines.append(f"{_line('copies', size)}  in {folder}, at most {limit / 2**30:.1f} GiB (CTVR_CACHE_GB)")
    return "\n".join(lines)


def verify_cache(execution: ExecutionConfig, remove: bool = False) -> str:
    """Read every object and check its digest; return a report.

    Args:
        execution: runs folder and store.
        remove: whether to remove damaged objects.

    Raises:
        ConfigError: if objects are damaged and `remove` is false; the message has their names.
    """
    store = execution.existing_store()
    found = list(store.verify(remove))
    bad = [f"{name}: {problem}" for name, problem in found if problem]
    if not bad:
        return f"all {len(found)} objects are intact"
    done = "removed; they are created again when needed" if remove else "add --yes to remove them"
    text = f"{len(bad)} of {len(found)} objects are damaged ({done}){_indent_lines(bad)}"
    if not remove:
        raise ConfigError(text, "cache")
    return text


def collect_garbage(execution: ExecutionConfig, older_than: float | None = None, remove: bool = False) -> str:
    """Find and, with `remove`, delete objects that no commit, stream or recent sweep needs.

    Args:
        execution: the runs folder, whose MLflow records identify recent sweeps.
        older_than: age in days from which commits and frames are not needed, unless a recent sweep uses them.
        remove: whether to delete the objects.
    """
    if older_than is not None and older_than < 1:
        raise ConfigError(f"must be >= 1 day, got {older_than:g}", "--older-than", remedy="Use 30.")
    store = execution.existing_store()
    recent = recent_runs(execution.existing_tracker(), older_than) if older_than is not None else set()
    return _collect(store, find_garbage(store, older_than, recent), remove)


def collect_losers(execution: ExecutionConfig, sweep: str, remove: bool = False) -> str:
    """Find and, with `remove`, delete the weights of a finished sweep's trials except the best trial.

    Metrics are kept, and so are weights that another run shares.

    Raises:
        ConfigError: if the sweep is unknown or not finished, or has no complete trial.
    """
    store, tracker = execution.existing_store(), execution.existing_tracker()
    best = best_trials(tracker, sweep, 1)[0]
    parent, runs = tracker.find_sweep(sweep), tracker.find_runs(strict=True)
    trials = [run for run in runs if run.tags.get("ctvr.sweep") == sweep]
    if parent is None or parent.status != "FINISHED" or any(run.status == "RUNNING" for run in trials):
        raise ConfigError(f"--losers {sweep}: this sweep is not finished. Resume it: ctvr sweep --resume {sweep}")
    kept = [run for run in runs if run.run_id == best.run_id or run.tags.get("ctvr.best") or run not in trials]
    return _collect(store, find_weights(store, _commit_keys(trials) - _commit_keys(kept)), remove)


def _commit_keys(runs: Iterable[RunRecord]) -> set[str]:
    return {run.tags.get(tag, "") for run in runs for tag in ("ctvr.commits", "ctvr.result")} - {""}


def _collect(store: Store, garbage: Garbage, remove: bool) -> str:
    lines = [_line(kind, size) for kind, size in garbage.by_kind().items()]
    total = size_of(garbage.entries)
    if not total.objects and not garbage.leftovers:
        return f"nothing to remove: all {len(garbage.searched)} objects are needed or younger than a day"
    if not remove:
        return "\n".join([*lines, f"{_line('all', total)}  of {len(garbage.searched)}; --yes removes them"])
    removed = remove_garbage(store, garbage)
    kept = f"; {total.objects - removed.objects} are needed again" if removed.objects < total.objects else ""
    return "\n".join([*lines, f"{_line('removed', removed)}  of {len(garbage.searched)}{kept}"])


def recent_runs(tracker: Tracker, days: float) -> set[str]:
    """Return the result keys of runs that are running or began within `days`, and of all runs of their sweeps."""
    runs = tracker.find_runs(strict=True)
    begin = (time.time() - days * DAY) * 1000
    recent = [run for run in runs if run.started >= begin or (run.status == "RUNNING" and not is_left(tracker, run))]
    sweeps = {run.tags.get("ctvr.sweep") for run in recent} - {None, ""}
    return {
        run.tags["ctvr.result"]
        for run in runs
        if run.tags.get("ctvr.result") and (run in recent or run.tags.get("ctvr.sweep") in sweeps)
    }


def _line(what: str, size: Size) -> str:
    return f"{what:<10}{size.objects:8d} objects {size.bytes / 2**20:12.1f} MiB"


def _indent_lines(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "".join(f"\n  {line}" for line in [*lines[:SHOWN], *more])
