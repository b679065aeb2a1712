"""Checks before a sweep, each with a remedy for its problems (`ctvr doctor`).

They take seconds: they do not decode, render or train, and import neither torch nor Ray.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ctvr.methods.backbone.descriptions import image_size
from ctvr.orchestrator.console import count
from ctvr.orchestrator.digests import cache_folder, source_digest
from ctvr.orchestrator.doctor import machine, network, records
from ctvr.orchestrator.doctor.findings import Finding, listed
from ctvr.orchestrator.doctor.records import Examined
from ctvr.orchestrator.errors import ConfigError, TrackingUnavailable
from ctvr.orchestrator.on_ray.memory import worker_bytes
from ctvr.orchestrator.processes import lock_faults_in
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import is_embedded, load_stream
from ctvr.orchestrator.streams.stream import SPLITS, Stream
from ctvr.orchestrator.streams.videos import missing_videos
from ctvr.orchestrator.tracking.server import MOUNT_LOCKS

log = logging.getLogger(__name__)
T = TypeVar("T")

EMBEDDED_BYTES = 500 * 10**6  # upper estimate of videos and frames of the embedded streams
NUM_FRAMES, IMAGE_SIZE = 12, 224  # default of data.num_frames, and image size of CLIP in pixels
BATCH, BACKBONE = 8, "ViT-B-32"  # defaults if the stream recommends none
LOW_DISK, NO_DISK = 5 * 10**9, 500 * 10**6  # free bytes, in addition to the bytes of the stream's frames
STORE_SECONDS = 6.0  # timeout of a store


def examine(runs: Path, store: str, stream: str | None, videos: Path | None, tracking_uri: str) -> list[Finding]:
    """Check everything that a sweep depends on. A check that fails is reported as a finding, so nothing is raised.

    Args:
        runs: the runs folder; need not exist.
        store: URI of the object store; if empty, `<runs>/store`.
        stream: name or manifest of the stream; None skips the checks of videos.
        videos: base folder of the videos; if None, the folder that the manifest names.
        tracking_uri: URI of MLflow, `tracking.default_uri(runs)`.
    """
    runs = Path(runs).resolve()
    loaded: list[Stream] = []

    def read_stream() -> Iterator[Finding]:
        if stream is not None and is_embedded(stream):
            yield Finding("ok", "stream", f"{stream} is embedded; its videos are rendered at first use")
        elif stream is not None:
            loaded.append(load_stream(stream, runs, videos))
            yield from _videos(loaded[0])

    bare = Examined(runs, store or str(runs / "store"), stream, None, tracking_uri)
    findings = _run_check("stream", read_stream)
    place = replace(bare, stream=loaded[0] if loaded else None)
    examinations: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": machine.versions,
        "code": _code,
        "decoders": machine.decoders,
        "sandboxing": machine.sandboxing,
        "machine": partial(machine.machine, worker_of(place.stream)),
        "home": machine.home,
        "GPUs": machine.gpus,
        "Ray's folder": network.ray_folder,
        "Ray": network.ray_state,
        "disk": partial(_disk, place),
        "file locks": partial(_locks, place),
        "store": partial(_store, place),
        "MLflow": partial(records.mlflow, place),
        "outbox": partial(records.outbox, place),
    }
    for subject, examination in examinations.items():
        findings += _run_check(subject, examination)
    return findings


def blocking(findings: list[Finding]) -> list[Finding]:
    """Return the findings that stop a sweep before it starts."""
    return [finding for finding in findings if finding.level == "error"]


def to_text(findings: list[Finding]) -> str:
    """Format the report: one line for each finding, its remedy below, a summary at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8}{finding.subject}: {finding.text}")
        if finding.remedy:
            lines.append(f"{'':<8}-> {finding.remedy}")
    errors = len(blocking(findings))
    warnings = sum(finding.level == "warning" for finding in findings)
    if not errors and not warnings:
        return "\n".join([*lines, "ready for a sweep"])
    counts = [f"{n} {word}{'s' * (n > 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return "\n".join([*lines, " and ".join(counts)])


def _run_check(subject: str, examination: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Return the findings of one check; an exception in it is reported as a finding."""
    found: list[Finding] = []
    try:
        for finding in examination():
            found.append(finding)
    except ConfigError as error:
        is_away = isinstance(error, TrackingUnavailable)
        found.append(Finding("error", subject, error.described, error.advice, is_away))
    except Exception as error:  # a failed check must not prevent the others
        log.debug("doctor: %s", subject, exc_info=True)
        reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
        found.append(Finding("warning", subject, f"could not be checked ({reason})", "Check it manually."))
    return found


def _code() -> Iterator[Finding]:
    yield Finding("ok", "code", f"sources {source_digest()}; nodes of a cluster must show the same")


# ------------------------------------------------------------------------------------- folders, data


def _nearest(folder: Path) -> Path:
    """Return the folder if it exists, or its closest existing parent."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def frame_bytes(stream: Stream) -> int:
    """Return the bytes of a stream's decoded frames: videos x frames x size x size x 3."""
    settings = stream.settings
    videos = sum(len(getattr(task, split)) for task in stream.tasks for split in SPLITS)
    size = settings.get("data.image_size") or image_size(str(settings.get("backbone.name", ""))) or IMAGE_SIZE
    return videos * int(settings.get("data.num_frames", NUM_FRAMES)) * int(size) ** 2 * 3


def worker_of(stream: Stream | None) -> int:
    """Return the bytes of memory of a CPU worker with the recommended settings of the stream; 0 without a stream."""
    if stream is None:
        return 0
    recommended = {"data.num_frames": NUM_FRAMES, "data.batch_size": BATCH, **stream.settings}
    frames, pairs = (int(recommended[f"data.{name}"]) for name in ("num_frames", "batch_size"))
    return worker_bytes(str(recommended.get("backbone.name", BACKBONE)), frames, pairs)


def _disk(place: Examined) -> Iterator[Finding]:
    need = frame_bytes(place.stream) if place.stream else EMBEDDED_BYTES * is_embedded(place.stream_name or "")
    store = place.local_store
    if store is None:
        copies = cache_folder()
        yield _check_disk("runs folder", place.runs, 0)
        yield _check_disk("copies of the store's objects", copies, need)
        return
    same = _nearest(place.runs).stat().st_dev == _nearest(store).stat().st_dev
    yield _check_disk("runs folder", place.runs, need if same else 0)
    if not same:
        yield _check_disk("store", store, need)


def _check_disk(what: str, folder: Path, need: int) -> Finding:
    at = _nearest(folder)
    elsewhere = "Choose another folder with --runs or --store"
    if what.startswith("copies"):
        elsewhere = "Choose another folder with CTVR_CACHE"
    try:
        with tempfile.TemporaryFile(dir=at):
            pass
    except OSError as error:
        return Finding("error", "disk", f"{what} {folder}: cannot be written ({error.strerror})", f"{elsewhere}.")
    free = shutil.disk_usage(at).free
    text = f"{what} {folder}: {free / 1e9:.1f} GB free"
    if need:
        text += f", the stream's frames take up to {need / 1e9:.2g} GB"
    remedy = f"{elsewhere}, or free some space."
    if free < NO_DISK:
        return Finding("error", "disk", text, remedy)
    if free < need + LOW_DISK:
        return Finding("warning", "disk", text, remedy)
    return Finding("ok", "disk", text)


def _locks(place: Examined) -> Iterator[Finding]:
    """Find folders without file locks. MLflow's database needs `fcntl`; other files need `flock` or a substitute."""
    folders = {place.runs: "--runs", Path(tempfile.gettempdir()): "TMPDIR"}
    if place.local_store is not None:
        folders.setdefault(place.local_store, "--store")
    is_fine = True
    for folder, option in folders.items():
        for kind, fault in lock_faults_in(_nearest(folder)).items():
            is_fine, needs_it = False, kind == "fcntl" and folder == place.runs
            text = f"the file system of {folder} has no {kind} locks ({fault.strerror})"
            instead = "" if needs_it else "; files *.holder replace them" if kind == "flock" else ""
            remedy = f"{MOUNT_LOCKS}, or choose a folder on another disk with {option}."
            yield Finding("error" if needs_it else "warning", "file locks", text + instead, remedy)
    if is_fine:
        yield Finding("ok", "file locks", "the folders of runs, store and temporary files support file locks")


def _videos(stream: Stream) -> Iterator[Finding]:
    items = [item for task in stream.tasks for split in SPLITS for item in getattr(task, split)]
    missing = missing_videos(stream)
    gone = {item.video for item in missing}
    empty = [i for i in items if i.video not in gone and os.path.isfile(i.path) and not os.path.getsize(i.path)]
    if missing:
        yield Finding(
            "error",
            "videos",
            f"{stream.name}: {len(missing)} of {len(items)} are missing: {listed([item.video for item in missing])}",
            f"Put them in place (`ctvr streams check {stream.name}` lists their paths), or skip them "
            "with data.skip_missing=true; results are then not comparable with the paper.",
        )
    if empty:
        names = listed([item.video for item in empty])
        yield Finding(
            "error",
            "videos",
            f"{stream.name}: {count(len(empty), 'file is', 'files are')} empty: {names}",
            "Copy them again.",
        )
    if not missing and not empty:
        yield Finding("ok", "videos", f"{stream.name}: all {len(items)} are in place")
    if mark := stream.table_caveat:
        yield Finding("ok", "stream", mark)


def _run_with_timeout(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`; after `seconds`, raise TimeoutError, while `work` continues in its thread."""
    result: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:  # raised in the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TimeoutError
    return result[0]


def _store(place: Examined) -> Iterator[Finding]:
    local = place.local_store
    if local is not None and not local.exists():
        yield Finding("ok", "store", f"{local} will be created")  # `_disk` checks that it can be
        return
    try:
        store = _run_with_timeout(STORE_SECONDS, lambda: Store.open(place.store))
        store.check_writable()
    except TimeoutError:
        text = f"{place.store}: does not respond within {STORE_SECONDS:.0f} s"
        yield Finding("error", "store", text, "Check AWS_ENDPOINT_URL, the network and the bucket's region.")
        return
    yield Finding("ok", "store", f"{store.uri} can be written, and keeps the first of two concurrent writes")
