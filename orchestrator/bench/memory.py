"""What less memory costs: a step that checkpoints activations, or is dealt to parts, beside the ordinary one (CPU).

Each is measured in a process of its own, whose peak is the largest resident set so far.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from typing import NamedTuple

import torch

from methods.backbone.blocks import checkpointing
from methods.backbone.load import load_backbone
from methods.base import Batch
from orchestrator.bench.cpu import Comparison
from orchestrator.bench.work import VIT, random_batch, second_task
from orchestrator.interpreter import safe_children
from orchestrator.learning.accumulate import backward
from orchestrator.learning.optimizer import train_only

PAIRS, FRAMES = 16, 4


class Way(NamedTuple):
    """How a step is made."""

    name: str
    checkpoints: bool
    parts: int  # batches that are accumulated


WAYS = (
    Way("plain", False, 1),
    Way("checkpointed activations", True, 1),
    Way("4 accumulated batches", False, 4),
    Way("both", True, 4),
)


class Step(NamedTuple):
    """Seconds of the quicker of two steps, and the process's resident set (GiB) before and at its peak."""

    seconds: float
    before: float
    peak: float


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _measure(way: Way, method: str, backbone: str, pairs: int, frames: int) -> Step:
    torch.set_num_threads(1)
    clip = load_backbone(backbone, "random")
    made = second_task(method, clip).train()
    train_only(made, made.param_groups())
    whole = random_batch(clip, pairs, frames)
    given = {field.name: getattr(whole, field.name) for field in fields(Batch)}
    columns = {name: x.chunk(way.parts) for name, x in given.items() if x is not None}
    batches, before, times = [Batch(**dict(zip(columns, row))) for row in zip(*columns.values())], _resident(), []
    for _ in range(2):
        made.zero_grad(set_to_none=True)
        started = time.perf_counter()
        with checkpointing(way.checkpoints):
            if way.parts > 1:
                backward(made, batches, nullcontext)
            else:
                torch.stack(list(made.losses(whole).values())).sum().backward()
        times.append(time.perf_counter() - started)
    return Step(min(times), before, _resident())


def bench_memory(
    method: str = "clip4clip", backbone: str = VIT, pairs: int = PAIRS, frames: int = FRAMES
) -> list[Comparison]:
    """Gradients of one step in each of `WAYS`, against the plain one."""
    steps = []
    for way in WAYS:
        context = multiprocessing.get_context("spawn")
        with safe_children(), ProcessPoolExecutor(1, context) as child:  # a peak of its own
            steps.append(child.submit(_measure, way, method, backbone, pairs, frames).result())
    plain = steps[0]
    return [
        Comparison(
            f"{method}, {backbone}, {pairs} pairs x {frames} frames: {way.name}",
            "plain",
            step.seconds,
            plain.seconds,
            ratio=step.seconds / plain.seconds,
            low=step.seconds / plain.seconds,
            high=step.seconds / plain.seconds,
            pairs=1,
            note=f"peak {step.peak:.2f} GiB of {step.before:.2f} before, plain {plain.peak:.2f} of {plain.before:.2f}",
        )
        for way, step in zip(WAYS[1:], steps[1:])
    ]
