"""Plain implementations of hot paths (paths.py): they compute as the authors' codes do and share no code with them.

JasonCodeMaker/CTVR ranks by sorting twice, encodes every caption once for each prototype in the order of the stream,
padded to the longest of its batch, and decodes each epoch. StructAlign's code runs the previous model in every step.
None of them encodes a repeated video of a batch only once. X-Pool makes a vector for every pair. CLIP's activation is
written as x sigmoid(1.702 x), of which the backward pass keeps three tensors, and its last block computes all tokens,
of which one is used. CTVR (72b7652, model/FrameFusionMoE) has separate matrices for q, k and v, attention by two
products with a softmax between them, and runs every expert that any caption of the batch has chosen on all captions,
to weigh the outputs afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Attention
from ctvr.methods.backbone.clip import Block, BlockSeams, Seams, TextTower, TokenState, VisionTower, run_blocks
from ctvr.methods.base import Batch, Method
from ctvr.methods.layers.experts import SharedLoRAExperts
from ctvr.methods.xpool import XPool

WORDS = ("dog", "cat", "man", "car", "red", "ball", "run", "sits", "blue", "two")  # one token each


class PlainGELU(nn.Module):
    """The activation x sigmoid(1.702 x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def with_plain_towers(method: Method) -> Method:
    """Return a copy of a method whose towers use the plain activation and compute all tokens of the last block."""
    made = copy.deepcopy(method)
    for module in list(made.modules()):
        if isinstance(module, VisionTower):
            whole: Block = module.blocks[-1]  # type: ignore[assignment]
            whole.forward = partial(_every_token, whole)  # type: ignore[method-assign]
        if isinstance(module, nn.Sequential) and type(getattr(module, "gelu", None)).__name__ == "QuickGELU":
            module.gelu = PlainGELU()
    return made


def as_released(method: Method) -> Method:
    """Return a copy with plain towers and the attention and routed experts of CTVR's code; it computes equal values."""
    made = with_plain_towers(method)
    for module in made.modules():
        if isinstance(module, Attention):
            module.project = partial(_three_products, module)  # type: ignore[method-assign, assignment]
        if isinstance(module, TextTower):
            module.forward = partial(_whole_text, module)  # type: ignore[method-assign]
        if isinstance(module, SharedLoRAExperts):
            module.forward = partial(_every_caption, module)  # type: ignore[method-assign]
    return made


Made = TypeVar("Made")


def with_plain_attention(work: Callable[[], Made]) -> Callable[[], Made]:
    """Return work during which attention stores its probabilities: softmax(q k^T / sqrt(d) + mask) v."""

    def done() -> Made:
        with patch.object(F, "scaled_dot_product_attention", _attend):
            return work()

    return done


def _attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=q.device).triu(1)
    return (scores if attn_mask is None else scores + attn_mask).softmax(dim=-1) @ v


def _whole_text(tower: TextTower, tokens: Tensor, seams: Seams | None = None) -> Tensor:
    x, state = tower.embed(tokens)
    return tower.read(run_blocks(tower.blocks, x, seams, state, tower.causal), state)


def _three_products(
    attention: Attention, y: Tensor, seams: BlockSeams, state: TokenState, read: int | None = None
) -> tuple[Tensor, ...]:
    acts = (seams.q, seams.k, seams.v)
    parts = zip(attention.in_weight.chunk(3), attention.in_bias.chunk(3), acts, (read, None, None))
    made = ((F.linear(y, weight, bias), act, rows) for weight, bias, act, rows in parts)
    return tuple((x if act is None else act(y, x, state))[:, :rows] for x, act, rows in made)


def _every_caption(experts: SharedLoRAExperts, x: Tensor, gates: Tensor | None) -> Tensor:
    down = F.linear(F.dropout(x, experts.dropout, experts.training), experts.A)
    if gates is None:
        return experts.scale * F.linear(down, experts.B[0])
    asked = [i for i in range(len(experts.B)) if gates[:, i].any()]
    answers = [F.linear(down, experts.B[i]) * gates[:, i, None, None] for i in asked]
    return experts.scale * sum(answers[1:], answers[0])


def _every_token(
    block: Block, x: Tensor, seams: BlockSeams | None, state: TokenState, causal: bool, is_last: bool = False
) -> Tensor:
    return Block.forward(block, x, seams, state, causal)


def nothing_known(batch: Batch) -> Batch:
    """Return the same pairs without the information that videos are equal: all are encoded and none is cached."""
    return replace(batch, unaugmented_video_ids=None)


@torch.no_grad()
def texts_by_prototype(method: Method, tokens: Tensor, tasks: Sequence[int], size: int) -> list[Tensor]:
    """Return features (Q, d) of all captions for the prototype of each of `tasks`, in the order of the stream."""
    return [torch.cat([method.encode_text(part, task) for part in tokens.split(size)]) for task in tasks]


def ranks_by_sorting(captions: Tensor, videos: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rank caption i among all videos and video i among all captions, both (N, d), by sorting a matrix twice."""
    scores = (captions @ videos.mT).numpy()
    first, second = (np.argsort(np.argsort(-each, axis=1), axis=1) for each in (scores, scores.T))
    return first.diagonal() + 1, second.diagonal() + 1


@torch.no_grad()
def xpool_scores(method: XPool, queries: Tensor, gallery: Tensor, videos: int = 16) -> Tensor:
    """Return cos (Q, V) of captions (Q, d) and of every video as each caption pools it, frames (V, T, d)."""
    head, parts = method.pooling, []
    asked, unit = head.ask(queries), F.normalize(queries, dim=-1)
    for frames in gallery.split(videos):
        parts.append((F.normalize(head.pool(asked, *head.read(frames)), dim=-1) * unit).sum(dim=-1))
    return torch.cat(parts).mT


def captions_like_msrvtt(number: int, longest: int = 40) -> list[str]:
    """Return captions of about MSRVTT's length (11.8 tokens); padding in batches of 32 nearly doubles it (1.94 x)."""
    generator = np.random.default_rng(0)
    lengths = np.clip(np.round(generator.lognormal(2.17, 0.42, number)), 3, longest).astype(int)
    return [" ".join(generator.choice(WORDS, length)) for length in lengths]
