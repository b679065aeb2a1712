"""How much memory a worker of a trial is taken to need, how many trials that leaves room for, and how much there is.

The sum is rough on purpose: it keeps a machine of many processors and little memory from starting more trials than it
holds, and is never a reason to refuse one. Loads neither Ray nor torch: `ctvr doctor` asks it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctvr.methods.backbone.architectures import TINY, TINY_FOLDER, UMT, image_size

# Bytes of a process with torch, open_clip, Ray and MLflow and a model of no size: 1.27 to 1.93 GB was the peak of 78
# runs of 8 methods with tiny-clip
PROCESS = 1_900_000_000
COPIES = 4  # of each parameter: weight, gradient and AdamW's two means
# Bytes kept for the backward pass for each token, block and channel, float32: clip4clip with ViT-B/32 on a CPU took
# 2.62 GiB for a pair of 4 frames and 3.42 for 8 pairs, 53 for each
PER_UNIT = 55
_free_at_start: int | None = None  # on this machine, before the Ray that this process started


def worker_bytes(backbone: str, frames: int, pairs: int, on_gpu: bool = False) -> int:
    """Resident memory of a worker that trains every parameter of a backbone.

    Args:
        backbone: its name; of one that nobody described, and of ResNets, the process alone is counted.
        frames: of a video.
        pairs: of a worker's batch.
        on_gpu: gradients, means and activations lie on the device.
    """
    size = model_size(backbone)
    if size is None:
        return PROCESS
    if on_gpu:
        return PROCESS + 2 * 4 * size.parameters  # the one that is read, and the one that is built
    return PROCESS + COPIES * 4 * size.parameters + PER_UNIT * pairs * (frames * size.image_units + size.text_units)


@dataclass(frozen=True)
class Size:
    """Parameters of a backbone, biases and norms left out; tokens x blocks x channels of an image and of a caption."""

    parameters: int
    image_units: int
    text_units: int


def model_size(name: str) -> Size | None:
    """The size of a backbone of two transformers; None if it is none, or nobody has described one of this name."""
    described, side = _described(name), image_size(name)
    if described is None or side is None:
        return None
    vision, text, joint = described["vision_cfg"], described.get("text_cfg", {}), described["embed_dim"]
    patch = vision.get("patch_size")
    if not isinstance(vision.get("layers"), int) or not isinstance(patch, int) or "width" not in text:
        return None
    tokens, width, depth = (side // patch) ** 2 + 1, vision["width"], vision["layers"]
    words, channels, blocks = text.get("context_length", 77), text["width"], text["layers"]
    seen = 12 * depth * width**2 + (3 * patch**2 + tokens + joint) * width  # 12: 4 of attention, 8 of the MLP
    read = 12 * blocks * channels**2 + (text.get("vocab_size", 49408) + words + joint) * channels
    return Size(seen + read, tokens * depth * width, words * blocks * channels)


def _described(name: str) -> dict[str, Any] | None:
    """The description of a backbone, as open_clip has it, which is not loaded for it."""
    if name == TINY:
        return dict(json.loads((TINY_FOLDER / "config.json").read_text(encoding="utf-8"))["model"])
    if name in UMT:
        return UMT[name]
    spec = find_spec("open_clip")
    file = Path(spec.origin).parent / "model_configs" / f"{name}.json" if spec is not None and spec.origin else None
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.is_file() else None


def trials_in_memory(worker: int, workers: int, nodes: Sequence[Mapping[str, float]]) -> int | None:
    """How many trials the memory of nodes holds, at least one; None where either is not known.

    Args:
        worker: bytes of one; 0 if unknown.
        workers: of a trial.
        nodes: Ray's resources of each.
    """
    rooms = [node.get("memory") for node in nodes]
    if not worker or not rooms or not all(rooms):
        return None
    return max(1, sum(int((room or 0) // worker) for room in rooms) // workers)


def record_free_memory(free: int | None) -> None:
    """Keep how much was free when this process started Ray here: what trials take later is theirs; None elsewhere."""
    global _free_at_start
    _free_at_start = free


def memory_of(nodes: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """What trials may use of nodes: what was free, on the only node of a cluster that was started here."""
    if _free_at_start is not None and len(nodes) == 1:
        return [{"memory": float(_free_at_start)}]
    return [{"memory": node.get("memory", 0.0)} for node in nodes]


def await_memory(needed: int, seconds: float) -> None:
    """Wait, no longer than `seconds`, until a process of `needed` bytes fits without Ray ending it for its memory."""
    share = 1.0 - float(os.environ.get("RAY_memory_usage_threshold", "0.95"))  # noqa: SIM112
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if all(limit - used - needed > share * limit for limit, used in _memories()):
            return
        time.sleep(min(1.0, seconds))


def free_memory() -> int | None:
    """Bytes that may still be used, by the machine and by the container we are in; None where it cannot be known."""
    return min((limit - used for limit, used in _memories()), default=None)


def _memories() -> list[tuple[int, int]]:
    """Bytes there are and bytes in use: of the machine, and of the container we are in if it has a limit."""
    found = []
    with contextlib.suppress(OSError, KeyError, ValueError):  # no Linux
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        whole, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        found.append((whole, whole - free))
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        group = Path("/sys/fs/cgroup")
        found.append((int((group / "memory.max").read_text()), int((group / "memory.current").read_text())))
    return found
