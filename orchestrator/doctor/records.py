"""Checks of a runs folder's records by `ctvr doctor`: MLflow, outbox, unfinished sweeps."""

from __future__ import annotations

import os
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ctvr.orchestrator.console import count
from ctvr.orchestrator.doctor import network
from ctvr.orchestrator.doctor.findings import Finding, listed
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.proxies import proxies_of
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tracking.event_log import EVENTS
from ctvr.orchestrator.tracking.outbox import REFUSED, Outbox
from ctvr.orchestrator.tracking.server import check
from ctvr.orchestrator.tracking.tracker import Tracker

MAX_SWEEPS = 30  # number of newest sweeps that are checked


@dataclass(frozen=True)
class Examined:
    """Folders, stream and MLflow server that are checked."""

    runs: Path
    store: str
    stream_name: str | None
    stream: Stream | None  # None if no stream was named, or if it is embedded or unreadable
    tracking_uri: str

    @property
    def local_store(self) -> Path | None:
        """Return the folder of a local store, or None for a remote store."""
        scheme, separator, rest = self.store.partition("://")
        if separator and scheme != "file":
            return None
        return Path(rest if separator else self.store).expanduser().absolute()


_FOLDERS = ("artifacts", "outbox", EVENTS, "pages", "streams", "sweeps", "tables")  # subfolders of the runs folder


def mlflow(place: Examined) -> Iterator[Finding]:
    """Check the subfolders of the runs folder, the MLflow server or database, and unfinished sweeps."""
    for path in (place.runs / name for name in _FOLDERS):
        if os.path.lexists(path) and not path.is_dir():
            yield Finding("error", "runs", f"{path}: is not a folder", "Move it away.")
    uri = place.tracking_uri
    check(uri)
    if not uri.startswith("sqlite:///"):
        address = urlsplit(uri)
        yield open_server(uri, address)
        if address.password:
            text = "MLFLOW_TRACKING_URI contains the password and is visible in process lists and web pages"
            remedy = "Move it to MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            yield Finding("warning", "MLflow", text, remedy)
        yield from _sweeps(place)
        return
    file = Path(uri.removeprefix("sqlite:///")).absolute()
    if os.path.lexists(file) and not file.is_file():
        yield Finding("error", "MLflow", f"{file}: is not a file", "Move it away.")
        return
    if file.is_file() and (problem := _database_problem(file)):
        yield problem
        return
    text = f"records in {file} on this machine" if file.is_file() else f"{file} will be created"
    yield Finding("ok", "MLflow", text)
    if os.environ.get("RAY_ADDRESS", "local") != "local" or network.cluster_address():
        text = "records go to a SQLite file, which other nodes of the cluster cannot write"
        remedy = "For more than one node start a server (cluster/services.sh) and set MLFLOW_TRACKING_URI."
        yield Finding("warning", "MLflow", text, remedy)
    if file.is_file():
        yield from _sweeps(place)


def open_server(uri: str, address: SplitResult) -> Finding:
    """Check whether a server accepts requests without a password."""
    is_near = address.hostname in ("localhost", "127.0.0.1", "::1")
    if is_near or not address.hostname:
        return Finding("ok", "MLflow", f"{address.hostname or uri} responds")
    bare = address._replace(netloc=address.netloc.rpartition("@")[2], path="/api/2.0/mlflow/experiments/search")
    proxies = urllib.request.ProxyHandler(proxies_of(uri))  # as MLflow's client chooses them
    try:
        with urllib.request.build_opener(proxies).open(bare._replace(query="max_results=1").geturl(), timeout=5):
            text = f"{address.hostname} does not require a password, so anyone who can reach it can change every record"
            return Finding("warning", "MLflow", text, "Start it with cluster/services.sh, which sets a password.")
    except OSError:  # for example status 401
        return Finding("ok", "MLflow", f"{address.hostname} responds, and requires a password")


def _database_problem(file: Path) -> Finding | None:
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            database.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:  # locked, or unreadable
        remedy = "Stop the program that locks it, or check its owner."
        return Finding("warning", "MLflow", f"{file}: {error}", remedy)
    except sqlite3.DatabaseError as error:
        return Finding("error", "MLflow", f"{file}: {error}", "Move the file away, or restore a backup.")
    return None


def outbox(place: Examined) -> Iterator[Finding]:
    """Find records that wait for MLflow, and records that MLflow has refused."""
    outbox = Outbox(place.runs / "outbox")
    waiting = sum(len(outbox.read(name)[0]) for name in outbox.pending())
    refused = [file.stem for file in outbox.folder.glob(f"*{REFUSED}.jsonl") if file.stat().st_size]
    if waiting:
        remedy = f"`ctvr runs sync{runs_option(place.runs)}`"
        yield Finding("warning", "outbox", f"{count(waiting, 'record waits', 'records wait')} for MLflow", remedy)
    if refused:
        text = f"MLflow refused records of {listed([name.removesuffix(REFUSED) for name in refused])}"
        yield Finding("warning", "outbox", text, f"Inspect {outbox.folder}/*{REFUSED}.jsonl, then remove these files.")
    if not waiting and not refused:
        yield Finding("ok", "outbox", "no records wait for MLflow")


def _sweeps(place: Examined) -> Iterator[Finding]:
    """Find sweeps in the runs folder whose MLflow run was never closed. Call it after MLflow has responded."""
    folders = [path for path in (place.runs / "sweeps").glob("*") if path.is_dir()]
    folders = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_SWEEPS]
    tracker = Tracker(place.tracking_uri, place.runs)
    unfinished = 0
    for folder in folders:
        record = tracker.find_sweep(folder.name)
        if record is None or record.status not in ("RUNNING", "KILLED"):
            continue
        unfinished += 1
        place_option = runs_option(place.runs)
        again = f"`ctvr sweep --resume {folder.name}{place_option}`"
        if searched := record.settings.get("rerun_of"):
            counts = f"--top {record.settings.get('top', 1)} --seeds {record.settings.get('seeds', 3)}"
            baselines = record.settings.get("baselines", "")
            counts += f" --baselines {baselines}" if baselines else ""
            counts += f" --task-orders {record.settings['orders']}" if "orders" in record.settings else ""
            again = f"`ctvr sweep --resume {searched}{place_option}`"
            if "rows" not in record.settings:  # a table's rerun has `rows`, and is only started by its sweep
                again += f" if that sweep started it, else `ctvr rerun --sweep {searched} {counts}{place_option}`"
        state = "was stopped" if record.status == "KILLED" else "is unfinished or running"
        yield Finding("warning", "sweeps", f"{folder.name} {state}", f"Resume with {again}.")
    if not unfinished:
        yield Finding("ok", "sweeps", "none is unfinished")
