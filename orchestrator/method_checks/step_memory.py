"""Memory of a training step on a GPU, computed without one, for the plans of `ctvr run` and `ctvr sweep`.

The losses of a batch are computed on `meta` tensors, which have shapes and no numbers. A number that a method reads is
1, and a replay memory holds the pairs of one batch, repeated as a step needs them. The sum includes weights, gradients,
the optimizer's moments, frames, and the tensors that autograd keeps for the backward pass; on a CPU it is exact to the
byte. It excludes kernel workspaces and fragmentation: docs/gpu.md compares it with measured peaks.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ctvr.methods import find_method
from ctvr.methods.backbone.architectures import SHIPPED, UMT
from ctvr.methods.backbone.clip import Clip, checkpointing
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.backbone.openclip_towers import text_of, vision_of
from ctvr.methods.base import Batch, Method, Task
from ctvr.methods.layers.replay.buffer import ReplayBuffer
from ctvr.orchestrator.learning.budget import modules_within
from ctvr.orchestrator.learning.cost import sizes_only
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.factory import make_method
from ctvr.orchestrator.learning.optimizer import freeze_except

log = logging.getLogger(__name__)

GIB = 2**30
LONGEST = 77  # tokens of a caption; UMT's text tower accepts more, but captions are shorter
MARGIN = 1.1  # margin of a step reported to fit: measured peaks were up to 1.09 times the estimate (docs/gpu.md)
# Functions that autocast computes in bfloat16 on a GPU, as far as the towers use them
_LOWERED = {
    F.linear, F.conv2d, F.scaled_dot_product_attention, torch.conv2d, torch.matmul, torch.bmm, torch.einsum,
    Tensor.matmul, Tensor.__matmul__, Tensor.bmm,
}  # fmt: skip
_READS = {Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.__int__, Tensor.__bool__, Tensor.__float__}


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on one GPU."""

    weights: int  # parameters and buffers, including teachers and momentum encoders
    moments: int  # state of the optimizer
    gradients: int
    activations: int  # kept for the backward pass, and gradients of one block's activations
    frames: int
    accumulates: bool  # gradients stay during the next forward pass

    @property
    def peak(self) -> int:
        """Return the peak in bytes; gradients are allocated while the backward pass releases activations."""
        both = self.activations + self.gradients
        grown = both if self.accumulates else max(self.activations, self.gradients)
        return self.weights + self.moments + self.frames + grown


def step_memory(experiment: Experiment, workers: int = 1) -> StepMemory | None:
    """Estimate the memory of a step in the second task on each worker's GPU.

    Returns:
        None for images and questions, for a tower that needs a missing package, and for a method of another package
        whose losses need more than shapes.
    """
    optim = experiment.optim
    if find_method(experiment.run.method).domain != "videos" or experiment.upgrade.task or not optim.epochs:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            method, batch = _second_task(experiment, math.ceil(experiment.data.batch_size / workers))
            modules = list(modules_within(method))
            trained = sum(map(_bytes, freeze_except(method, method.param_groups())))
            activations = _activations(method, batch, experiment.run.precision, optim.activation_checkpointing)
    except Exception:  # an estimate must not end a run, whatever a plug-in method does with such tensors
        log.debug("the memory of a step cannot be estimated", exc_info=True)
        return None
    moments = 2 if optim.name != "sgd" else bool(optim.momentum)
    return StepMemory(
        weights=sum(map(_bytes, {id(x): x for module in modules for x in _tensors(module)}.values())),
        moments=moments * trained,
        gradients=trained,
        activations=activations,
        frames=_bytes(batch.frames) * 5 // 4,  # and the uint8 frames that they are made from
        accumulates=optim.accumulation_steps > 1 or workers > 1,
    )


def memory_text(experiment: Experiment, workers: int = 1, room: float = math.inf, card: str = "") -> list[str]:
    """Describe the memory of a step on each GPU and, if that exceeds `room` bytes of `card`, the setting that helps.

    Returns:
        one line; no line if `step_memory` returns None or the method trains nothing.
    """
    found = step_memory(experiment, workers)
    if found is None or not found.gradients:
        return []
    parts = ", ".join(f"{name} {getattr(found, name) / GIB:.1f}" for name in ("weights", "moments", "gradients"))
    pairs = math.ceil(experiment.data.batch_size / workers)
    text = (
        f"a step of {pairs} pairs in {experiment.run.precision} takes about {found.peak / GIB:.1f} GiB of a GPU "
        f"({parts}, activations {found.activations / GIB:.1f})"
    )
    return [
        text
        if found.peak * MARGIN <= room
        else f"{text}; {card} has {room / GIB:.1f} GiB for it: {_remedy(experiment, workers, room)}"
    ]


def _remedy(experiment: Experiment, workers: int, room: float) -> str:
    """Return the first settings with which a step fits `room` bytes, and its memory."""
    for settings, smaller in _smaller(experiment, workers):
        found = step_memory(smaller, workers)
        if found is not None and found.peak * MARGIN <= room:
            return f"{settings} takes about {found.peak / GIB:.1f}"
    return "use a smaller backbone, or fewer frames (data.num_frames)"


def _smaller(experiment: Experiment, workers: int) -> Iterator[tuple[str, Experiment]]:
    """Yield settings that take less memory, in increasing order of their effect on results."""
    again = replace(experiment, optim=replace(experiment.optim, activation_checkpointing=True))
    yield "optim.activation_checkpointing=true (same results)", again
    yield "precision=bf16", replace(experiment, run=replace(experiment.run, precision="bf16"))
    small = replace(again, run=replace(experiment.run, precision="bf16"))
    settings = "precision=bf16 optim.activation_checkpointing=true"
    yield settings, small
    size, steps = experiment.data.batch_size, experiment.optim.accumulation_steps
    while size % 2 == 0 and size > 2 * workers:
        size, steps = size // 2, 2 * steps
        optim = replace(small.optim, accumulation_steps=steps)
        yield (
            f"{settings} data.batch_size={size} optim.accumulation_steps={steps}",
            replace(small, data=replace(small.data, batch_size=size), optim=optim),
        )


def _activations(method: Method, batch: Batch, precision: str, is_checkpointing: bool) -> int:
    """Return the bytes that the backward pass needs besides weights and their gradients."""
    kept = _kept(method, batch, precision, False)
    block = kept // len(_clip_of(method).vision.blocks)
    return _kept(method, batch, precision, True) + 2 * block if is_checkpointing else kept + block


def _second_task(experiment: Experiment, pairs: int) -> tuple[Method, Batch]:
    """Return a method that has begun the second task, and a batch of this many pairs."""
    method = make_method(experiment, _shapes_of(experiment.backbone.name))
    batch = _batch(experiment, _clip_of(method), pairs)
    with _Numbers():
        begin_second_task(method, batch)
    return method, batch


def begin_second_task(method: Method, batch: Batch) -> None:
    """Begin two tasks; a replay memory keeps the pairs of the batch at the end of the first one."""
    device = batch.frames.device
    for index in range(2):
        task = Task(index, f"task_{index + 1:02d}", 10, (index,), 10)
        method.to(device).begin_task(task)
        if index == 0 and any(isinstance(module, ReplayBuffer) for module in method.modules()):
            method.to(device).set_pair_source(_Pairs(batch))
            method.end_task(task, [replace(batch, pair_ids=batch.video_ids)])
    method.to(device).train()


@dataclass(frozen=True)
class _Pairs:
    """A `PairSource` whose pairs are all the first one of a batch."""

    batch: Batch

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = [0] * len(numbers)
        return self.batch.frames[rows], self.batch.tokens[rows]


def _shapes_of(name: str) -> Clip:
    """Build a backbone on the meta device."""
    if name in SHIPPED:
        return load_backbone(name, "random").to("meta")
    if name in UMT:
        return copy.deepcopy(sizes_only(name))
    import open_clip

    config: dict[str, Any] = open_clip.get_model_config(name)
    kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
    with torch.device("meta"):
        source = kind(**config)
        towers = vision_of(source, name), text_of(source)
        return Clip(source, lambda texts: torch.empty(0), (0.0,) * 3, (1.0,) * 3, name, *towers)


def _clip_of(method: Method) -> Clip:
    return next(module for module in method.modules() if isinstance(module, Clip))


def _batch(experiment: Experiment, clip: Clip, pairs: int) -> Batch:
    """Return different videos with captions of the largest length."""
    data, longest = experiment.data, min(LONGEST, clip.text.context_length)
    with torch.device("meta"):
        return Batch(
            torch.empty(pairs, data.num_frames, 3, clip.image_size, clip.image_size),
            torch.ones(pairs, min(data.max_tokens or longest, longest), dtype=torch.int64),
            torch.arange(pairs),
            torch.zeros(pairs, dtype=torch.int64),
        )


def _kept(method: Method, batch: Batch, precision: str, is_checkpointing: bool) -> int:
    """Return the bytes that autograd keeps from the losses of a batch until its backward pass, each storage once."""
    known = {_storage(x) for x in (*method.parameters(), *method.buffers(), batch.frames, batch.tokens)}
    kept: dict[int, Tensor] = {}  # keeps the tensors alive, so that no address of a storage is reused

    def keep(x: Tensor) -> Tensor:
        if _storage(x) not in known:
            kept.setdefault(_storage(x), x)
        return x

    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    with saved, _Numbers(), _precision(precision), checkpointing(is_checkpointing):
        sum(method.losses(batch).values())
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


class _Numbers(TorchFunctionMode):
    """Gives the number 1 to code that reads a `meta` tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and args[0].is_meta:
            args = (torch.ones(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
        return func(*args, **(kwargs or {}))


class _Lowered(TorchFunctionMode):
    """Autocast to bfloat16 for `meta` tensors, which torch's own does not support."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True
        self._weights: dict[int, Tensor] = {}  # each is cast once in a step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.is_on and func in _LOWERED:
            args, named = [self._cast(x) for x in args], {name: self._cast(x) for name, x in named.items()}
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **named)
        return func(*args, **named)

    @staticmethod
    def _attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Emulate a GPU's fused attention, which does not save the similarities for the backward pass."""
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype)
        out: Tensor = fused(q, k, v, 0.0, is_causal, attn_mask=attn_mask)[0]
        return out

    def _cast(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            return x
        if not isinstance(x, nn.Parameter):
            return x.bfloat16()
        if id(x) not in self._weights:
            self._weights[id(x)] = x.bfloat16()
        return self._weights[id(x)]


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    """Compute in a precision on `meta` tensors; `torch.autocast`, which refuses them, is replaced inside."""
    mode, plain = _Lowered(), torch.autocast

    @contextmanager
    def autocast(device_type: str, dtype: Any = None, enabled: bool = True, **named: Any) -> Iterator[None]:
        before, mode.is_on = mode.is_on, enabled and mode.is_on
        try:
            yield
        finally:
            mode.is_on = before

    mode.is_on = precision == "bf16"
    torch.autocast = autocast  # type: ignore[assignment, misc]
    try:
        with mode:
            yield
    finally:
        torch.autocast = plain  # type: ignore[misc]
