"""Execution of one run, from its configuration to its record.

`execute` trains and evaluates an `Experiment` in this process, or in each of several processes that share a torch
process group. The command line and Ray both call it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method
from ctvr.methods.images.resnet import ResNet18
from ctvr.orchestrator.data.batches import StreamData, check_pairs
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import memory_of, set_determinism
from ctvr.orchestrator.data.frames import DEFAULT_RESIZE, FrameSource
from ctvr.orchestrator.data.frozen_features import FrozenFeatures, frozen_features
from ctvr.orchestrator.data.images import ImageData, ImageSource
from ctvr.orchestrator.data.imported_features import frame_source
from ctvr.orchestrator.data.prepare import passes, prepare_stream
from ctvr.orchestrator.data.questions import QuestionData
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.errors import CommitConflict, ConfigError
from ctvr.orchestrator.keys.prefix_reuse import AccessLog
from ctvr.orchestrator.keys.run_key import NON_IDENTITY_SETTINGS, backbone_digest, frames_digest
from ctvr.orchestrator.learning.evaluation.own_metrics import try_metrics
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.evaluation.unseen import load_others, others_digest, prepare_others
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.batch_checks import check_left_out, warn_of_long_queues
from ctvr.orchestrator.learning.run.factory import load_backbone, make_method
from ctvr.orchestrator.learning.run.upgrade import (
    TwoTokenizers,
    check_upgrade,
    check_widths,
    make_learner,
    new_experiment,
)
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.epoch_state import EpochReports, Report
from ctvr.orchestrator.learning.training.loop import Loop, LoopConfig
from ctvr.orchestrator.learning.training.optimizer import try_optimizer
from ctvr.orchestrator.processes import record_position
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import build_experiment
from ctvr.orchestrator.store.paths import RunPaths
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.newer import require_same, with_newer
from ctvr.orchestrator.streams.stream import Stream

log = logging.getLogger(__name__)

# Settings on which the features of an untrained model depend
ZERO_SHOT_SETTINGS = (
    "backbone.",
    "compile",
    "data.num_frames",
    "data.image_size",
    "data.decoder",
    "data.cache_features",
    "evaluation.split",
    "precision",
    "deterministic",
)


@dataclass
class Result:
    """Result of `execute`."""

    key: str
    record: RunState
    method: Method
    stream: Stream
    resumed: int  # number of tasks that were finished before this call
    reused: int = 0  # number of these tasks that another run trained


def splits_of(experiment: Experiment, stream: Stream) -> tuple[str, ...]:
    """Return the splits that a run reads: training, evaluation, and selection of epochs if that split is different.

    Raises:
        ConfigError: if it needs validation videos, which the stream lacks.
    """
    evaluation = experiment.evaluation
    chosen = evaluation.selects_on(stream.has_val)
    for setting, split in (("evaluation.split", evaluation.split), ("evaluation.select_split", chosen)):
        if split == "val" and not stream.has_val:
            raise ConfigError(
                f"{setting}: stream {stream.name} has no validation videos. Use {setting}=test (selection then uses "
                "test videos, and tables mark it)."
            )
    return tuple(dict.fromkeys(("train", evaluation.split, chosen or evaluation.split)))


def check_streams(experiment: Experiment, stream: Stream, places: RunPaths) -> None:
    """Check the descriptions of the streams before any video is rendered or decoded.

    Raises:
        ConfigError: for an unknown stream of the evaluation or of an upgrade, a missing split, or too few pairs; for
            a metric, optimizer or mirror that cannot be used.
    """
    experiment.check_plugins()
    load_others(experiment.evaluation, stream, places, render=False)
    check_upgrade(experiment, with_newer(stream, experiment.upgrade.stream, places.root))
    splits_of(experiment, stream)
    if experiment.evaluation.metrics and stream.domain == "videos":
        try_metrics(experiment.evaluation.metrics, stream.items(0, experiment.evaluation.split))
    if experiment.trains_by_gradients:
        try_optimizer(experiment.optim)
        check_pairs(stream, experiment.data, experiment.run.workers)


def has_training(experiment: Experiment) -> bool:
    """Return whether a run learns, so that it depends on its seed; False for zero-shot CLIP."""
    return experiment.trains_by_gradients or bool(experiment.capabilities.learns_in_end_task)


def execute(
    experiment: Experiment,
    places: RunPaths,
    workers: Workers | None = None,
    report: Report | None = None,
    fresh: bool = False,
    reuse: bool = True,
    on_ready: Callable[[str, Method, StreamData, Commits], None] | None = None,
    stream: Stream | None = None,
    epochs: EpochReports | None = None,
) -> Result:
    """Train and evaluate one configuration, starting after its last finished task.

    Args:
        experiment: from `resolve`.
        places: locations of videos and store.
        workers: this process and the number of processes that train together.
        report: called after every task.
        fresh: whether to ignore finished tasks of an earlier run with the same key, and of all other runs.
        reuse: whether to adopt tasks that another run has finished with provably equal results.
        on_ready: called before the first task with key, method, data and commits. It is called again after a commit
            conflict, because a new method then continues from the other process's commit.
        stream: the experiment's stream, if the caller has loaded it already.
        epochs: the callback after epochs, the epoch after which the run pauses, and requests to end it.

    Raises:
        Interrupted: if a request ended it after an epoch or task; the next call continues there.
    """
    workers = workers or Workers(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    complete, reads = experiment, AccessLog(NON_IDENTITY_SETTINGS)
    experiment = complete.track_reads(reads)  # from here on all reads of settings are recorded
    reads.note("workers")  # `workers.size` is used instead of the setting
    if workers.device.type == "cpu":
        torch.set_num_threads(experiment.run.threads)
    set_determinism(workers.device, experiment.run.deterministic, experiment.run.precision)
    if not experiment.run.deterministic:
        log.warning("deterministic=false: on a GPU, repeated and resumed runs give different results")
    store = places.open_store()
    store.check_writable()
    stream = stream or load_stream(experiment.run.stream, places.root, places.videos)
    stream = with_newer(stream, complete.upgrade.stream, places.root)
    check_upgrade(complete, stream)
    backbone = load_backbone(experiment, stream, workers.device)
    data, frames = _open_data(experiment, stream, backbone, store, workers, places)
    stream = data.stream
    device, change = workers.device.type, complete.upgrade.task  # not recorded: earlier tasks do not depend on it
    before, its = frames, ""
    if change:
        newer, second = new_experiment(complete).track_reads(reads), stream.after(change - 1)
        tower = load_backbone(newer, second, workers.device)
        assert isinstance(tower, Clip)  # `check_upgrade` admits streams of videos and their features only
        assert isinstance(backbone, Clip)
        check_widths(complete, backbone, tower)
        tower.tokenize = tokens = TwoTokenizers(tower.tokenize, backbone.tokenize, complete.data.max_tokens)
        after, its = _open_data(newer, second, tower, store, workers, places)
        if complete.upgrade.stream:  # without the videos that `data.skip_missing` dropped
            require_same(stream, after.stream, complete.upgrade.stream)
        its = "" if its == frames else its
        frames = digest_of([frames, its]) if its else frames
    made_of = complete.environment_digests(stream, frames, device)
    key = complete.key_in(made_of)
    _check_agreement(workers, made_of | complete.file_digests())
    keeps = complete.tracking.keep_checkpoints  # adopted tasks would lack their checkpoints
    shared = complete.prefixes(store, made_of | {"frames": before}, its) if reuse and not fresh and not keeps else None
    run = key if not fresh else workers.broadcast(f"{key}-{secrets.token_hex(4)}")
    commits = Commits(store, run, shared, made_of | complete.file_digests(), keeps)
    if workers.rank == 0 and (taken := commits.adopt_prefix(change - 1 if change else len(stream.tasks))):
        log.info("adopted %d tasks from a run with the same settings so far", taken)
    workers.broadcast(None)
    with memory_of(workers.device):
        found = zero_shot_curve(experiment, stream, data, backbone, store) if workers.rank == 0 else None
    zero_shot = workers.broadcast(found)
    config = LoopConfig(
        *(experiment.optim, experiment.evaluation, experiment.run.seed, experiment.run.precision),
        0.0 if fresh else experiment.tracking.pause_minutes,
    )

    clips = [backbone]  # used once; a second method gets a new backbone, because a method changes its own

    def begin() -> Loop:
        clip = clips.pop() if clips else load_backbone(experiment, stream, workers.device)
        method = make_method(experiment, clip, stream).to(workers.device)
        mine = data.with_features(_features(method, store, experiment))
        if change and workers.broadcast(commits.finished(len(stream.tasks))) >= change - 1:
            reads.update(name for name in complete.settings if name.startswith("upgrade."))
            new = make_method(newer, load_backbone(newer, second, workers.device), second).to(workers.device)
            method, mine = make_learner(complete, new, method, after, tokens, data), after
        loop = Loop(method, mine, config, commits, workers, report, zero_shot, reads, epochs)
        if on_ready is not None:
            on_ready(key, method, mine, commits)
        return loop

    with memory_of(workers.device):
        return _to_the_end(begin, key, stream, change)


def _features(method: Method, store: Store, experiment: Experiment) -> FrozenFeatures | None:
    return frozen_features(method, store, experiment.run.precision, backbone_digest(experiment.backbone.name))


def _to_the_end(begin: Callable[[], Loop], key: str, stream: Stream, change: int = 0) -> Result:
    """Run the loop to the end; start a new loop from the newest commit after a conflict, and at task `change`."""
    num_tasks, resumed = len(stream.tasks), -1
    for attempt in count():
        loop = begin()
        finished = loop.commits.finished(num_tasks)
        resumed = finished if resumed < 0 else resumed
        try:
            record = loop.run(change - 1 if finished < change - 1 else None)
            if record.done == num_tasks:
                return Result(key, record, loop.method, stream, resumed, min(loop.commits.reused, resumed))
        except CommitConflict as other:
            if attempt > num_tasks:  # each conflict means that another process finished one more task
                raise
            log.warning("%s; continuing from its commit", other)
            resumed = -1
            loop.method.cpu()  # two models may not fit on the device; `on_ready` callers may still hold this one
    raise AssertionError


def _open_data(
    experiment: Experiment,
    stream: Stream,
    backbone: Clip | ResNet18,
    store: Store,
    workers: Workers,
    places: RunPaths,
) -> tuple[StreamData, str]:
    """Decode all frames of the stream and of other searched streams; return the data and the digest of the frames."""
    others = load_others(experiment.evaluation, stream, places)  # a wrong name is refused before anything is decoded
    splits = splits_of(experiment, stream)
    source = source_of(stream, store, experiment.data, backbone)
    record_position("the decoding of the stream")
    if workers.rank != 0:  # rank 0 decodes missing frames; the others then find them in the store
        workers.broadcast(None)
    for each, its in passes(source, splits):
        skip = experiment.data.skip_missing
        stream, _ = prepare_stream(stream, each, its, skip, progress=workers.rank == 0)
    if workers.rank == 0:
        workers.broadcast(None)
    if experiment.trains_by_gradients:
        check_pairs(stream, experiment.data, workers.size)
    data = data_of(stream, source, experiment.data, backbone, workers.device)
    if experiment.trains_by_gradients and workers.size > 1:
        check_left_out(data, experiment.run.seed, workers)
    if experiment.trains_by_gradients and workers.rank == 0:
        warn_of_long_queues(experiment, data)
    frames, split = frames_digest(stream, source, splits), experiment.evaluation.split
    if others:
        sources = {name: source_of(each, store, experiment.data, backbone) for name, each in others.items()}
        if workers.rank != 0:
            workers.broadcast(None)
        prepare_others(others, stream, sources, source, split, workers.rank == 0)
        if workers.rank == 0:
            workers.broadcast(None)
        data.others = {
            name: data_of(each, sources[name], experiment.data, backbone, workers.device)
            for name, each in others.items()
        }
        frames = digest_of([frames, others_digest(others, sources, split)])
    return data, frames


def _check_agreement(workers: Workers, made_of: dict[str, str]) -> None:
    """Raise ConfigError if the workers' keys differ; the message names the differing digests."""
    first = workers.broadcast(made_of)
    if differing := [name for name in made_of if first.get(name) != made_of[name]]:
        raise ConfigError(
            f"the workers differ in {', '.join(differing)}. Share --videos and --store, install the same "
            "versions, and use machines of the same kind.",
            "workers",
        )


def source_of(stream: Stream, store: Store, config: DataConfig, backbone: Clip | ResNet18) -> FrameSource:
    """Return the source of a stream's items, at the backbone's image size."""
    return frame_source(
        stream, store, config, getattr(backbone, "image_size", 0), getattr(backbone, "resize", DEFAULT_RESIZE)
    )


def data_of(
    stream: Stream, source: FrameSource, config: DataConfig, backbone: Clip | ResNet18, device: torch.device
) -> StreamData:
    """Return the stream as tensors for the backbone."""
    if isinstance(source, ImageSource):
        return ImageData(stream, source, config, device)
    assert isinstance(backbone, Clip)
    of = QuestionData if stream.domain == "questions" else StreamData
    return of(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, device)


def zero_shot_curve(
    experiment: Experiment, stream: Stream, data: StreamData, backbone: Clip | ResNet18, store: Store
) -> list[float] | None:
    """Return R@1 of the untrained backbone after each task, on the same galleries; it is cached in the store.

    Trials are compared by their gain over this curve, because R@1 falls as the gallery grows. Return None if the
    protocol does not define a gain.
    """
    if protocol_of(stream).gain is None:
        return None
    settings = {name: experiment.settings[name] for name in experiment.settings if name.startswith(ZERO_SHOT_SETTINGS)}
    zero = build_experiment({"you": {"method": "zero_shot", "stream": experiment.run.stream, **settings}})
    frames = frames_digest(stream, data.frames, (experiment.evaluation.split,))
    commits = Commits(store, "zero-" + zero.key(stream, frames, data.device.type))
    num_tasks = len(stream.tasks)
    if commits.finished(num_tasks) < num_tasks:
        config = LoopConfig(zero.optim, zero.evaluation, 0, zero.run.precision)

        def begin() -> Loop:
            method = make_method(zero, backbone, stream).to(data.device)
            mine = data.with_features(_features(method, store, zero))
            return Loop(method, mine, config, commits, Workers(device=data.device))

        _to_the_end(begin, commits.run, stream)
    return [row["stream/t2v/r1"] for row in commits.record(num_tasks).metrics]
