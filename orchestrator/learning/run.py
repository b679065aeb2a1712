"""One run: a configuration in, a record out. Everything below the command line and Ray meets here.

`execute` trains and evaluates an `Experiment` in this process (or in each of several processes that share a torch
process group).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method
from ctvr.methods.images.resnet import ResNet18
from ctvr.orchestrator.data.batches import StreamData, check_pairs
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import memory_of, set_determinism
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.frozen_features import frozen_features
from ctvr.orchestrator.data.images import ImageData, ImageSource
from ctvr.orchestrator.data.imported_features import frame_source
from ctvr.orchestrator.data.malloc_tuning import retain_freed_memory
from ctvr.orchestrator.data.prepare import passes, prepare_stream
from ctvr.orchestrator.data.questions import QuestionData
from ctvr.orchestrator.errors import CommitConflict, ConfigError
from ctvr.orchestrator.learning.commits import Commits, RunState
from ctvr.orchestrator.learning.distributed import Workers
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.factory import load_tower, make_method
from ctvr.orchestrator.learning.loop import Loop, LoopConfig, Report
from ctvr.orchestrator.learning.prefix_reuse import AccessLog
from ctvr.orchestrator.learning.protocols import protocol_of
from ctvr.orchestrator.learning.pulse import at
from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.learning.run_key import NON_IDENTITY_SETTINGS, frames_digest
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream

log = logging.getLogger(__name__)

# What the features of an untrained model depend on
ZERO_SHOT_SETTINGS = (
    "backbone.",
    "data.num_frames",
    "data.image_size",
    "data.decoder",
    "data.cache_features",
    "evaluation.split",
    "precision",
    "deterministic",
)
MAX_DROPPED_FRACTION = 0.05  # of a task's pairs in an epoch, where batches cannot be dealt out evenly


@dataclass(frozen=True)
class RunPaths:
    """Where things are. No result depends on them."""

    root: Path  # the runs folder: videos of the embedded streams, manifests, reports
    store: str = ""  # URI of the object store; empty = <root>/store
    videos: Path | None = None  # base folder of a manifest's videos, if not the manifest's own

    def open_store(self) -> Store:
        return Store.open(self.store or str(self.root / "store"))  # copies of remote objects: $CTVR_CACHE


@dataclass
class Result:
    """What `execute` returns."""

    key: str
    record: RunState
    method: Method
    stream: Stream
    resumed: int  # tasks that had been finished before
    reused: int = 0  # of these, tasks that another run had trained


def splits_of(experiment: Experiment, stream: Stream) -> tuple[str, ...]:
    """Splits that a run reads: for training, for evaluation and, if that is another, for the choice of epochs.

    Raises:
        ConfigError: if it asks for validation videos and the stream has none.
    """
    evaluation = experiment.evaluation
    chosen = evaluation.selects_on(stream.has_val)
    for setting, split in (("evaluation.split", evaluation.split), ("evaluation.select_split", chosen)):
        if split == "val" and not stream.has_val:
            raise ConfigError(
                f"{setting}: stream {stream.name} has no validation videos. Write {setting}=test "
                "(choices are then made on test videos, and tables say so)."
            )
    return tuple(dict.fromkeys(("train", evaluation.split, chosen or evaluation.split)))


def has_training(experiment: Experiment) -> bool:
    """Whether anything is trained, so that a run depends on its seed at all: zero-shot CLIP has nothing to train."""
    cls = find_method(experiment.run.method)
    return experiment.optim.epochs > 0 and cls.param_groups is not Method.param_groups


def execute(
    experiment: Experiment,
    places: RunPaths,
    workers: Workers | None = None,
    report: Report | None = None,
    fresh: bool = False,
    reuse: bool = True,
    on_ready: Callable[[str, Method, StreamData, Commits], None] | None = None,
    stream: Stream | None = None,
) -> Result:
    """Train and evaluate one configuration, from its last finished task on.

    Args:
        experiment: from `resolve`.
        places: where videos and store are.
        workers: this process among those that train together.
        report: called after every task.
        fresh: ignore finished tasks of an earlier run with the same key, and of all others.
        reuse: take over tasks that another run has finished where the results cannot differ.
        on_ready: called before the first task with key, method, data and commits; again where another process was
            quicker with a task, since a new method then goes on from there.
        stream: the experiment's, where the caller has loaded it already.
    """
    workers = workers or Workers(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    complete, reads = experiment, AccessLog(NON_IDENTITY_SETTINGS)
    experiment = complete.track_reads(reads)  # from here on everything that is read is noted
    reads.note("workers")  # they are counted by `workers.size`, not by the setting
    if workers.device.type == "cpu":
        torch.set_num_threads(experiment.run.threads)
    set_determinism(workers.device, experiment.run.deterministic, experiment.run.precision)
    if not experiment.run.deterministic:
        log.warning(
            "deterministic=false: on a GPU a second run gives other numbers, and a run that was killed does, too"
        )
    store = places.open_store()
    store.check_writable()
    stream = stream or load_stream(experiment.run.stream, places.root, places.videos)
    backbone = load_tower(experiment, stream)
    data, frames = _open_data(experiment, stream, backbone, store, workers)
    stream = data.stream
    device = workers.device.type
    key, made_of = complete.key(stream, frames, device), complete.environment_digests(stream, frames, device)
    _check_agreement(workers, made_of | complete.file_digests())
    keeps = complete.tracking.keep_checkpoints  # its own states: another run's tasks would come without them
    shared = complete.prefixes(store, stream, frames, device) if reuse and not fresh and not keeps else None
    run = key if not fresh else workers.broadcast(f"{key}-{_nonce()}")
    commits = Commits(store, run, shared, made_of | complete.file_digests(), keeps)
    if workers.rank == 0 and (taken := commits.adopt_prefix(len(stream.tasks))):
        log.info("%d tasks are taken over from a run that did the same so far", taken)
    workers.broadcast(None)
    with memory_of(workers.device):
        found = zero_shot_curve(experiment, stream, data, backbone, store) if workers.rank == 0 else None
    zero_shot = workers.broadcast(found)
    config = LoopConfig(experiment.optim, experiment.evaluation, experiment.run.seed, experiment.run.precision)

    clips = [backbone]  # then fresh ones: a method changes its backbone

    def begin() -> Loop:
        clip = clips.pop() if clips else load_tower(experiment, stream)
        method = make_method(experiment, clip, stream).to(workers.device)
        mine = data.with_features(frozen_features(method, store, experiment.run.precision))
        loop = Loop(method, mine, config, commits, workers, report, zero_shot, reads)
        if on_ready is not None:
            on_ready(key, method, mine, commits)
        return loop

    with memory_of(workers.device), retain_freed_memory(workers.device):
        return _to_the_end(begin, key, stream)


def _to_the_end(begin: Callable[[], Loop], key: str, stream: Stream) -> Result:
    """Run a loop, and a fresh one from the newest commit on where another process has committed a task first."""
    num_tasks = len(stream.tasks)
    for attempt in count():
        loop = begin()
        resumed = loop.commits.finished(num_tasks)
        reused = min(loop.commits.reused, resumed)
        try:
            return Result(key, loop.run(), loop.method, stream, resumed, reused)
        except CommitConflict as other:
            if attempt > num_tasks:  # each time somebody has finished a task more
                raise
            log.warning("%s; going on from what it has finished", other)
            loop.method.cpu()  # two models need not fit; whoever was told of this one may hold it until the next
    raise AssertionError


def _open_data(
    experiment: Experiment, stream: Stream, backbone: Clip | ResNet18, store: Store, workers: Workers
) -> tuple[StreamData, str]:
    """The stream as tensors, every frame of it in the store, and the digest of these frames."""
    splits = splits_of(experiment, stream)
    source = source_of(stream, store, experiment.data, backbone)
    at("the decoding of the stream")
    if workers.rank != 0:  # one worker decodes what is missing, the others find it in the store
        workers.broadcast(None)
    for each, its in passes(source, splits):
        skip = experiment.data.skip_missing
        stream, _ = prepare_stream(stream, each, its, skip, progress=workers.rank == 0)
    if workers.rank == 0:
        workers.broadcast(None)
    if has_training(experiment):
        check_pairs(stream, experiment.data, workers.size)
    data = data_of(stream, source, experiment.data, backbone, workers.device)
    if has_training(experiment) and workers.size > 1:
        check_left_out(data, experiment.run.seed, workers)
    if has_training(experiment) and workers.rank == 0:
        warn_of_long_queues(experiment, data)
    return data, frames_digest(stream, source, splits)


def check_left_out(data: StreamData, seed: int, workers: Workers) -> None:
    """Say which share of a task's pairs several workers leave out of its first epoch, and refuse a large one.

    Raises:
        ConfigError: naming the first task that would lose more than `MAX_DROPPED_FRACTION`.
    """
    for index, task in enumerate(data.stream.tasks):
        pairs, dealt = (sum(data.batch_sizes([index], seed, index, 0, size)) for size in (1, workers.size))
        share = 1 - dealt / pairs
        what = f"{pairs - dealt} of {pairs} pairs of {task.name} ({share:.0%})"
        if share > MAX_DROPPED_FRACTION:
            raise ConfigError(
                f"workers: {what} would be left out of an epoch, since every batch is dealt out evenly to "
                f"{workers.size} workers. Use fewer workers, another data.batch_size or data.unique_videos=false."
            )
        if share and workers.rank == 0:
            log.info("%s are left out of an epoch, since batches are dealt out evenly to workers", what)


def warn_of_long_queues(experiment: Experiment, data: StreamData) -> None:
    """Say which tasks have fewer pairs in an epoch than a queue of momentum contrast has keys."""
    for group, config in (("method", experiment.method), ("base", experiment.base)):
        if not (queue := getattr(config, "queue_size", 0)):
            continue
        tasks = range(len(data.stream.tasks))
        pairs = [sum(data.batch_sizes([index], experiment.run.seed, index, 0)) for index in tasks]
        if short := [data.stream.tasks[index].name for index in tasks if pairs[index] < queue]:
            log.warning(
                "%s.queue_size=%d is more than the %d items that an epoch of %s has, so items are compared with older "
                "keys of themselves. Write a smaller %s.queue_size.",
                *(group, queue, min(pairs), short[0] if len(short) == 1 else f"{len(short)} tasks (the smallest)"),
                group,
            )


def _check_agreement(workers: Workers, made_of: dict[str, str]) -> None:
    """Refuse workers that would not compute the same run, by the names of what differs."""
    first = workers.broadcast(made_of)
    if differing := [name for name in made_of if first.get(name) != made_of[name]]:
        raise ConfigError(
            f"workers: they differ in {', '.join(differing)}. Share --videos and --store, install the same versions, "
            "and use machines of one kind."
        )


def _nonce() -> str:
    return secrets.token_hex(4)


def source_of(stream: Stream, store: Store, config: DataConfig, backbone: Clip | ResNet18) -> FrameSource:
    """Where the items of a stream are read, at the size that the backbone sees."""
    return frame_source(stream, store, config, getattr(backbone, "image_size", 0))


def data_of(
    stream: Stream, source: FrameSource, config: DataConfig, backbone: Clip | ResNet18, device: torch.device
) -> StreamData:
    """The stream as tensors, for the backbone."""
    if isinstance(source, ImageSource):
        return ImageData(stream, source, config, device)
    assert isinstance(backbone, Clip)
    of = QuestionData if stream.domain == "questions" else StreamData
    return of(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, device)


def zero_shot_curve(
    experiment: Experiment, stream: Stream, data: StreamData, backbone: Clip | ResNet18, store: Store
) -> list[float] | None:
    """R@1 of the untrained backbone after each task, on the same galleries; kept in the store.

    A trial is compared by its gain over this curve, since R@1 falls as the gallery grows. None where the protocol knows
    no such gain.
    """
    if protocol_of(stream).gain is None:
        return None
    settings = {name: experiment.settings[name] for name in experiment.settings if name.startswith(ZERO_SHOT_SETTINGS)}
    zero = resolve({"method": "zero_shot", "stream": experiment.run.stream, **settings})
    frames = frames_digest(stream, data.frames, (experiment.evaluation.split,))
    commits = Commits(store, "zero-" + zero.key(stream, frames, data.device.type))
    num_tasks = len(stream.tasks)
    if commits.finished(num_tasks) < num_tasks:
        config = LoopConfig(zero.optim, zero.evaluation, 0, zero.run.precision)

        def begin() -> Loop:
            method = make_method(zero, backbone, stream).to(data.device)
            mine = data.with_features(frozen_features(method, store, zero.run.precision))
            return Loop(method, mine, config, commits, Workers(device=data.device))

        _to_the_end(begin, commits.run, stream)
    return [row["stream/t2v/r1"] for row in commits.record(num_tasks).metrics]
