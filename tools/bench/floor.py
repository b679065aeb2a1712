"""CPU time of a training step relative to its floor: the time of its products and memory-bound operators alone.

Products are matrix products, convolutions and attention. Memory-bound operators are norms, softmaxes, activations and
sums (residuals, and gradients of a tensor with several uses). Backward passes are included. One step is recorded. Each
operator is then timed on copies of its tensors, and the times of all calls are added. The sum is a lower limit for this
implementation, not for the equations: a product that is computed twice counts twice. In the real step, inputs are
rarely in the processor's cache.

`step / floor` exceeds 1 because of other elementwise operators, copies, gathers, masks, the optimizer and Python.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from tools.bench.work import VIT, random_batch, second_task, training_step

STEPS, PAIRS, FRAMES = ("clip4clip", "framefusion_moe", "structalign", "tempme"), 4, 12
REPEATS = 3  # timings of a step and of each operator; the median counts
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "scaled_dot_product")
MEMORY_BOUND = ("native_layer_norm", "_softmax", "_log_softmax", "gelu", "sigmoid", "silu", "relu", "threshold", "add")


@dataclass(frozen=True)
class Floor:
    """CPU seconds of a step, of its matrix products, and of its memory-bound operators."""

    name: str
    pairs: int
    step: float
    products: float
    memory_bound: float

    @property
    def ratio(self) -> float:
        """Return the time of the step divided by its floor, the time of its products and memory-bound operators."""
        return self.step / (self.products + self.memory_bound)


def kind_of(operator: str) -> str:
    """Return "product", "memory" or "", the kind of an operator such as `aten::native_layer_norm_backward`."""
    name = operator.partition("::")[2]
    if name in PRODUCTS or any(part in name for part in PRODUCTS[-2:]):
        return "product"
    return (
        "memory"
        if any(name in (part, f"{part}_", f"{part}_backward", f"{part}_backward_data") for part in MEMORY_BOUND)
        else ""
    )


class Recorder(TorchDispatchMode):
    """Counts the products and memory-bound operators that a `with` block calls, by operator and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.work: dict[tuple[str, str], Callable[[], object]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kind := kind_of(func._schema.name):
            key = kind, f"{func} {tree_map(_describe, (args, kwargs))}"
            self.calls[key] += 1
            if key not in self.work:
                like, named = tree_map(_like, (args, kwargs))
                self.work[key] = lambda: func(*like, **named)
        return func(*args, **kwargs)


def _describe(value: Any) -> Any:
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else value


def _like(value: Any) -> Any:
    """Return a copy of a tensor with its strides; for expanded tensors, without the values. Others are unchanged."""
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made if 0 in value.stride() else made.copy_(value.detach())


def measure_floor(name: str, backbone: Clip, pairs: int) -> Floor:
    """Time a training step of a method in its second task, and the step's operators, with torch's number of threads."""
    method = second_task(name, backbone)
    step = training_step(method, random_batch(backbone, pairs, FRAMES))
    step()
    with Recorder() as recorder:
        step()
    found = _median(step)
    times = {key: _median(work) for key, work in recorder.work.items()}
    of = {
        kind: sum(n * times[key] for key, n in recorder.calls.items() if key[0] == kind)
        for kind in ("product", "memory")
    }
    return Floor(name, pairs, found, of["product"], of["memory"])


def _median(work: Callable[[], object]) -> float:
    """Return the median CPU seconds of a call after a warm-up."""
    work()
    times = []
    for _ in range(REPEATS):
        started, calls = time.process_time(), 0
        while not calls or (time.process_time() - started < 0.002 and calls < 100):
            work()
            calls += 1
        times.append((time.process_time() - started) / calls)
    return statistics.median(times)


def floor_table(is_quick: bool = False) -> str:
    """Return a Markdown table of steps and their floors, with ViT-B/32 or, if `is_quick`, with the tiny CLIP."""
    from ctvr.methods.backbone.architectures import TINY

    backbone = load_backbone(TINY, "shipped") if is_quick else load_backbone(VIT, "random")
    lines = [
        "| step | pairs | step (CPU s) | products (CPU s) | memory-bound operators (CPU s) | step / floor |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in STEPS:
        each = measure_floor(name, backbone, PAIRS)
        times = f"{each.step:.2f} | {each.products:.2f} | {each.memory_bound:.2f}"
        lines.append(f"| `{name}` | {PAIRS} | {times} | {each.ratio:.2f} |")
    return "\n".join(lines)
