"""Costs of the retrievers in `ROWS` at the sizes in the papers, next to published values (`ctvr methods --cost`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ctvr.methods import CONFIGURATIONS, find_method
from ctvr.methods.base import Method, Task
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.cost import VideoCost, paper_parameters, sizes_only, text_passes, video_cost

GROWING = (
    "framefusion_moe",
    "structalign",
    "moe_adapter",
    "dar",
    "lpi",
    "qdc",
    "drift_adapter",
    "xbt",
    "lambda_orthogonality",
)
SHORT = 10  # tasks of the shorter stream in the comparison
CLASSES = 2  # categories of a task
MAX_TASKS = 1000  # largest number of tasks


def _counts(method: Method) -> str:
    """Format the number of trained parameters, followed by the number in the paper if it differs."""
    counted: dict[str, int] = getattr(method, "counted_parameters", dict[str, int])()
    trained, other = paper_parameters(method), counted.get("paper")
    return f"{trained:,}" if other in {None, trained} else f"{trained:,} (as printed: {other:,})"


def estimate(
    name: str, settings: dict[str, Any] | None = None, backbone: str = "ViT-B-32-quickgelu", frames: int = 12
) -> tuple[Method, VideoCost]:
    """Build a retriever at the size of a paper, on a CLIP of meta tensors, and count the cost of one video.

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
    for index in range(2):  # the papers count the cost in a task after the first
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
    ("VoP^F+C (our interpretation; counts its BiLSTM)", "vop_fc", {}, "", 12, "58.0", "14.10"),
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
    ("TempMe, temporal modeling only", "tempme", _tempme(r=0, keep_cross=100, keep_intra=100), "", 12, "54.3", ""),
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
    ("VoP^F+C (our interpretation; counts its BiLSTM)", "vop_fc", {}, _B16, 12, "246.2", "14.10"),
    ("MV-Adapter", "mv_adapter", {"tying": "down_in"}, _B16, 12, "", "3.6"),
    ("DiffRate", "diffrate", {}, _B16, 12, "138.5", "0.49"),
    ("TempMe", "tempme", {}, _B16, 12, "121.4", "0.50"),
    # The printed count is 46,801,933. It includes FFA in 2 blocks that do not use it (4,724,738), 9 prototypes of other
    # tasks (4,608), and CLIP's projections and logit scale, which are in no optimizer group (655,361)
    ("FrameFusionMoE", "framefusion_moe", {}, "", 12, "", "46.8"),
    ("StructAlign", "structalign", {}, "", 12, "", "33.9"),
    ("UMT", "umt", {}, _UMT, 12, "304.3", ""),
    ("UMT4Clip", "umt4clip", {}, _UMT, 12, "210.1", ""),
    *(  # the five papers do not use these backbones
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
    """Return a Markdown table of `ROWS`: multiply-adds and parameters by our count, next to the published values."""
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


def count_bytes(method: Method) -> int:
    """Return the bytes of the parameters and buffers of a method, including its backbone."""
    return sum(each.numel() * each.element_size() for each in (*method.parameters(), *method.buffers()))


def measure_growth(name: str, tasks: int) -> tuple[int, int]:
    """Return the bytes that a method keeps in addition to CLIP after `tasks` tasks, and the text passes of a query."""
    clip: Any = copy.deepcopy(sizes_only())
    cls = find_method(name)
    config: Any = build(cls.Config, {}, "method")
    if cls.wraps:  # its growth does not depend on the depth of the towers, which it copies in every task
        del clip.vision.blocks[1:], clip.text.blocks[1:]
    before = count_bytes(clip)
    if cls.wraps:
        base = find_method(config.base)
        clip = base(build(base.Config, {}, "base"), clip)
    method = cls(config, clip)
    for index in range(tasks):
        categories = tuple(range(CLASSES * index, CLASSES * (index + 1)))
        method.begin_task(Task(index, f"task_{index + 1:02d}", tasks, categories, CLASSES * tasks))
    return count_bytes(method) - before, text_passes(method, tasks)


def growth_table(tasks: int) -> str:
    """Return a Markdown table of the methods that grow with the number of tasks: stored bytes, text passes per query.

    Both are counted for ViT-B/32 after the last of 10 and of `tasks` tasks, on meta tensors. Parameters and buffers are
    included. Temporary copies (teachers), replayed pairs and the index are not; a run reports these as `cost/...`.

    Raises:
        ConfigError: for a number of tasks outside 1 to `MAX_TASKS`.
    """
    if not 1 <= tasks <= MAX_TASKS:
        raise ConfigError(f"must be 1 to {MAX_TASKS}, got {tasks}", "--tasks", remedy="Use --tasks 100.")
    lines = [("method", f"MB after {SHORT} tasks", f"MB after {tasks}", "kB per later task", "text passes of a query")]
    for name in GROWING:
        (short, _), (long, passes) = measure_growth(name, SHORT), measure_growth(name, tasks)
        each = f"{(long - short) / (tasks - SHORT) / 1e3:.1f}" if tasks != SHORT else ""
        lines.append((name, f"{short / 1e6:.2f}", f"{long / 1e6:.2f}", each, str(passes)))
    return to_markdown(lines)
