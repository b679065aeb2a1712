"""Cost of a method: parameters, multiply-adds of the video tower, tokens, speed and memory.

Multiply-adds follow TempMe's tables (arXiv:2409.01156; their "GFLOPs" are multiply-adds). Their rule, found by
recomputing every row: one video, video tower only, inference, LoRA merged into the weights, no matching::

    T P D 3p^2 + sum over blocks (4 n D^2 + 2 D sum over groups N^2 + 2 n' D H) + operations that the method adds

with n tokens in attention and n' in the MLP of a block, as the tower logs them (`TokenState.log`). The paper's
profiler also counts norms, so its figures are 0.2 to 0.3 % higher. Two of its conventions are not followed. It
counts the patch embedding of 12 frames for any number of frames (276.7 GFLOPs for 64 frames instead of 282.1).
Its 25.0 GFLOPs for TempMe with 8 frames do not match any merging schedule.

Shapes: T frames, P patches of p x p pixels, D width, H hidden width of the MLP, N tokens of an attention group.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ctvr.methods.backbone.architectures import UMT
from ctvr.methods.backbone.clip import Clip, VisionTower, record_tokens
from ctvr.methods.backbone.merged_weights import merged_weights
from ctvr.methods.backbone.umt_load import make_umt
from ctvr.methods.base import Method
from ctvr.methods.layers.transfer import trim_padding
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.device import peak_memory_mb, reset_peak_memory
from ctvr.orchestrator.learning.evaluation.evaluate import encode_for_task
from ctvr.orchestrator.streams.metric_names import COSTS

TokenLog = Sequence[tuple[int, int, int]]


def tower_macs(tower: VisionTower, log: TokenLog, frames: int) -> int:
    """Return the multiply-adds of CLIP's image tower on one video, by the formula in the module docstring.

    Operations of a timm tower after its last block, such as attention pooling, are not counted.

    Args:
        tower: provides the widths; its device may be `meta`.
        log: per block: attention groups of one video, tokens of a group in attention, tokens of a group in the MLP.
        frames: T, number of frames, each of which is cut into patches.
    """
    patches = tower.num_tokens - getattr(tower, "classes", 1)
    macs = frames * patches * tower.conv1.weight.numel()
    for block, (groups, attended, processed) in zip(tower.blocks, log, strict=True):
        width = tower.width
        macs += groups * (4 * attended * width**2 + 2 * attended**2 * width)
        macs += groups * processed * _weights(block.mlp)  # type: ignore[arg-type]
    return macs


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim == 2)


@dataclass(frozen=True)
class VideoCost:
    """Cost of encoding one video."""

    macs: int
    log: list[tuple[int, int, int]]  # last pass through the tower: groups, tokens in attention, tokens in MLP
    stored: int  # values stored per video

    @property
    def tokens_out(self) -> int:
        """Tokens of the whole video after the tower's last block."""
        groups, _, tokens = self.log[-1]
        return groups * tokens


@torch.no_grad()
def video_cost(method: Method, frames: Tensor) -> VideoCost:
    """Count the operations of encoding `frames` (B, T, 3, H, W) once; with `meta` tensors, without computing.

    Every pass through the image tower counts. If the tower is not of open_clip or UMT, all convolutions and matrix
    products count.
    """
    # The formula of `tower_macs` needs a patch embedding, which a tower of another package lacks
    towers = (module for module in method.modules() if isinstance(module, VisionTower))
    tower = next((module for module in towers if hasattr(module, "conv1") or module.takes_features), None)
    training = method.training
    counter: Any = nullcontext()
    if tower is None:
        counter = Multiplications()
    method.eval()
    with record_tokens() as states, counter:
        features = method.encode_video(frames)
    method.train(training)
    videos = len(frames)
    if tower is None:
        return VideoCost(counter.get_total_flops() // 2 // videos, [], features[0].numel())
    passes = (state.batch * tower_macs(tower, state.log, state.frames) + state.extra_macs for state in states)
    macs = sum(passes) // videos
    log = [(groups * states[-1].batch // videos, n, m) for groups, n, m in states[-1].log] if states else []
    return VideoCost(macs, log, features[0].numel())


def trained_parameters(method: Method) -> int:
    """Return the number of parameters that are trained in the current task; shared tensors count once.

    If a method learns in `end_task`, its buffers outside the backbone (sums, maps, projections) also count.
    """
    tensors: dict[int, Tensor] = {id(p): p for group in method.param_groups() for p in group["params"]}
    if method.declared.learns_in_end_task:
        towers = {id(b) for part in method.modules() if isinstance(part, Clip) for b in part.buffers()}
        tensors |= {id(b): b for b in method.buffers() if b.is_floating_point() and id(b) not in towers}
    return sum(p.numel() for p in tensors.values())


def paper_parameters(method: Method) -> int:
    """Return the parameter count by the rule of the method's paper.

    This is the number of trained parameters, unless the method defines `paper_parameters()`.
    """
    rule = getattr(method, "paper_parameters", None)
    return trained_parameters(method) if rule is None else int(rule())


@torch.no_grad()
@merged_weights()
def query_cost(method: Method, tokens: Tensor, tasks: int) -> dict[str, float]:
    """Measure the cost of one query with `tasks` stored tasks, by one pass over a caption.

    Args:
        tokens: (1, L) int64 tokens of a caption, on the method's device.

    Returns:
        `cost/query_passes`: passes through text towers, one per task if the text is task-conditioned, unless the
        method has `text_passes`;
        `cost/query_gmacs`: multiply-adds of all passes in 10^9, as torch counts matrix products. Products inside a
        fused attention kernel (3 % for a text of 77 tokens) are counted on a GPU only.
    """

    passes, kept = text_passes(method, tasks), dict[int, Any]()
    training = method.training
    method.eval()
    with Multiplications() as counter:
        for task in range(tasks if method.text_passes else 1):
            encode_for_task(method, tokens, task, kept)
    method.train(training)
    times = 1 if method.text_passes else passes
    return {"cost/query_passes": float(passes), "cost/query_gmacs": times * counter.get_total_flops() / 2 / 1e9}


def text_passes(method: Method, tasks: int) -> int:
    """Return how many times a caption passes a text tower to search the videos of `tasks` tasks."""
    return method.text_passes or (tasks if method.declared.task_conditioned_text else 1)


def measure(method: Method, frames: Tensor, seconds: float = 0.3) -> dict[str, float]:
    """Measure the costs that a run logs: counts of operations and values, and speed and memory on this machine.

    Args:
        method: after `begin_task`.
        frames: (B, T, 3, H, W) on the method's device; encoded repeatedly.
        seconds: how long to time the encoder; it runs at least once, after one warm-up.

    Returns:
        `cost/...` metrics: parameters, multiply-adds per video in 10^9, tokens after the last block, values
        stored per video, videos encoded per second, and the peak memory in 10^6 bytes (on a GPU, memory of the
        device while encoding; on a CPU, memory of the whole process so far).
    """
    cost = video_cost(method, frames)
    speed, memory = _time(method, frames, seconds)
    return {
        "cost/trained_parameters": float(trained_parameters(method)),
        "cost/paper_parameters": float(paper_parameters(method)),
        "cost/video_gmacs": cost.macs / 1e9,
        "cost/tokens_out": float(cost.tokens_out) if cost.log else 0.0,
        "cost/stored_floats_per_video": float(cost.stored),
        "cost/videos_per_second": speed,
        "cost/peak_memory_mb": memory,
    }


@torch.no_grad()
@merged_weights()
def _time(method: Method, frames: Tensor, seconds: float) -> tuple[float, float]:
    """Return videos per second and peak memory (10^6 bytes) of `encode_video`."""
    cuda = frames.is_cuda
    training = method.training
    method.eval()
    method.encode_video(frames)
    if cuda:
        torch.cuda.synchronize(frames.device)
        reset_peak_memory(frames.device)
    start, rounds = time.perf_counter(), 0
    while rounds == 0 or time.perf_counter() - start < seconds:
        method.encode_video(frames)
        if cuda:
            torch.cuda.synchronize(frames.device)
        rounds += 1
    elapsed = time.perf_counter() - start
    method.train(training)
    return rounds * len(frames) / elapsed, peak_memory_mb(frames.device)


@functools.cache
def sizes_only(name: str = "ViT-B-32-quickgelu") -> Clip:
    """Build an open_clip or UMT architecture on the meta device, whose tensors have shapes but no values."""
    import open_clip

    if name in UMT:
        with torch.device("meta"):
            return make_umt(name)
    config = open_clip.get_model_config(name)
    if config is None:
        raise ValueError(f"backbone: {name!r} is not an architecture. Choose one of open_clip.list_models().")
    with torch.device("meta"):
        source = open_clip.CLIP(**config)
        return Clip(source, lambda texts: torch.empty(0), (0.0,) * 3, (1.0,) * 3, name)


def task_costs(method: Method, data: StreamData, split: str, device: torch.device, tasks: int) -> dict[str, float]:
    """Return the costs after a task (`evaluation.costs`), from one pass over a video and one pass over a caption.

        stream/cost/video_gmacs         multiply-adds of encoding a video, 10^9
        stream/cost/query_gmacs         multiply-adds of a query after this task, 10^9
        stream/cost/trained_parameters  parameters that the optimizer changes in this task
        stream/cost/stored_floats       values stored per video

    They are counts, so equal settings have equal costs on every machine, and a search can have them as objectives.

    Args:
        method: after `tasks` tasks, on `device`.
        data: data of the stream; a video and a caption of `split` are read.
    """
    plain = data.with_features(None)  # counts the whole tower, even where stored tokens enter later
    video = video_cost(method, next(plain.videos(0, split, [0], 1)))
    tokens = trim_padding(data.queries(0, split).tokens[:1]).to(device)
    return {
        f"{COSTS}video_gmacs": video.macs / 1e9,
        f"{COSTS}query_gmacs": query_cost(method, tokens, tasks)["cost/query_gmacs"],
        f"{COSTS}trained_parameters": float(trained_parameters(method)),
        f"{COSTS}stored_floats": float(video.stored),
    }


class Multiplications(TorchDispatchMode):
    """Sums torch's operation counts (`flop_registry`) of all operators that run in the context.

    Torch's `FlopCounterMode` needs hooks of modules, which fail where a module returns a view of its weights without
    gradients (learned prompts), and imports torch's compiler, which takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # the default imports torch's compiler
        return False

    def get_total_flops(self) -> int:
        """Return the multiplications and additions so far, two for each multiply-add."""
        return self.total

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None and func is not torch.ops.prim.device.default:
            with self:  # an operator that is composed of other operators
                made = func.decompose(*args, **given)
            if made is not NotImplemented:
                return made
        found = func(*args, **given)
        self.total += 0 if count is None else count(*args, **given, out_val=found)
        return found
