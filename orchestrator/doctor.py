"""`ctvr doctor`: what would go wrong in a sweep, found in seconds before it starts; every finding has its remedy.

Nothing is decoded, rendered or trained here, and neither torch nor Ray is imported.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from orchestrator import machine
from orchestrator.config import ConfigError
from orchestrator.digests import cache_folder, source_digest
from orchestrator.leaks import Leak, find_leaks, secret_values
from orchestrator.machine import Finding, listed
from orchestrator.outbox import REFUSED, Outbox
from orchestrator.store import Store
from orchestrator.streams import RENDERED, SPLITS, Stream, load_stream, missing_videos
from orchestrator.tracking import Tracker, check

log = logging.getLogger(__name__)
T = TypeVar("T")

EMBEDDED_BYTES = 500 * 10**6  # videos and frames of the embedded streams, generously
NUM_FRAMES, IMAGE_SIZE = 12, 224  # where the stream recommends none: the default of data.num_frames, CLIP's image
LOW_DISK, NO_DISK = 5 * 10**9, 500 * 10**6  # bytes free, besides what the stream needs
STORE_SECONDS = 6.0  # how long a store may take to answer
CLOCK_SECONDS = 5.0  # how far a shared folder's clock may be off
MAX_SWEEPS = 30  # newest sweeps that are looked at


@dataclass(frozen=True)
class _Place:
    """What is examined."""

    runs: Path
    store: str
    stream_name: str | None
    stream: Stream | None  # None: not asked for, embedded, or unreadable
    tracking_uri: str


def examine(runs: Path, store: str, stream: str | None, videos: Path | None, tracking_uri: str) -> list[Finding]:
    """Look at everything a sweep depends on. Never raises: a check that fails is a finding.

    Args:
        runs: the runs folder; need not exist.
        store: URI of the object store; empty = `<runs>/store`.
        stream: name or manifest of the stream that will be learned; None leaves data out.
        videos: base folder of the manifest's videos, if not the manifest's own.
        tracking_uri: of MLflow: `tracking.default_uri(runs)`.
    """
    runs = Path(runs).resolve()
    loaded: list[Stream] = []

    def read_stream() -> Iterator[Finding]:
        if stream in RENDERED:
            yield Finding("ok", "stream", f"{stream} is embedded; its videos are rendered when they are first needed")
        elif stream is not None:
            loaded.append(load_stream(stream, runs, videos))
            yield from _videos(loaded[0])

    bare = _Place(runs, store or str(runs / "store"), stream, None, tracking_uri)
    findings = _guarded("stream", read_stream)
    place = replace(bare, stream=loaded[0] if loaded else None)
    examinations: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": machine.versions,
        "code": _code,
        "decoders": machine.decoders,
        "machine": machine.machine,
        "GPUs": machine.gpus,
        "Ray": machine.ray_state,
        "ports": machine.ports,
        "disk": partial(_disk, place),
        "store": partial(_store, place),
        "clock": partial(_clock, place),
        "MLflow": partial(_mlflow, place),
        "outbox": partial(_outbox, place),
        "secrets": partial(_secrets, place),
        "keys": machine.secret_files,
    }
    for subject, examination in examinations.items():
        findings += _guarded(subject, examination)
    return findings


def blocking(findings: list[Finding]) -> list[Finding]:
    """The findings that should stop a sweep before it starts."""
    return [finding for finding in findings if finding.level == "error"]


def to_text(findings: list[Finding]) -> str:
    """The report for a person: one line per finding, the remedy below it, a summary last."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8}{finding.subject}: {finding.text}")
        if finding.remedy:
            lines.append(f"{'':<8}-> {finding.remedy}")
    errors = len(blocking(findings))
    warnings = sum(finding.level == "warning" for finding in findings)
    if not errors and not warnings:
        return "\n".join([*lines, "nothing stands in the way of a sweep"])
    counts = [f"{n} {word}{'s' * (n > 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return "\n".join([*lines, " and ".join(counts)])


def _guarded(subject: str, examination: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one check, whatever happens in it."""
    found: list[Finding] = []
    try:
        for finding in examination():
            found.append(finding)
    except ConfigError as error:
        found.append(_of_error(subject, error))
    except Exception as error:  # a doctor that dies of one organ says nothing of the others
        log.debug("doctor: %s", subject, exc_info=True)
        reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
        found.append(Finding("warning", subject, f"could not be examined ({reason})", "Look at it by hand."))
    return found


def _of_error(subject: str, error: ConfigError) -> Finding:
    """Our one-line errors end with their remedy."""
    text, dot, remedy = str(error).rpartition(". ")
    return Finding("error", subject, text or str(error), remedy if dot else "Correct this and run `ctvr doctor` again.")


# ------------------------------------------------------------------------------------- folders, data


def _nearest(folder: Path) -> Path:
    """The folder, or the closest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _local_store(place: _Place) -> Path | None:
    """The folder of a store that is one."""
    scheme, separator, rest = place.store.partition("://")
    if separator and scheme != "file":
        return None
    return Path(rest if separator else place.store).expanduser().absolute()


def frame_bytes(stream: Stream) -> int:
    """Bytes of a stream's decoded frames: videos x frames x size x size x 3."""
    settings = stream.settings
    videos = sum(len(getattr(task, split)) for task in stream.tasks for split in SPLITS)
    size = settings.get("data.image_size") or _image_size(str(settings.get("backbone.name", "")))
    return videos * int(settings.get("data.num_frames", NUM_FRAMES)) * int(size) ** 2 * 3


def _image_size(backbone: str) -> int:
    if backbone == "tiny-clip":
        file = Path(__file__).parent.parent / "methods" / "layers" / "tiny_clip" / "config.json"
        return int(json.loads(file.read_text())["model"]["vision_cfg"]["image_size"])
    named = re.search(r"-(\d{3})(?:-|$)", backbone)  # ViT-L-14-336
    return int(named.group(1)) if named else IMAGE_SIZE


def _disk(place: _Place) -> Iterator[Finding]:
    need = frame_bytes(place.stream) if place.stream else EMBEDDED_BYTES * (place.stream_name in RENDERED)
    store = _local_store(place)
    if store is None:
        copies = cache_folder()
        yield _disk_of("runs folder", place.runs, 0)
        yield _disk_of("copies of the store's objects", copies, need)
        return
    same = _nearest(place.runs).stat().st_dev == _nearest(store).stat().st_dev
    yield _disk_of("runs folder", place.runs, need if same else 0)
    if not same:
        yield _disk_of("store", store, need)


def _disk_of(what: str, folder: Path, need: int) -> Finding:
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
    remedy = f"{elsewhere}, or make room."
    if free < NO_DISK:
        return Finding("error", "disk", text, remedy)
    if free < need + LOW_DISK:
        return Finding("warning", "disk", text, remedy)
    return Finding("ok", "disk", text)


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
            f"Put them in place (`ctvr streams check {stream.name}` says where they are looked for), or leave them out "
            "with data.skip_missing=true: numbers are then not comparable with the paper.",
        )
    if empty:
        names = listed([item.video for item in empty])
        yield Finding("error", "videos", f"{stream.name}: {len(empty)} files are empty: {names}", "Copy them again.")
    if not missing and not empty:
        yield Finding("ok", "videos", f"{stream.name}: all {len(items)} are in place")
    if mark := stream.settings_mark:
        yield Finding("ok", "stream", mark)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, or TimeoutError; what it does afterwards no longer matters."""
    result: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:  # handed over to the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TimeoutError
    return result[0]


def _store(place: _Place) -> Iterator[Finding]:
    local = _local_store(place)
    if local is not None and not local.exists():
        yield Finding("ok", "store", f"{local} will be made")  # whether it can be: see disk
        return
    try:
        store = _within(STORE_SECONDS, lambda: Store.open(place.store))
    except TimeoutError:
        text = f"{place.store}: does not answer within {STORE_SECONDS:.0f} s"
        yield Finding("error", "store", text, "Check AWS_ENDPOINT_URL, the network and the bucket's region.")
        return
    if store.conditional_put:
        yield Finding("ok", "store", f"{store.uri} can be written, and keeps the first of two writers")
    else:
        yield Finding(
            "warning",
            "store",
            f"{store.uri} ignores If-None-Match: who finishes a task first is settled by claims, 1 s a task",
            "Results stay right as long as one server answers for the bucket and its clock never goes back; servers "
            "with conditional writes (AWS S3, MinIO, Ceph) need neither.",
        )


def _clock(place: _Place) -> Iterator[Finding]:
    with tempfile.NamedTemporaryFile(dir=_nearest(place.runs)) as probe:
        probe.write(b"1")
        probe.flush()
        ahead = os.fstat(probe.fileno()).st_mtime - time.time()
    if time.gmtime().tm_year < 2025:
        text = f"this machine believes it is {time.strftime('%Y-%m-%d')}"
        yield Finding("error", "clock", text, "Set the clock (timedatectl set-ntp true): certificates fail otherwise.")
    elif abs(ahead) > CLOCK_SECONDS:
        text = f"files in {place.runs} are stamped {ahead:+.0f} s from this machine's clock"
        yield Finding("warning", "clock", text, "Synchronise the clocks of this machine and the file server (NTP).")
    else:
        yield Finding("ok", "clock", f"agrees with that of {place.runs}")


# --------------------------------------------------------------------------- MLflow, sweeps, secrets


def _mlflow(place: _Place) -> Iterator[Finding]:
    uri = place.tracking_uri
    check(uri)
    if not uri.startswith("sqlite:///"):
        address = urlsplit(uri)
        yield _open_server(uri, address)
        if address.password:
            text = "the password stands in MLFLOW_TRACKING_URI, which is shown in process lists and pages"
            remedy = "Move it to MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            yield Finding("warning", "MLflow", text, remedy)
        yield from _sweeps(place)
        return
    file = Path(uri.removeprefix("sqlite:///")).absolute()
    if file.is_file() and (problem := _database_problem(file)):
        yield problem
        return
    text = f"records in {file} on this machine" if file.is_file() else f"{file} will be made"
    yield Finding("ok", "MLflow", text)
    if os.environ.get("RAY_ADDRESS", "local") != "local" or machine.cluster_address():
        text = "records go to a SQLite file, which other nodes of the cluster cannot write"
        remedy = "For more than one node start a server (cluster/services.sh) and set MLFLOW_TRACKING_URI."
        yield Finding("warning", "MLflow", text, remedy)
    if file.is_file():
        yield from _sweeps(place)


def _open_server(uri: str, address: SplitResult) -> Finding:
    """Whether a server that answers us would answer anybody."""
    is_near = address.hostname in ("localhost", "127.0.0.1", "::1")
    if is_near or not address.hostname:
        return Finding("ok", "MLflow", f"{address.hostname or uri} answers")
    bare = address._replace(netloc=address.netloc.rpartition("@")[2], path="/api/2.0/mlflow/experiments/search")
    try:
        with urllib.request.urlopen(bare._replace(query="max_results=1").geturl(), timeout=5):
            text = f"{address.hostname} asks for no password: whoever reaches it reads and changes every record"
            return Finding("warning", "MLflow", text, "Start it by cluster/services.sh, which gives it a password.")
    except OSError:  # 401 among others
        return Finding("ok", "MLflow", f"{address.hostname} answers, and asks for a password")


def _code() -> Iterator[Finding]:
    yield Finding("ok", "code", f"sources {source_digest()}; nodes of a cluster must show the same")


def _database_problem(file: Path) -> Finding | None:
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:  # locked, or not readable
        remedy = "End the program that holds it, or check who owns it."
        return Finding("warning", "MLflow", f"{file}: {error}", remedy)
    except sqlite3.DatabaseError as error:
        return Finding("error", "MLflow", f"{file}: {error}", "Move the file away, or put a copy of it back.")
    return None


def _outbox(place: _Place) -> Iterator[Finding]:
    outbox = Outbox(place.runs / "outbox")
    waiting = sum(len(outbox.read(name)[0]) for name in outbox.pending())
    refused = [file.stem for file in outbox.folder.glob(f"*{REFUSED}.jsonl") if file.stat().st_size]
    if waiting:
        yield Finding("warning", "outbox", f"{waiting} records wait for MLflow", f"`ctvr sync{_runs_option(place)}`")
    if refused:
        text = f"MLflow refused records of {listed([name.removesuffix(REFUSED) for name in refused])}"
        yield Finding("warning", "outbox", text, f"Look at {outbox.folder}/*{REFUSED}.jsonl, then remove these files.")
    if not waiting and not refused:
        yield Finding("ok", "outbox", "nothing waits for MLflow")


def _runs_option(place: _Place) -> str:
    return "" if place.runs == Path("runs").resolve() else f" --runs {place.runs}"


def _sweeps(place: _Place) -> Iterator[Finding]:
    """Sweeps of the runs folder whose record was never closed; MLflow is known to answer."""
    folders = [path for path in (place.runs / "sweeps").glob("*") if path.is_dir()]
    folders = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_SWEEPS]
    tracker = Tracker(place.tracking_uri, place.runs)
    unfinished = 0
    for folder in folders:
        record = tracker.find_sweep(folder.name)
        if record is None or record.status not in ("RUNNING", "KILLED"):
            continue
        unfinished += 1
        place_option = _runs_option(place)
        again = f"`ctvr sweep --resume {folder.name}{place_option}`"
        if searched := record.settings.get("rerun_of"):
            counts = f"--top {record.settings.get('top', 1)} --seeds {record.settings.get('seeds', 3)}"
            beside = record.settings.get("baselines", "")
            counts += f" --baselines {beside}" if beside else ""
            again = f"`ctvr sweep --resume {searched}{place_option}`"
            if "rows" not in record.settings:  # which a table's rerun has; it is never started by itself
                again += f" if that sweep started it, else `ctvr rerun --sweep {searched} {counts}{place_option}`"
        state = "was stopped" if record.status == "KILLED" else "is unfinished, or running now"
        yield Finding("warning", "sweeps", f"{folder.name} {state}", f"Go on with {again}.")
    if not unfinished:
        yield Finding("ok", "sweeps", "none is unfinished")


def _secrets(place: _Place) -> Iterator[Finding]:
    store = _local_store(place)
    values = secret_values(os.environ)
    leaks: list[Leak] = []
    read = unread = 0
    for folder in (place.runs, (machine.ray_file().parent / "session_latest" / "logs").resolve()):
        search = find_leaks(folder, values, skip=[store] if store else [])
        leaks += search.leaks
        read, unread = read + search.read, unread + search.unread
    for kind in dict.fromkeys(leak.kind for leak in leaks):
        of_kind = [leak for leak in leaks if leak.kind == kind]
        files = listed([_shown(leak.file, place.runs) for leak in of_kind])
        remedy = "Remove it from these files and replace the secret: whoever could read the folder may have it."
        yield Finding("error" if of_kind[0].is_certain else "warning", "secrets", f"{kind} is in {files}", remedy)
    if not leaks:
        yield Finding("ok", "secrets", f"none in {read} files")
    if unread:
        text = f"{unread} files were not read (time, or permission)"
        yield Finding("warning", "secrets", text, f"Remove old ones from {place.runs} and run `ctvr doctor` again.")


def _shown(file: Path, runs: Path) -> str:
    return str(file.relative_to(runs.parent) if file.is_relative_to(runs) else file)


__all__ = ["Finding", "blocking", "examine", "to_text"]
