"""The jobs behind the command line that need no cluster: run, tabulate. Each returns text.

What runs on a cluster is in `jobs.sweep`, what minds the store in `jobs.cache`.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from methods import CONFIGURATIONS, find_method
from methods.base import Method
from orchestrator.config import Settings
from orchestrator.console import say
from orchestrator.data.batches import StreamData, check_pairs
from orchestrator.data.frames import FrameSource
from orchestrator.data.prepare import prepare_stream
from orchestrator.errors import ConfigError
from orchestrator.learning.assemble import load_clip
from orchestrator.learning.experiment import Experiment
from orchestrator.learning.identity import frames_digest
from orchestrator.learning.resolve import presets_of, resolve
from orchestrator.learning.run import Places, execute, splits_of, trains, zero_shot_curve
from orchestrator.streams.load import embedded_settings, load_stream
from orchestrator.streams.stream import Stream
from orchestrator.tables.build import build as build_tables
from orchestrator.tables.formats import to_markdown
from orchestrator.tables.write import write
from orchestrator.tracking.recorder import Recorder
from orchestrator.tracking.server import check, default_uri
from orchestrator.tracking.tracker import Tracker, create_store

GAIN = "stream/t2v/r1_gain"


@dataclass(frozen=True)
class Where:
    """Folders, servers and resources: what a result does not depend on."""

    runs: Path = Path("runs")
    store: str = ""
    videos: Path | None = None
    address: str | None = None  # of a Ray cluster
    nodes: int = 1
    local_cpus: int | None = None
    storage: str | None = None  # Ray's own state; must be shared between nodes
    workers: int = 1
    cpus_per_worker: float = 0.9
    gpus_per_trial: float | None = None  # none: one for each worker if the cluster has GPUs
    max_concurrent: int | None = None
    reuse: bool = True  # take over tasks of other runs where the results cannot differ

    def places(self) -> Places:
        videos = self.videos.resolve() if self.videos else None
        return Places(self.runs.resolve(), absolute(self.store), videos)

    def tracker(self, stream: str | None = None) -> Tracker:
        """The tracker, its database made ready.

        Raises:
            ConfigError: if the server does not answer, or the database cannot be written.
        """
        self.check()
        uri = default_uri(self.runs)
        create_store(uri, self.runs.resolve(), stream)
        return Tracker(uri, self.runs.resolve())

    def folder(self, name: str) -> Path:
        return self.runs.resolve() / "sweeps" / name

    def check(self) -> None:
        """Refuse numbers out of range and places that cannot be used, before anything starts.

        Raises:
            ConfigError: one line that names the option.
        """
        for option in ("workers", "nodes", "local_cpus", "max_concurrent"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"--{option.replace('_', '-')}: must be >= 1, got {value}.")
        if self.cpus_per_worker <= 0:
            raise ConfigError(f"--cpus-per-worker: must be > 0, got {self.cpus_per_worker:g}.")
        gpus = self.gpus_per_trial or 0.0
        if gpus < 0:
            raise ConfigError(f"--gpus-per-trial: must be >= 0, got {gpus:g}. Write 0 to train on CPUs.")
        share = gpus / self.workers
        if share > 1 and share != int(share):
            raise ConfigError(
                f"--gpus-per-trial: {gpus:g} GPUs for {self.workers} workers are {share:g} each; more than one must be "
                "a whole number."
            )
        if self.storage and re.match("[a-z0-9]+://[^/]*@", self.storage):
            raise ConfigError(
                "--storage: holds a password. Leave it out; keys belong in AWS_* variables of every node."
            )
        if self.videos is not None and not self.videos.is_dir():
            raise ConfigError(f"--videos: {self.videos} is no folder. Give the folder of the stream's videos.")
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.runs):
                pass
        except OSError as error:
            raise ConfigError(
                f"--runs {self.runs}: cannot be written ({error.strerror}). Choose another folder."
            ) from error
        check(default_uri(self.runs))


def absolute(place: str) -> str:
    """A folder as every process finds it; URIs as they are."""
    return place if not place or "://" in place else str(Path(place).resolve())


def find_manifest(text: str) -> str:
    """A stream as every process finds it: a manifest's path becomes absolute."""
    return str(Path(text).resolve()) if Path(text).is_file() else text


def default_presets(method: str, stream: Stream, asked: Sequence[str]) -> tuple[str, ...]:
    """The presets asked for, else the one that the stream recommends if the method has it for such videos.

    Frames per video stay with the stream: a preset of the same name for another number is not for its data.
    """
    if asked:
        return tuple(asked)
    recommended = str(stream.settings.get("preset", ""))
    preset = presets_of(method).get(recommended)
    frames = stream.settings.get("data.num_frames")
    return () if preset is None or preset.get("data.num_frames", frames) != frames else (recommended,)


def find_method_or_say(name: str) -> type[Method]:
    """A method by its name.

    Raises:
        ConfigError: with the nearest name that exists.
    """
    try:
        return find_method(name)
    except ValueError as error:
        raise ConfigError(f"method: {error}") from error


def search_space(method: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """FIXED, SPACE and PAPER of search_spaces/<method>.py; a configuration has its own in its method's file.

    Raises:
        ConfigError: if the method has no search space.
    """
    method, asked = CONFIGURATIONS.get(method, (method, ""))[0], method
    try:
        module = importlib.import_module(f"search_spaces.{method}")
    except ModuleNotFoundError as error:
        if error.name != f"search_spaces.{method}":
            raise
        raise ConfigError(f"method: {method} has nothing to search (no search_spaces/{method}.py).") from error
    found = {**vars(module), **getattr(module, "CONFIGURATIONS", {}).get(asked, {})}
    return dict(found["FIXED"]), dict(found["SPACE"]), dict(found.get("PAPER", {}))


@dataclass(frozen=True)
class Ready:
    """A stream whose frames are in the store."""

    stream: Stream  # as it will be used: `data.skip_missing` may have left videos out
    decoded: int  # videos that were not there before
    frames: str  # digest of all frames


def make_ready(experiment: Experiment, where: Where, splits: Sequence[str] = (), curve: bool = True) -> Ready:
    """Decode what is missing and compute the zero-shot curve once, before several processes need them.

    `splits` are decoded besides those that the experiment reads.

    Raises:
        ConfigError: if the stream lacks what the experiment asks for, or pairs to deal out to its workers.
    """
    places = where.places()
    stream = load_stream(experiment.run.stream, places.root, places.videos)
    needed = splits_of(experiment, stream)
    splits = tuple(dict.fromkeys((*needed, *splits)))
    if trains(experiment):
        check_pairs(stream, experiment.data, experiment.run.workers)
    store = places.open_store()
    backbone = load_clip(experiment.backbone)
    source = FrameSource(store, experiment.data, backbone.image_size)
    stream, decoded = prepare_stream(stream, source, splits, experiment.data.skip_missing)
    if curve:
        import torch

        torch.set_num_threads(experiment.run.threads)
        data = StreamData(
            stream, source, backbone.tokenize, backbone.mean, backbone.std, experiment.data, torch.device("cpu")
        )
        zero_shot_curve(experiment, stream, data, backbone, store)
    return Ready(stream, decoded, frames_digest(stream, source, splits))


# ----------------------------------------------------------------------------------------------- one run


def run(settings: Settings, presets: Sequence[str], where: Where, fresh: bool = False, keep_model: bool = False) -> str:
    """Train one method over one stream in this process, tracked by MLflow."""
    where.check()
    settings = {**settings, "stream": find_manifest(str(settings.get("stream", "")))}
    find_method_or_say(str(settings.get("method", "")))
    if (recommended := embedded_settings(settings["stream"])) is not None:
        resolve(settings, recommended, presets)  # mistakes are told before videos are rendered
    places = where.places()
    stream = load_stream(settings["stream"], places.root, places.videos)
    chosen = default_presets(settings["method"], stream, presets)
    experiment = resolve(settings, stream.settings, chosen)
    if experiment.run.workers > 1:
        raise ConfigError("workers: `ctvr run` trains in one process. Use `ctvr rerun` or `ctvr sweep` for several.")
    tracker = where.tracker(stream.name)
    name = f"{experiment.run.method}-seed{experiment.run.seed}-{time.strftime('%m%d-%H%M%S')}"
    recorder = Recorder(tracker, experiment, name, keep_model=keep_model)

    def report_task(task: Any, record: Any, seconds: float) -> None:
        recorder.report(task, record, seconds)
        row = record.metrics[task.index]
        say(
            f"task {task.index + 1}/{task.num_tasks}  R@1 {row['stream/t2v/r1']:.2f}  "
            f"({row.get(GAIN, float('nan')):+.2f} over zero-shot)  BWF {row['stream/t2v/bwf']:.2f}  {seconds:.1f} s"
        )

    result = execute(experiment, places, report=report_task, fresh=fresh, on_ready=recorder.ready, stream=stream)
    if result.resumed == len(result.stream.tasks):
        recorder.complete(result.record)
        say("every task had been finished before; nothing was trained (--fresh trains again)")
    last = result.record.metrics[-1]
    lines = [f"{key.removeprefix('stream/'):<16}{last[key]:8.2f}" for key in sorted(last) if key.startswith("stream/")]
    return "\n".join([f"{experiment.run.method} on {stream.name}, {experiment.evaluation.split} videos", *lines])


# ----------------------------------------------------------------------------------------------- a table


def table(where: Where, sweep: str | None = None, stream: str | None = None) -> str:
    """Write and return the table of a sweep's complete runs (or of every complete run of a stream)."""
    tracker = where.tracker()
    runs = tracker.find_runs(stream=stream, sweep=sweep)
    if not runs:
        raise ConfigError(
            f"table: no runs of {sweep or stream!r} in {tracker.uri.split('@')[-1]}. `ctvr ui` lists them."
        )
    made = build_tables(tracker, runs)
    folder = where.runs.resolve() / "tables" / (sweep or stream or "all")
    files = write(made, folder)
    return f"{to_markdown(made)}\n\nwritten: {', '.join(str(file) for file in files)}"
