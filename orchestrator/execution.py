"""Execution settings of a command: folders, servers and resources. They do not affect results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import check_creatable
from ctvr.orchestrator.redaction import redact
from ctvr.orchestrator.streams.load import load_stream, plain_name
from ctvr.orchestrator.streams.newer import with_newer
from ctvr.orchestrator.tracking.left import close_left
from ctvr.orchestrator.tracking.readable import readable_uri
from ctvr.orchestrator.tracking.server import check, default_uri, require_records
from ctvr.orchestrator.tracking.tracker import Tracker, create_store

if TYPE_CHECKING:
    from ctvr.orchestrator.store.paths import RunPaths
    from ctvr.orchestrator.store.store import Store
    from ctvr.orchestrator.streams.stream import Stream
    from ctvr.orchestrator.tracking.run_record import RunRecord

_ADDRESS = re.compile(r"auto|local|(ray://)?([^/:\s]+|\[[\da-fA-F:]+\]):\d+")  # address of a Ray cluster
STORE_MARKS = (".tmp", "commits", "frames")  # a store contains at least one of these folders


@dataclass(frozen=True)
class ExecutionConfig:
    """Folders, servers and resources of a command. They do not affect results."""

    runs: Path = Path("runs")
    store: str = ""
    videos: Path | None = None
    address: str | None = None  # address of a Ray cluster
    nodes: int = 1
    local_cpus: int | None = None
    ray_storage: str | None = None  # folder or URI of Ray's own state, writable by every node
    workers: int = 1
    cpus_per_worker: float = 0.9
    gpus_per_trial: float | None = None  # if None, one for each worker if the cluster has GPUs
    accelerator_type: str = ""  # model of the GPUs, by Ray's name; if empty, any model
    worker_timeout_hours: float = 24.0  # hours that workers wait for the first one, and without progress
    max_concurrent: int | None = None
    max_nodes: int | None = None  # upper limit of nodes requested from the autoscaler
    reuse_prefixes: bool = True  # reuse tasks of other runs if the results cannot differ

    def places(self) -> RunPaths:
        from ctvr.orchestrator.store.paths import RunPaths  # imports numpy, which a refused command does not need

        videos = self.videos.resolve() if self.videos else None
        return RunPaths(self.runs.resolve(), absolute(self.store), videos)

    def tracker(self, stream: str | None = None) -> Tracker:
        """Open the tracker and create its database. With `stream`, close that stream's runs of dead processes.

        Raises:
            ConfigError: if the server does not respond, or the database cannot be written.
        """
        self.check()
        uri = default_uri(self.runs)
        create_store(uri, self.runs.resolve(), stream)
        tracker = Tracker(uri, self.runs.resolve())
        if stream is not None:
            close_left(tracker, stream)
        return tracker

    def existing_tracker(self, writes: bool = False) -> Tracker:
        """Open the tracker of existing records. Never creates a database.

        Without `writes`, MLflow is imported only if necessary, and a read-only folder is accepted.

        Raises:
            ConfigError: if the runs folder has no records, or the server does not respond.
        """
        require_records(self.runs)
        if writes:
            return self.tracker()
        self.check(writes=False)
        return Tracker(readable_uri(default_uri(self.runs)), self.runs.resolve())

    def existing_store(self) -> Store:
        """Open the existing object store. Never creates one.

        Raises:
            ConfigError: if the store is a folder that does not exist.
        """
        self.require_store()
        return self.places().open_store()

    def require_store(self) -> None:
        """Refuse a folder that is not a store, so that a command that only reads does not create one.

        Raises:
            ConfigError: if the folder does not exist or is not a store.
        """
        place = absolute(self.store) or str(self.runs.resolve() / "store")
        if "://" in place or any((Path(place) / mark).is_dir() for mark in STORE_MARKS):
            return
        named, why = f"--store {self.store or place}", "is a file" if Path(place).is_file() else "does not exist"
        if Path(place).is_dir():
            why = "is not a store"
            if any((Path(place) / "store" / mark).is_dir() for mark in STORE_MARKS):
                raise ConfigError(
                    "is a runs folder", named, remedy=f"Use --store {Path(self.store or place) / 'store'}."
                )
        raise ConfigError(why, named, remedy="Pass the store of earlier runs.")

    def load_stream(self, name: str, render: bool = True) -> Stream:
        """Load a stream with the folders of this configuration (see `streams.load.load_stream`)."""
        return load_stream(name, self.runs.resolve(), self.videos.resolve() if self.videos else None, render)

    def stream_of(self, run: RunRecord) -> Stream | None:
        """Return the stream of a stored run; None if it is not on this machine, or has changed since the run."""
        try:
            stream = self.load_stream(str(run.settings["stream"]))
            stream = with_newer(stream, str(run.settings.get("upgrade.stream", "")), self.runs.resolve())
        except ConfigError:
            return None  # a manifest was moved
        digests = stream.digest, stream.newer.digest if stream.newer else None
        return stream if digests == (run.tags.get("ctvr.stream_digest"), run.tags.get("ctvr.upgrade_digest")) else None

    def folder(self, name: str) -> Path:
        return self.runs.resolve() / "sweeps" / name

    def check_videos(self) -> None:
        """Refuse a folder of videos that does not exist.

        Raises:
            ConfigError: if it does not exist.
        """
        if self.videos is not None and not self.videos.is_dir():
            raise ConfigError(
                f"{self.videos} is not a folder", "--videos", remedy="Pass the folder of the stream's videos."
            )

    def check(self, writes: bool = True) -> None:
        """Check that values are in range and folders and servers usable, before anything starts or is created.

        Without `writes`, the runs folder need not be writable.

        Raises:
            ConfigError: one line that names the option.
        """
        for option in ("workers", "nodes", "local_cpus", "max_concurrent", "max_nodes"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"must be >= 1, got {value}.", f"--{option.replace('_', '-')}")
        if self.max_nodes is not None and self.max_nodes < self.nodes:
            raise ConfigError(
                f"must be >= --nodes, got {self.max_nodes} and {self.nodes}",
                "--max-nodes",
                remedy="Raise --max-nodes or lower --nodes.",
            )
        if self.cpus_per_worker <= 0:
            raise ConfigError(f"must be > 0, got {self.cpus_per_worker:g}.", "--cpus-per-worker")
        if not 0 < self.worker_timeout_hours <= 1e4:
            raise ConfigError(
                f"must be > 0 and <= 10000, got {self.worker_timeout_hours:g}",
                "--worker-timeout-hours",
                remedy="Use for example 24.",
            )
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"{self.address!r:.200} is not the address of a Ray cluster",
                "--address",
                remedy="Use auto, local, HOST:6379 or ray://HOST:10001.",
            )
        gpus = self.gpus_per_trial or 0.0
        if gpus < 0:
            raise ConfigError(f"must be >= 0, got {gpus:g}", "--gpus-per-trial", remedy="Use 0 to train on CPUs.")
        if self.accelerator_type and self.gpus_per_trial == 0:
            raise ConfigError(
                "--gpus-per-trial 0 trains on CPUs",
                f"--accelerator-type {self.accelerator_type}",
                remedy="Omit one of them.",
            )
        share = gpus / self.workers
        if share > 1 and share != int(share):
            raise ConfigError(
                f"{gpus:g} GPUs for {self.workers} workers are {share:g} each; a share > 1 must be a whole number",
                "--gpus-per-trial",
                remedy="Change --gpus-per-trial or --workers.",
            )
        for option, place in (("--store", self.store), ("--storage", self.ray_storage or "")):
            if scheme := re.match("([a-z][a-z0-9+]+):/?(?!/)", place):  # otherwise a folder `s3:` would be created
                fixed = f"{scheme[1]}://{place[scheme.end() :]}"
                raise ConfigError("is neither a folder nor a URI", f"{option} {place}", remedy=f"Use {fixed}.")
        if self.ray_storage and redact(self.ray_storage, {}) != self.ray_storage:
            raise ConfigError(
                "contains a password", "--storage", remedy="Remove it, and set AWS_* variables on every node instead."
            )
        self.check_videos()
        if writes:
            check_creatable(self.runs, "--runs")
        if "://" in (place := absolute(self.store).removeprefix("file://")):
            from ctvr.orchestrator.store.store import Store

            Store.open(place)  # an unusable store is refused before videos are rendered
        elif place and not Path(place).is_dir():
            check_creatable(Path(place), "--store")
        check(default_uri(self.runs), writes=writes)


def absolute(place: str) -> str:
    """Return the absolute path of a folder; a URI is returned unchanged."""
    return place if not place or "://" in place else str(Path(place).expanduser().resolve())


def find_manifest(text: str) -> str:
    """Return a stream's name unchanged, or a manifest's path as an absolute path, which other processes can open."""
    written = plain_name(text)
    if not Path(written).is_file():
        return text
    return str(Path(written).resolve()) + text.removeprefix(written)
