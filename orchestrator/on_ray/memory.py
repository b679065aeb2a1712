"""Estimates of a worker's memory, of the number of trials that fit the memory of nodes, and of free memory.

The estimate is deliberately rough: it keeps a machine with many CPUs and little memory from starting too many trials,
and never causes a refusal. Loads neither Ray nor torch, because `ctvr doctor` also uses it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ctvr.methods.backbone.descriptions import get_model_config, image_size

# Bytes of a process with torch, open_clip, Ray and MLflow and a tiny model: the peak of 78 runs of 8 methods with
# tiny-clip was 1.27 to 1.93 GB
PROCESS = 1_900_000_000
COPIES = 4  # copies of each parameter: weight, gradient and AdamW's two moments
# Bytes for the backward pass per token, block and channel, float32. clip4clip with ViT-B/32 on a CPU took 2.62 GiB for
# a pair of 4 frames and 3.42 GiB for 8 pairs, which is 53 bytes per token, block and channel
PER_UNIT = 55
# Prefix of a timm name -> blocks, channels, and the ratio of the MLP's channels to these, as timm builds it. SwiGLU's
# three layers count as two (EVA02). Convolutional towers (FastViT, ConvNeXt, ViTamin) are omitted
TIMM = {
    "vit_base_": (12, 768, 4.0),
    "vit_large_": (24, 1024, 4.0),
    "vit_so400m_": (27, 1152, 4304 / 1152),
    "vit_giantopt_": (40, 1536, 4.0),
    "vit_pe_core_tiny_": (12, 192, 4.0),
    "vit_pe_core_small_": (12, 384, 4.0),
    "vit_pe_core_base_": (12, 768, 4.0),
    "vit_pe_core_large_": (24, 1024, 4.0),
    "vit_pe_core_gigantic_": (50, 1536, 8960 / 1536),
    "eva_giant_": (40, 1408, 6144 / 1408),
    "eva02_base_": (12, 768, 4.0),
    "eva02_large_": (24, 1024, 4.0),
}
# Sizes that open_clip uses where a configuration omits them
_VISION = {"layers": 12, "width": 768, "mlp_ratio": 4.0, "patch_size": 16}
_TEXT = {"layers": 12, "width": 512, "mlp_ratio": 4.0, "context_length": 77, "vocab_size": 49408}
_free_at_start: int | None = None  # free bytes on this machine before this process started Ray


def worker_bytes(backbone: str, frames: int, pairs: int, on_gpu: bool = False) -> int:
    """Estimate the resident memory (bytes) of a worker that trains every parameter of a backbone.

    Args:
        backbone: name; for unknown and convolutional backbones, only `PROCESS` is counted.
        frames: number of frames per video.
        pairs: number of pairs in a worker's batch.
        on_gpu: whether gradients, optimizer moments and activations are on a GPU.
    """
    size = model_size(backbone)
    if size is None:
        return PROCESS
    if on_gpu:
        return PROCESS + 2 * 4 * size.parameters  # one copy for the loaded weights, one for the model
    return PROCESS + COPIES * 4 * size.parameters + PER_UNIT * pairs * (frames * size.image_units + size.text_units)


@dataclass(frozen=True)
class Size:
    """Size of a backbone of two transformers."""

    parameters: int  # number of parameters without biases and norms
    image_units: int  # tokens x blocks x channels of one image
    text_units: int  # tokens x blocks x channels of one caption


def model_size(name: str) -> Size | None:
    """Return the size of a backbone whose towers are transformers of open_clip or timm; None for other backbones."""
    described, side = get_model_config(name), image_size(name)
    if described is None or side is None:
        return None
    vision = _timm_tower(described["vision_cfg"]) or _VISION | described["vision_cfg"]
    text, joint = _TEXT | described.get("text_cfg", {}), described["embed_dim"]
    needed = [joint, *(vision[name] for name in _VISION), *(text[name] for name in _TEXT)]
    is_of_others = "timm_model_name" in vision or "hf_model_name" in text
    if is_of_others or any(type(each) not in (int, float) or each <= 0 for each in needed):
        return None
    patch, pool = vision["patch_size"], vision.get("pool_weights", 0)
    tokens, width, depth = (side // patch) ** 2 + 1, vision["width"], vision["layers"]
    words, channels, blocks = text["context_length"], text["width"], text["layers"]
    seen = (_block_weights(vision) * depth + pool) * width**2 + (3 * patch**2 + tokens + joint) * width
    read = _block_weights(text) * blocks * channels**2 + (text["vocab_size"] + words + joint) * channels
    return Size(round(seen + read), tokens * depth * width, words * blocks * channels)


def _block_weights(tower: Mapping[str, Any]) -> float:
    """Return a transformer block's number of weights over its squared width: 4 for attention, plus the MLP."""
    return 4 + 2 * float(tower["mlp_ratio"])


def _timm_tower(vision: Mapping[str, Any]) -> dict[str, Any] | None:
    """Describe a timm transformer in open_clip's format; return None if the tower is not one of `TIMM`.

    Args:
        vision: `vision_cfg` of open_clip's description of a backbone.
    """
    name = str(vision.get("timm_model_name", ""))
    found = next((TIMM[start] for start in TIMM if name.startswith(start)), None)
    if found is None:
        return None
    layers, width, ratio = found
    patch = re.search(r"_patch(\d+)", name)
    tower = {"layers": layers, "width": width, "mlp_ratio": ratio, "patch_size": int(patch[1]) if patch else 16}
    return tower | ({"pool_weights": _block_weights(tower)} if vision.get("timm_pool") == "map" else {})


def trials_in_memory(worker: int, workers: int, nodes: Sequence[Mapping[str, float]]) -> int | None:
    """Return how many trials fit the memory of nodes, at least one; None if the bytes of a worker or node are unknown.

    Args:
        worker: bytes of one worker; 0 if unknown.
        workers: number of workers per trial.
        nodes: Ray's resources of each node.
    """
    rooms = [node.get("memory") for node in nodes]
    if not worker or not rooms or not all(rooms):
        return None
    return max(1, sum(int((room or 0) // worker) for room in rooms) // workers)


def record_free_memory(free: int | None) -> None:
    """Record the bytes that were free before this process started Ray; None for a cluster that it joins."""
    global _free_at_start
    _free_at_start = free


def memory_of(nodes: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the bytes that trials may use on each node; on a cluster started here, the bytes that were free before."""
    if _free_at_start is not None and len(nodes) == 1:
        return [{"memory": float(_free_at_start)}]
    return [{"memory": node.get("memory", 0.0)} for node in nodes]


def await_memory(needed: int, seconds: float) -> None:
    """Wait at most `seconds` until Ray's memory monitor would not kill a new process of `needed` bytes."""
    share = 1.0 - float(os.environ.get("RAY_memory_usage_threshold", "0.95"))  # noqa: SIM112
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if all(limit - used - needed > share * limit for limit, used in _memories()):
            return
        time.sleep(min(1.0, seconds))


def free_memory() -> int | None:
    """Return the free bytes of the machine, or of the container if these are fewer; None if unknown."""
    return min((limit - used for limit, used in _memories()), default=None)


def _memories() -> list[tuple[int, int]]:
    """Return the pairs (limit, used), in bytes, of the machine and of the container if it has a limit."""
    machine = psutil.virtual_memory()
    found = [(machine.total, machine.total - machine.available)]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        group = Path("/sys/fs/cgroup")
        found.append((int((group / "memory.max").read_text()), int((group / "memory.current").read_text())))
    return found
