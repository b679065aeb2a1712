"""Attention maps, patch merges and expert weights of a trained model over the frames of videos.

Shapes: V videos, T frames, P patches of a frame (rows x columns), N = 1 + P tokens, G = V T attention groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Attention, TokenState, record_tokens
from ctvr.methods.backbone.clip import VisionTower
from ctvr.methods.camoe import STREAMS, Gate
from ctvr.methods.layers.reduction.merge import follow
from ctvr.methods.layers.temporal import FrameFusion, neighbour
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.streams.stream import Item


@dataclass(frozen=True)
class PatchMaps:
    """Frames as the model received them, with a result for each patch."""

    frames: Tensor  # (V, T, H, W, 3) uint8
    rows: int  # number of rows of patches, equal to that of columns


@dataclass(frozen=True)
class AttentionMaps(PatchMaps):
    """Attention averaged over heads, in one block; the remainder to 1 is the attention to the class token."""

    block: int  # 0-based
    spatial: Tensor  # (V, T, P): attention of a frame's class token within the frame
    temporal: (
        Tensor | None
    )  # (V, T, P): attention of the neighboring frame's class token to the frame; None without FFA


@dataclass(frozen=True)
class Merges(PatchMaps):
    """Token index of each patch; patches of a video with equal indices were merged into one token."""

    tokens: Tensor  # (V, T, P) int64


def attention_maps(model: Model, items: Sequence[Item], block: int | None = None) -> AttentionMaps:
    """Return the attention of one vision block to the patches of every frame.

    Args:
        model: a model whose vision tower keeps all patches of a frame.
        items: videos.
        block: 1-based block; if None, the last block with frame fusion, or the last block if no block has it.

    Raises:
        ConfigError: for a tower without patches or with merged patches, or a block that does not exist.
    """
    tower, frames, pictures = _tower(model), *_frames(model, items)
    depth = len(tower.blocks)
    if block is not None and not 1 <= block <= depth:
        raise ConfigError(f"--block counts the blocks of the vision tower, 1 to {depth}, got {block}.", "plot")
    seen = AttentionRecorder()
    attentions: list[nn.Module] = [each.attn for each in tower.blocks]  # type: ignore[misc]
    fusions = [each for each in model.trained.method.modules() if isinstance(each, FrameFusion)]
    with ExitStack() as stack:
        for layer, attention in enumerate(attentions):
            stack.callback(attention.register_forward_pre_hook(partial(seen.within_frames, layer)).remove)
        for fusion in fusions:
            stack.callback(fusion.register_forward_pre_hook(seen.between_frames).remove)
        model.encode_frames(frames)
    fused = [layer for layer in seen.temporal if layer in seen.spatial]
    chosen = (max(fused, default=max(seen.spatial, default=-1))) if block is None else block - 1
    patches = tower.num_tokens - tower.classes
    rows = _square(patches)
    spatial = seen.spatial.get(chosen)
    if tower.classes != 1 or rows is None or spatial is None or spatial.shape[-1] != patches:
        where = (
            f"in block {chosen + 1}, or bypasses CLIP's attention there" if spatial is not None else "in CLIP's blocks"
        )
        raise ConfigError(
            f"plot attention: {model.method} has no patches of single frames {where}. Pass another --block, or a model "
            "that does not merge patches, such as framefusion_moe."
        )
    shape = frames.shape[:2]
    temporal = seen.temporal.get(chosen)
    return AttentionMaps(pictures, rows, chosen, spatial.unflatten(0, shape), temporal)


def merges(model: Model, items: Sequence[Item]) -> Merges:
    """Return the patches that became one token.

    Raises:
        ConfigError: if the model does not merge patches, or also drops tokens.
    """
    tower, frames, pictures = _tower(model), *_frames(model, items)
    with record_tokens() as states:
        model.encode_frames(frames)
    moved = next((state for state in states if state.moves), None)
    rows = _square(tower.num_tokens - tower.classes)
    if moved is None or rows is None:
        raise ConfigError(
            f"plot merges: {model.method} does not merge patches of frames. Use a model with "
            "method.reducer.name=tome, tome_shared or tempme."
        )
    shape = frames.shape[:2]
    found = follow(moved.moves, shape[0] * shape[1], tower.num_tokens)[:, tower.classes :]
    return Merges(pictures, rows, found.unflatten(0, shape).cpu())


def expert_weights(model: Model, items: Sequence[Item]) -> tuple[Tensor, dict[str, dict[str, list[float]]]]:
    """Return the videos' frames (V, T, H, W, 3) uint8, and gate -> expert -> its weight in each video (CAMoE, eq. 10).

    Raises:
        ConfigError: if the model has no gates of experts.
    """
    modules = model.trained.method.named_modules()
    gates = {name.rpartition(".")[2]: module for name, module in modules if isinstance(module, Gate)}
    if not gates:
        raise ConfigError(f"plot gates: {model.method} has no gates over experts. Pass a model trained with camoe.")
    frames, pictures = _frames(model, items)
    found: dict[str, dict[str, list[float]]] = {}

    def keep(name: str, gate: nn.Module, given: tuple[Any, ...], weights: Tensor) -> None:
        found[name] = dict(zip(STREAMS, weights.float().T.tolist()))

    with ExitStack() as stack:
        for name, gate in gates.items():
            stack.callback(gate.register_forward_hook(partial(keep, name)).remove)
        model.encode_frames(frames)
    return pictures, found


@torch.no_grad()
def score_matrices(model: Model, number: int) -> tuple[Tensor, Tensor, list[str]]:
    """Return scores of captions and their videos, (V, V) before and after normalization, and the videos' names.

    They are the first captions of the first `number` videos of the last task.

    Raises:
        ConfigError: if the method does not normalize scores, or the model's stream is not available.
    """
    method = model.trained.method
    none = ConfigError(
        f"plot scores: {model.method} does not normalize a matrix of scores. Use dsl, or camoe with preset dsl."
    )
    if not method.declared.normalizes_scores:
        raise none
    block = model.gallery()[-1]
    chosen = block.items[:number]
    texts = model.encode_text([item.captions[0] for item in chosen], block.task)
    plain = method.score(texts.to(model.device), block.features[: len(chosen)].to(model.device)).float()
    if plain.shape != (len(chosen), len(chosen)):
        raise none  # it has several scores for a pair, which normalization combines
    return plain.cpu(), method.normalize_scores(plain).float().cpu(), [item.video for item in chosen]


class AttentionRecorder:
    """Recorder of the attention of class tokens to patches in each block, averaged over heads.

    `spatial` is within a frame, (G, P); `temporal` is between neighboring frames, (V, T, P).
    """

    def __init__(self) -> None:
        self.spatial: dict[int, Tensor] = {}
        self.temporal: dict[int, Tensor] = {}

    def within_frames(self, layer: int, attention: Attention, given: tuple[Any, ...]) -> None:
        y, seams, state = given[:3]
        q, k, _ = (attention.heads_first(x) for x in attention.project(y, seams, state))
        self.spatial[layer] = _class_row(q, k)

    def between_frames(self, fusion: FrameFusion, given: tuple[Any, ...]) -> None:
        y, state = given[0], given[2]
        assert isinstance(state, TokenState)
        tokens, attention = y.unflatten(0, (state.batch, -1)), fusion.attention
        heads = attention.heads
        q = attention.q(neighbour(tokens, fusion.direction)).unflatten(-1, (heads, -1)).transpose(2, 3)
        k = attention.k(tokens).unflatten(-1, (heads, -1)).transpose(2, 3)
        self.temporal[state.layer] = _class_row(q, k)


@torch.no_grad()
def _class_row(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention (..., P) of the first token to all others; q, k (..., H, N, D/H)."""
    logits = (q[..., :1, :] @ k.mT)[..., 0, :].float() / q.shape[-1] ** 0.5
    return logits.softmax(dim=-1).mean(dim=-2)[..., 1:].cpu()


def _tower(model: Model) -> VisionTower:
    tower = next((each for each in model.trained.method.modules() if isinstance(each, VisionTower)), None)
    if tower is None or tower.takes_features or not isinstance(getattr(tower, "conv1", None), nn.Module):
        raise ConfigError(f"{model.method} has no vision tower that embeds patches of frames", "plot")
    return tower


def _frames(model: Model, items: Sequence[Item]) -> tuple[Tensor, Tensor]:
    """Return frames (V, T, 3, H, W) as the method receives them, and as images (V, T, H, W, 3) uint8."""
    frames = torch.cat(list(model.frames_of(items)))
    clip = model.trained.clip
    mean, std = (frames.new_tensor(values)[:, None, None] for values in (clip.mean, clip.std))
    pictures = ((frames * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    return frames, pictures.movedim(2, -1).cpu()


def _square(patches: int) -> int | None:
    side = round(patches**0.5)
    return side if side * side == patches and side > 0 else None


def enlarged(maps: Tensor, rows: int, size: int) -> Tensor:
    """Return maps (V, T, P) as smooth images (V, T, size, size) in [0, 1], each frame scaled independently."""
    grid = maps.flatten(0, 1).unflatten(-1, (rows, -1))[:, None]
    large = F.interpolate(grid, size=(size, size), mode="bicubic", align_corners=False)[:, 0]
    low, high = large.amin(dim=(1, 2), keepdim=True), large.amax(dim=(1, 2), keepdim=True)
    return ((large - low) / (high - low).clamp_min(1e-12)).unflatten(0, maps.shape[:2])
