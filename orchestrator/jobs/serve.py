"""Server of searches with a trained model over HTTP, which loads the model again after new commits (`ctvr serve`)."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.find_model import find_started, is_folder
from ctvr.orchestrator.jobs.load_model import close, count_finished, load, load_task
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.serving.app import Service
from ctvr.orchestrator.serving.gate import read_token
from ctvr.orchestrator.serving.server import Server, address_of, bind
from ctvr.orchestrator.serving.snapshot import Snapshot, Watcher
from ctvr.orchestrator.streams.stream import Stream

TERMINATED = 128 + signal.SIGTERM


def serve(
    name: str,
    execution: ExecutionConfig,
    among: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token_file: Path | None = None,
) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit status, 0 or 143.

    Args:
        name: name of a model, as for `load`, or the id or name of a run in training.
        execution: runs folder, store and videos.
        among: a folder of videos to search; if None, the videos of the model's stream are searched.
        host: address to listen on; an address other than loopback needs a token.
        port: port to listen on; 0 selects a free port, which is printed.
        token_file: file with the token; if None, the environment variable `serving.gate.TOKEN` is read.

    Raises:
        ConfigError: for an unknown model, missing videos, an unusable host, port or token.
    """
    token = read_token(host, token_file)
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminate)  # also while the model is loaded
    try:
        with bind(host, port) as bound:
            newest = NewestModel(name, execution, among)
            first = newest.load()
            assert first is not None, "the first check finds a model, or raises"
            watcher = Watcher(first, newest.load)
            service = Service(lambda: watcher.current, token)
            if not is_folder(name):  # a folder is read once
                watcher.start()
            try:
                bound.listen()  # before the address is printed, so that a client that reads it can connect
                say(f"{first.about}, {count(len(first.videos), 'video')}: {address_of(bound)} (stop it with Ctrl-C)")
                server = Server(service.app)
                server.run([bound])
            finally:
                service.close()
                watcher.stop()
                close(first.model)
    except KeyboardInterrupt:
        return 0
    except SystemExit:
        return TERMINATED
    return TERMINATED if server.is_terminated else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


class NewestModel:
    """Loader of the model to which a name refers, which follows the progress of the model's run."""

    def __init__(self, name: str, execution: ExecutionConfig, among: Path | None = None) -> None:
        self.name, self.execution, self.among = name, execution, among
        self._loaded = ("", 0)  # id of a run, and the number of tasks after which its model is loaded
        self._streams: dict[str, Stream | None] = {}

    def load(self) -> Snapshot | None:
        """Return the newest model with its gallery; None if it has already been returned.

        Raises:
            ConfigError: for an unknown model, a run without a finished task, or missing videos.
        """
        if is_folder(self.name):
            model = load(self.name, self.execution)
            return self._snapshot(model, f"{model.method}, {self.name}")
        run = find_started(self.name, self.execution)
        if run.run_id not in self._streams:
            self._streams = {run.run_id: self.execution.stream_of(run)}
        stream = self._streams[run.run_id]
        num_tasks = 0 if stream is None else len(stream.tasks)
        is_complete = run.tags.get("ctvr.complete") == "true"
        done = num_tasks if is_complete else count_finished(run, self.execution, num_tasks)
        if (run.run_id, done) == self._loaded:
            return None
        if is_complete:
            model = load(run.run_id, self.execution)
        elif done and stream is not None:
            model = load_task(run, self.execution, stream, done)
        else:
            raise ConfigError(
                f"model {self.name}: run {run.name} has not finished a task yet. Try again after its first task."
            )
        snapshot = self._snapshot(model, f"{run.name}, after task {done} of {num_tasks}" if num_tasks else run.name)
        self._loaded = run.run_id, done
        return snapshot

    def _snapshot(self, model: Model, about: str) -> Snapshot:
        """Return a snapshot of a model whose gallery is encoded, so that queries need not encode it."""
        if self.among is not None:
            done, stream = len(model.trained.galleries), model.stream  # texts are encoded for the last finished task
            task = stream.method_task(done - 1) if stream is not None and done else None
            model.set_gallery([replace(model.encode_gallery(self.among), task=task)])
        snapshot = Snapshot(model, about)
        _ = snapshot.videos  # encodes videos that lack features
        return snapshot
