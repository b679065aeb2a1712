"""Comparisons on a CPU: how much slower or faster than the plain way, measured on this machine, in one process.

Every line is a ratio. The two sides are run in alternation (a b, b a, a b, ...) on the same inputs after one warm-up,
and the ratio is the median over the pairs, so that whatever else the machine does falls on both. The figures with a
GPU are in gpu.py (`make bench-gpu`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from methods.base import Batch
from orchestrator.bench.work import Work, encoding, random_batch, render_few, second_task, training_step
from orchestrator.data.batches import StreamData
from orchestrator.data.frames import FrameSource
from orchestrator.data.settings import DataConfig


@dataclass(frozen=True)
class Comparison:
    """One comparison. Seconds are medians, the ratio is ours / other."""

    name: str
    other_name: str
    ours: float
    other: float
    ratio: float
    low: float  # smallest and largest ratio of a pair
    high: float
    pairs: int
    note: str = ""


def paired(name: str, other_name: str, ours: Work, other: Work, pairs: int = 7, warm: bool = True) -> Comparison:
    """Time two pieces of work in alternation."""
    if warm:
        ours()
        other()
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            b = _seconds(other)
            a = _seconds(ours)
        else:
            a = _seconds(ours)
            b = _seconds(other)
        times.append((a, b))
    ratios = [a / b for a, b in times]
    return Comparison(
        name,
        other_name,
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        pairs,
    )


def _seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# ------------------------------------------------------------------------------------ the methods


def bench_step(backbone: Clip, what: str, pairs_of_batch: int, frames: int, pairs: int = 7) -> list[Comparison]:
    """FrameFusionMoE beside the fully fine-tuned and the frozen plain backbone, (B pairs, T frames)."""
    batch = random_batch(backbone, pairs_of_batch, frames)
    ours, plain = second_task("framefusion_moe", backbone), second_task("clip4clip", backbone)
    size = f"{what}, {pairs_of_batch} x {frames} frames"
    step = paired(
        f"FrameFusionMoE, training step ({size})",
        "CLIP4Clip, all weights trained",
        training_step(ours, batch),
        training_step(plain, batch),
        pairs,
    )
    frozen = second_task("zero_shot", backbone)
    return [
        step,
        paired(
            f"FrameFusionMoE, encoding ({size})",
            "plain CLIP",
            encoding(ours, batch.frames),
            encoding(frozen, batch.frames),
            pairs,
        ),
    ]


def bench_encoder(name: str, backbone: Clip, what: str, videos: int, frames: int, pairs: int = 5) -> list[Comparison]:
    """A token-reducing video encoder beside plain CLIP with the same weights, on this process's threads."""
    inputs = random_batch(backbone, videos, frames).frames
    ours, plain = second_task(name, backbone), second_task("zero_shot", backbone)
    title = f"{name}, encoding ({what}, {videos} x {frames} frames)"
    return [paired(title, "plain CLIP", encoding(ours, inputs), encoding(plain, inputs), pairs)]


# ------------------------------------------------------------------------------------ ranking


def bench_ranking(size: int = 3000, pairs: int = 5) -> list[Comparison]:
    """Ranks of `size` captions and `size` videos from features, both ways: tiles that are counted, a matrix sorted."""
    from orchestrator.learning.ranking import TILE, Ranked, rank

    captions, videos = torch.randn(2, size, 512, generator=torch.Generator().manual_seed(0))
    target = torch.arange(size)

    def count() -> Ranked:
        return rank(lambda rows, columns: captions[rows] @ videos[columns].mT, target, (0, size), (0, size))

    def sort_twice() -> tuple[np.ndarray, np.ndarray]:
        scores = (captions @ videos.mT).numpy()
        to_videos, to_captions = (np.argsort(np.argsort(-each, axis=1), axis=1) for each in (scores, scores.T))
        return to_videos.diagonal() + 1, to_captions.diagonal() + 1

    found = count()
    counted = (found.to_videos.numpy(), found.videos.numpy())
    if any(np.abs(ours - theirs).max() > 0.5 for ours, theirs in zip(counted, sort_twice())):  # a sort orders ties
        raise RuntimeError("the two ways to rank disagree")
    title = f"ranking {size} x {size} from features, both ways, in tiles of 512 x {TILE}"
    return [paired(title, "matrix, argsort of argsort (NumPy)", count, sort_twice, pairs)]


# ------------------------------------------------------------------------------------ data


class _Undecoded(FrameSource):
    """Decodes a video whenever it is asked for; the store is not used."""

    def load(self, item: Any) -> np.ndarray:
        from orchestrator.video.decode import decode

        return decode(Path(item.path), self.sampling, item.segment, self.decoder).frames


def bench_store(root: Path, videos: int = 12, pairs: int = 5) -> list[Comparison]:
    """An epoch from the store beside one that decodes in the training process; one decoder beside the other."""
    from orchestrator.store.store import Store
    from orchestrator.streams.load import load_stream
    from orchestrator.video.decode import decode, decoder_version

    stream = load_stream(render_few(root / "epoch", videos), root)
    backbone = load_backbone(TINY, "shipped")
    config = DataConfig(num_frames=8, batch_size=4)
    store = Store.open(str(root / "store"))
    stored, decoded = (kind(store, config, backbone.image_size) for kind in (FrameSource, _Undecoded))
    stored.decode_missing(stream.items(0, "train"), workers=1)
    method = second_task("framefusion_moe", backbone)

    def batches(source: FrameSource) -> Iterator[Batch]:
        cpu = torch.device("cpu")
        data = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, cpu)
        return data.train_batches([0], seed=0, task=0, epoch=0)

    def read(source: FrameSource) -> Work:
        return lambda: sum(len(batch.videos) for batch in batches(source))

    def train(source: FrameSource) -> Work:
        return lambda: [training_step(method, batch)() for batch in batches(source)]

    def decoding(name: str) -> Work:
        return lambda: [decode(item.path, stored.sampling, None, name) for item in stream.items(0, "train")]

    size = f"{videos} shapes videos, 8 frames"
    rows = [
        paired(
            f"batches of an epoch from the store ({size})", "decoding each time", read(stored), read(decoded), pairs
        ),
        paired(f"epoch from the store ({size}, tiny CLIP)", "decoding each time", train(stored), train(decoded), pairs),
    ]
    if "decord" in decoder_version("auto"):
        title = f"{size} decoded by PyAV"
        rows += [paired(title, "by decord, with PyAV to see damage", decoding("pyav"), decoding("decord"), pairs)]
    return rows


def bench_features(
    root: Path, backbone: Clip, what: str, settings: dict[str, Any], videos: int, frames: int
) -> Comparison:
    """An epoch of FrameFusionMoE that starts behind its frozen blocks, beside one that starts from the frames."""
    from orchestrator.data.frozen_features import frozen_features
    from orchestrator.store.store import Store
    from orchestrator.streams.load import load_stream

    stream = load_stream(render_few(root / str(videos), videos), root)
    config = DataConfig(num_frames=frames, batch_size=2)
    source = FrameSource(Store.open(str(root / "store")), config, backbone.image_size)
    source.decode_missing(stream.items(0, "train"), workers=1)
    method = second_task("framefusion_moe", backbone, settings)
    cpu = torch.device("cpu")
    plain = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, config, cpu)
    stored = plain.with_features(frozen_features(method, source.store, "fp32"))

    def train(data: StreamData) -> Work:
        return lambda: [training_step(method, batch)() for batch in data.train_batches([0], seed=0, task=0, epoch=0)]

    title = f"epoch from features of {method.frozen_blocks} frozen blocks ({videos} videos, {frames} frames, {what})"
    return paired(title, "from frames", train(stored), train(plain), pairs=5)


# ------------------------------------------------------------------------------------ orchestration


def bench_trial(root: Path, pairs: int = 2, epochs: int = 8) -> list[Comparison]:
    """A whole trial of one worker under Ray Tune and MLflow beside the bare loop; each of them with its own seed."""
    from orchestrator.learning.resolve import resolve
    from orchestrator.learning.run import Places, execute
    from orchestrator.learning.workers import Workers
    from orchestrator.on_ray.connection import connect
    from orchestrator.on_ray.plan import TrialPlan
    from orchestrator.on_ray.tune import run_listed
    from orchestrator.tracking.tracker import create_store

    settings: dict[str, Any] = {"method": "framefusion_moe", "stream": str(render_few(root / "trial", 8))}
    settings |= {"backbone.name": TINY, "backbone.weights": "shipped", "data.num_frames": 8, "optim.epochs": epochs}
    places = Places(root.resolve())
    seeds = iter(range(1000))
    uri = f"sqlite:///{root.resolve() / 'mlflow.db'}"

    def bare() -> None:
        execute(resolve({**settings, "seed": next(seeds)}), places, Workers())

    bare()  # decodes, and fills the zero-shot curve that all others read
    create_store(uri, root, "few")
    connect("local", 2)

    def trial() -> None:
        seed = next(seeds)
        plan = TrialPlan(
            f"bench-{seed}", str(places.root), "", uri, None, str(root / f"ray-{seed}"), settings, cpus_per_worker=0.9
        )
        outcome = run_listed(plan, 2, [{"seed": seed}])
        if outcome.complete != 1:
            raise RuntimeError("the trial did not finish")

    row = paired("one trial under Ray and MLflow (2 tasks, tiny CLIP)", "the bare loop", trial, bare, pairs, warm=False)
    return [replace(row, note=f"{row.ours - row.other:.1f} s more")]
