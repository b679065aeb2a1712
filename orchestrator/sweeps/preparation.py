"""Preparation of a stream before several processes use it: decoding of frames, and the zero-shot curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ctvr.orchestrator.data.batches import check_pairs
from ctvr.orchestrator.data.prepare import passes, prepare_stream
from ctvr.orchestrator.digests import digest_of
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.keys.run_key import frames_digest
from ctvr.orchestrator.learning.run.execute import data_of, source_of, splits_of, zero_shot_curve
from ctvr.orchestrator.learning.run.factory import load_tower
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.streams.stream import Stream


@dataclass(frozen=True)
class PreparedStream:
    """A stream whose frames are in the store."""

    stream: Stream  # without the videos that `data.skip_missing` dropped
    decoded: int  # number of newly decoded videos
    frames: str  # digest of all frames
    zero_shot: tuple[float, ...] = ()  # R@1 of the untrained backbone after each task, if it was computed


def prepare_run(
    experiment: Experiment,
    execution: ExecutionConfig,
    splits: Sequence[str] = (),
    curve: bool = True,
    on_cluster: bool = False,
) -> PreparedStream:
    """Decode missing videos and compute the zero-shot curve once, before several processes need them.

    Args:
        experiment: the run to prepare.
        execution: the runs folder, store and videos.
        splits: splits to decode in addition to the experiment's splits.
        curve: whether to compute the zero-shot curve.
        on_cluster: whether to decode on all nodes of the connected cluster.

    Raises:
        ConfigError: if the stream lacks data that the experiment needs, or a task has fewer pairs than workers.
    """
    stream = execution.load_stream(experiment.run.stream)
    needed = splits_of(experiment, stream)
    splits = tuple(dict.fromkeys((*needed, *splits)))
    if experiment.trains_by_gradients:
        check_pairs(stream, experiment.data, experiment.run.workers)
    store = execution.places().open_store()
    store.check_writable()
    backbone = load_tower(experiment, stream)
    source = source_of(stream, store, experiment.data, backbone)
    decoded, skip = 0, experiment.data.skip_missing
    for each, its in passes(source, splits):
        if on_cluster:
            from ctvr.orchestrator.on_ray.decode import decode_on_cluster

            everywhere = partial(decode_on_cluster, each)
            stream, new = prepare_stream(stream, each, its, skip, workers=0, decode=everywhere)
        else:
            stream, new = prepare_stream(stream, each, its, skip)
        decoded += new
    zero_shot: Sequence[float] | None = None
    if curve:
        import torch

        torch.set_num_threads(experiment.run.threads)
        data = data_of(stream, source, experiment.data, backbone, torch.device("cpu"))
        zero_shot = zero_shot_curve(experiment, stream, data, backbone, store)
    return PreparedStream(stream, decoded, frames_digest(stream, source, splits), tuple(zero_shot or ()))


def prepare_all(
    runs: Sequence[Experiment], execution: ExecutionConfig, splits: Sequence[str], curve: bool, on_cluster: bool = False
) -> list[PreparedStream]:
    """Prepare the streams of several runs, once for all runs with the same data; return one result per run.

    Args:
        runs: the runs.
        execution: the runs folder, store and videos.
        splits: splits to decode in addition to the splits of the runs.
        curve: whether to compute the zero-shot curves in this process; workers with GPUs are faster.
        on_cluster: whether to decode on all nodes of the connected cluster.
    """
    made: dict[str, PreparedStream] = {}
    needs = [
        digest_of([run.run.stream, *(asdict(part) for part in (run.data, run.backbone, run.evaluation))])
        for run in runs
    ]
    for need, run in zip(needs, runs):
        if need not in made:
            made[need] = prepare_run(run, execution, splits, curve, on_cluster)
    return [made[need] for need in needs]


def decoded_in(prepared: Sequence[PreparedStream]) -> int:
    """Return the number of videos that `prepare_all` decoded."""
    return sum(each.decoded for each in {id(each): each for each in prepared}.values())
