"""Comparisons without a recorded share, asked for by name: stored features, a trial under Ray (memory.py: memory).

A line is a ratio of wall seconds, unless it names CPU seconds. The two sides are run in alternation (a b, b a, ...) on
the same inputs after one warm-up, and the ratio is the median over the pairs. The paths with shares are in paths.py,
the figures with a GPU in gpu.py (`make bench-gpu`).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from methods.backbone.clip import Clip
from methods.backbone.load import TINY
from orchestrator.bench.processes import Tree
from orchestrator.bench.work import Work, render_few, second_task, training_step
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


def bench_trial(root: Path, pairs: int = 2, epochs: int = 8, trials: int = 8) -> list[Comparison]:
    """Trials of one worker under Ray Tune and MLflow beside the bare loop; each of them with its own seed.

    First the CPU seconds of a sweep of `trials` with all processes that it starts, Ray's own from their start on, as a
    mean over its trials; then the wall seconds of a trial alone, when Ray has started.
    """
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

    def sweep(number: int = 1) -> None:
        own = [next(seeds) for _ in range(number)]
        plan = TrialPlan(
            f"bench-{own[0]}",
            str(places.root),
            "",
            uri,
            None,
            str(root / f"ray-{own[0]}"),
            settings,
            cpus_per_worker=0.9,
        )
        outcome = run_listed(plan, 2, [{"seed": seed} for seed in own])
        if outcome.complete != number:
            raise RuntimeError(f"{number - outcome.complete} of {number} trials did not finish")

    with Tree() as alone:
        for _ in range(trials):
            bare()
    with Tree() as whole:
        connect("local", 2)
        sweep(trials)
    ours, other = whole.seconds / trials, alone.seconds / trials
    of_many = Comparison(
        f"CPU s of a trial, mean over a sweep of {trials} with Ray's start", "the bare loop", ours, other, ours / other,
        ours / other, ours / other, 1, f"{ours - other:.1f} CPU-s more for a trial (asked: <= 10)",
    )  # fmt: skip
    row = paired("one trial under Ray and MLflow (2 tasks, tiny CLIP)", "the bare loop", sweep, bare, pairs, warm=False)
    return [of_many, replace(row, note=f"{row.ours - row.other:.1f} s more")]
