"""Cost of a method: parameters, multiply-adds of the video tower, tokens, speed and memory.

Multiply-adds follow TempMe's tables (arXiv:2409.01156; their "GFLOPs" are multiply-adds). Their rule, found by
recomputing every row: one video, video tower only, inference, LoRA merged into the weights, no matching::

    T P D 3p^2 + sum over blocks (4 n D^2 + 2 D sum over groups N^2 + 2 n' D H) + what seams add

with n tokens in attention and n' in the MLP of a block, as the tower logs them (`TokenState.log`). The paper's
profiler also counts norms, so its figures are 0.2 to 0.3 % higher. Two of its conventions are not followed. It
counts the patch embedding of 12 frames for any number of frames (276.7 for 64 frames, where 282.1 are computed).
Its 25.0 for TempMe with 8 frames fits no schedule.

Shapes: T frames, P patches of p x p pixels, D width, H hidden width of the MLP, N tokens of an attention group.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods import CONFIGURATIONS, find_method
from ctvr.methods.backbone.architectures import UMT
from ctvr.methods.backbone.clip import Clip, VisionTower, record_tokens
from ctvr.methods.backbone.merged_weights import merged_weights
from ctvr.methods.backbone.umt_load import make_umt
from ctvr.methods.base import Method, Task
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.learning.epoch_timing import peak_memory_mb, reset_peak_memory
from ctvr.orchestrator.learning.evaluate import encode_for_task

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
    stored: int  # numbers stored per video

    @property
    def tokens_out(self) -> int:
        """Tokens of the whole video after the tower's last block."""
        groups, _, tokens = self.log[-1]
        return groups * tokens


@torch.no_grad()
def video_cost(method: Method, frames: Tensor) -> VideoCost:
    """Count the operations of encoding `frames` (B, T, 3, H, W) once; with `meta` tensors, without computing.

    Every pass through the image tower counts. For a method without one, its convolutions and linear layers count.
    """
    tower = next((module for module in method.modules() if isinstance(module, VisionTower)), None)
    training = method.training
    counter: Any = nullcontext()
    if tower is None:
        from ctvr.orchestrator.learning.multiplications import Multiplications  # imports triton

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

    Of a method that learns in `end_task`, its buffers outside the backbone count, too: sums, maps and projections.
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


def _counts(method: Method) -> str:
    """Format the number of trained parameters, followed by the paper's number if it differs."""
    counted: dict[str, int] = getattr(method, "counted_parameters", dict[str, int])()
    trained, other = paper_parameters(method), counted.get("paper")
    return f"{trained:,}" if other in {None, trained} else f"{trained:,} (as printed: {other:,})"


@torch.no_grad()
@merged_weights()
def query_cost(method: Method, tokens: Tensor, tasks: int) -> dict[str, float]:
    """Measure the cost of one query with `tasks` stored tasks, by one pass over a caption.

    Args:
        tokens: (1, L) int64 tokens of a caption, on the method's device.

    Returns:
        `cost/query_passes`: passes through text towers, one per task where the text is task-conditioned, unless the
        method has `text_passes`;
        `cost/query_gmacs`: multiply-adds of all passes in 10^9, as torch counts matrix products. Those inside a
        fused attention kernel (3 % for a text of 77 tokens) count only where torch supports the kernel, on a GPU.
    """
    from ctvr.orchestrator.learning.multiplications import Multiplications  # imports triton

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
    """Measure the logged cost of a run: counts, and speed and memory on this machine.

    Args:
        method: after `begin_task`.
        frames: (B, T, 3, H, W) on the method's device; encoded repeatedly.
        seconds: how long to time the encoder; it runs at least once, after one warm-up.

    Returns:
        `cost/...` metrics: parameters, multiply-adds per video in 10^9, tokens after the last block, numbers
        stored per video, videos encoded per second, and the peak memory in 10^6 bytes (on a GPU of the
        accelerator while encoding; on a CPU of the whole process so far).
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
    """Return videos per second and peak megabytes of `encode_video`."""
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
    """Build an open_clip or UMT architecture on the meta device: shapes can be counted, nothing can be computed."""
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


def estimate(
    name: str, settings: dict[str, Any] | None = None, backbone: str = "ViT-B-32-quickgelu", frames: int = 12
) -> tuple[Method, VideoCost]:
    """Build a retriever at a paper's size, on a CLIP without weights, and count the cost of one video.

    Args:
        name: a key of `methods.METHODS` or `methods.CONFIGURATIONS`.
        settings: settings of the method, without the prefix `method.`.
        backbone: name of an open_clip architecture.
        frames: T, frames per video.
    """
    clip = sizes_only(backbone)
    cls = find_method(name)
    own = select_prefix(cls.PRESETS.get(CONFIGURATIONS.get(name, ("", ""))[1], {}), "method")
    config: Any = build(cls.Config, {**own, **(settings or {})}, "method")
    method = cls(config, clip)
    for index in range(2):  # the papers count from the second task on
        method.begin_task(Task(index, f"task_{index + 1:02d}", 10, (2 * index, 2 * index + 1), 20))
    video = torch.empty(1, frames, 3, clip.image_size, clip.image_size, device="meta")
    return method, video_cost(method.to("meta"), video)


_B16, _L14, _L14_336 = "ViT-B-16-quickgelu", "ViT-L-14-quickgelu", "ViT-L-14-336-quickgelu"
_UMT = "UMT-B-16"
_SHORT = {"": "B/32", _B16: "B/16", _L14: "L/14", _L14_336: "L/14@336", _UMT: "UMT B/16"}


def _tempme(**settings: Any) -> dict[str, Any]:
    return {f"reducer.{name}": value for name, value in settings.items()}


_LATE = _tempme(clip_blocks=(8,), clip_groups=(12,))
# label, method, settings, backbone, frames, printed GFLOPs, printed parameters in millions
ROWS: list[tuple[str, str, dict[str, Any], str, int, str, str]] = [
    ("Zero-shot CLIP", "zero_shot", {}, "", 12, "53.0", ""),
    ("CLIP4Clip", "clip4clip", {}, "", 12, "53.0", "151.28"),
    ("Prompt", "prompt", {}, "", 12, "58.2", "0.08"),
    ("Adapter", "adapter", {}, "", 12, "53.1", "0.26"),
    ("LoRA", "lora", {}, "", 12, "53.0", "0.49"),
    ("ToMe", "tome", {}, "", 12, "40.2", "0.49"),
    ("VoP^F+C (our reading; counts its BiLSTM)", "vop_fc", {}, "", 12, "58.0", "14.10"),
    ("EViT", "evit", {}, "", 12, "37.2", "0.49"),
    ("PLEVU", "plevu", {}, "", 12, "", "6.35"),
    ("DGL, linear", "dgl", {}, "", 12, "67.4 (projects K, V twice)", "0.83"),
    ("DGL, transformer", "dgl_transformer", {}, "", 12, "", "9.57"),
    ("STA (r is ours)", "sta", {}, "", 12, "35.7", "0.49"),
    ("DiffRate (schedule is ours)", "diffrate", {}, "", 12, "36.8", "0.49"),
    ("TESTA (rates are ours)", "testa", {}, "", 12, "40.6", "0.59"),
    ("TempMe", "tempme", {}, "", 12, "34.8", "0.50"),
    ("TempMe on prompts", "prompt", _tempme(name="tempme"), "", 12, "", "0.09"),
    ("TempMe on adapters", "adapter", _tempme(name="tempme"), "", 12, "", "0.28"),
    ("TempMe, temporal modelling only", "tempme", _tempme(r=0, keep_cross=100, keep_intra=100), "", 12, "54.3", ""),
    ("TempMe, token reduction only", "tempme", _tempme(join_clips=False), "", 12, "34.7 (schedule unpublished)", ""),
    ("TempMe 12-9>4-10>1", "tempme", _tempme(clip_blocks=(8, 9), clip_groups=(3, 4)), "", 12, "35.4", ""),
    ("TempMe 12-9>1", "tempme", _LATE, "", 12, "37.0", ""),
    ("TempMe 12-9>6-10>3", "tempme", _tempme(clip_blocks=(8, 9), clip_groups=(2, 2)), "", 12, "35.4", ""),
    ("TempMe 12-9>4", "tempme", _tempme(clip_blocks=(8,), clip_groups=(3,)), "", 12, "36.8", ""),
    ("TempMe at 7, 9, 11", "tempme", _tempme(clip_blocks=(6, 8, 10)), "", 12, "31.9", ""),
    ("TempMe at 4, 7, 10", "tempme", _tempme(clip_blocks=(3, 6, 9)), "", 12, "25.8", ""),
    ("TempMe at 1, 5, 9", "tempme", _tempme(clip_blocks=(0, 4, 8)), "", 12, "18.1", ""),
    ("LoRA", "lora", {}, "", 8, "35.4", "0.49"),
    ("TempMe", "tempme", _tempme(num_frames=8), "", 8, "25.0 (no schedule gives it)", ""),
    ("TempMe", "tempme", _tempme(num_frames=18), "", 18, "51.5 (embeds 12 frames)", ""),
    ("LoRA", "lora", {}, "", 64, "276.7 (embeds 12 frames)", "0.49"),
    ("ToMe", "tome", {}, "", 64, "208.5 (embeds 12 frames)", "0.49"),
    ("TempMe", "tempme", _tempme(num_frames=64), "", 64, "180.3 (embeds 12 frames)", "0.50"),
    ("Prompt", "prompt", {}, _B16, 12, "216.8", "0.08"),
    ("Adapter", "adapter", {}, _B16, 12, "211.7", "0.26"),
    ("LoRA", "lora", {}, _B16, 12, "211.3", "0.49"),
    ("ToMe", "tome", {}, _B16, 12, "144.4", "0.49"),
    ("VoP^F+C (our reading; counts its BiLSTM)", "vop_fc", {}, _B16, 12, "246.2", "14.10"),
    ("MV-Adapter", "mv_adapter", {"tying": "down_in"}, _B16, 12, "", "3.6"),
    ("DiffRate", "diffrate", {}, _B16, 12, "138.5", "0.49"),
    ("TempMe", "tempme", {}, _B16, 12, "121.4", "0.50"),
    # The printed count is 46,801,933. It includes FFA in 2 blocks that do not use it (4,724,738), 9 prototypes of other
    # tasks (4,608), and CLIP's projections and logit scale, which are in no optimizer group (655,361)
    ("FrameFusionMoE", "framefusion_moe", {}, "", 12, "", "46.8"),
    ("StructAlign", "structalign", {}, "", 12, "", "33.9"),
    ("UMT", "umt", {}, _UMT, 12, "304.3", ""),
    ("UMT4Clip", "umt4clip", {}, _UMT, 12, "210.1", ""),
    *(  # none of the five papers uses these backbones
        (label, name, {}, backbone, 12, "", "")
        for backbone in (_L14, _L14_336)
        for label, name in (
            ("Zero-shot CLIP", "zero_shot"),
            ("CLIP4Clip", "clip4clip"),
            ("LoRA", "lora"),
            ("ToMe", "tome"),
            ("EViT", "evit"),
            ("TempMe", "tempme"),
            ("FrameFusionMoE", "framefusion_moe"),
            ("StructAlign", "structalign"),
        )
    ),
]


def cost_table() -> str:
    """Return a Markdown table of every method and variant at the papers' sizes, with the printed figures."""
    lines = [("method", "backbone", "frames", "tokens out", "GMACs", "printed", "parameters", "printed (M)")]
    for label, name, settings, backbone, frames, printed, printed_parameters in ROWS:
        method, cost = estimate(name, settings, backbone or "ViT-B-32-quickgelu", frames)
        groups, _, tokens = cost.log[-1]
        counts = (f"{groups} x {tokens}", f"{cost.macs / 1e9:.1f}", printed, _counts(method))
        lines.append((label, _SHORT[backbone], str(frames), *counts, printed_parameters))
    return to_markdown(lines)


def to_markdown(lines: Sequence[tuple[str, ...]]) -> str:
    """Return rows, the first of them a header, as an aligned Markdown table."""
    whole = [lines[0], tuple("-" * len(title) for title in lines[0]), *lines[1:]]
    widths = [max(map(len, column)) for column in zip(*whole)]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in whole)
