"""Timing of the training loop's steps on noise in memory, for `ctvr doctor --gpu` and `make bench-gpu`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.device import Precision, set_determinism
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.loop import Loop, LoopConfig
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask


class Noise:
    """Frame source that returns the same noise for every item."""

    def __init__(self, frames: int, size: int) -> None:
        self.frames = np.random.default_rng(0).integers(0, 256, (frames, size, size, 3), dtype=np.uint8)

    def key(self, item: Item) -> str:
        return item.video

    def load(self, item: Item) -> np.ndarray:
        return self.frames


def noise_stream(pairs: int, videos: int) -> Stream:
    """Return a stream of two tasks, each with one category, `pairs` training pairs and `videos` test videos."""

    def items(task: int, split: str, count: int) -> tuple[Item, ...]:
        captions = (f"a red square moves left of {number} blue circles" for number in range(count))
        return tuple(
            Item(f"{split}{task}-{number}", "", None, f"c{task}", (caption,)) for number, caption in enumerate(captions)
        )

    tasks = (
        StreamTask(f"task_{task + 1:02d}", (f"c{task}",), items(task, "train", pairs), (), items(task, "test", videos))
        for task in range(2)
    )
    return Stream("noise", tuple(tasks), "ctvr", has_val=False)


class TimedLoop(Loop):
    """Loop that times its epochs in `seconds`, so that the first epoch (allocation, kernel choice) can be omitted."""

    seconds: list[float]

    def _epoch(self, *given: Any, **named: Any) -> dict[str, float]:
        started = now(self.workers.device)
        terms = super()._epoch(*given, **named)
        self.seconds.append(now(self.workers.device) - started)
        return terms


def now(device: torch.device) -> float:
    """Return the time in seconds after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train_on_noise(
    kind: type[TimedLoop],
    method: Method,
    backbone: Clip,
    precision: Precision,
    workers: Workers,
    pairs: int,
    frames: int,
    steps: int,
    epochs: int,
) -> TimedLoop:
    """Train a method on noise in its second task; return the loop, whose `seconds` are the times of the epochs.

    Args:
        kind: class of the loop.
        method: the method, whose second task has begun.
        backbone: backbone of the method.
        precision: precision of the steps.
        workers: this process and the number of processes.
        pairs: pairs of a step, over all processes.
        frames: frames of a video.
        steps: steps of an epoch.
        epochs: number of epochs.
    """
    set_determinism(workers.device, precision=precision)
    settings, stream = DataConfig(num_frames=frames, batch_size=pairs), noise_stream(pairs * steps, 4 * pairs)
    source: Any = Noise(frames, backbone.image_size)  # used in place of a FrameSource
    data = StreamData(stream, source, backbone.tokenize, backbone.mean, backbone.std, settings, workers.device)
    config = LoopConfig(OptimConfig(epochs=epochs), EvaluationConfig(batch_size=pairs), precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        loop = kind(method, data, config, Commits(Store.open(folder), "bench"), workers)
    loop.seconds = []
    loop._train(data.task(1))
    return loop
