"""Plain implementations of hot paths (paths.py), which compute in the same way as the code of the authors.

They do not share code with the hot paths. JasonCodeMaker/CTVR ranks by sorting twice, and decodes videos in each epoch.
It encodes every caption once for each prototype in the order of the stream, padded to the longest caption of its batch.
The code of StructAlign runs the model of the previous task in every step. No authors' code encodes a repeated video of
a batch only once. X-Pool computes a pooled vector for every pair. CLIP's activation is x sigmoid(1.702 x), for which
autograd stores three tensors. The last block of CLIP computes all tokens, of which one is used. CTVR (72b7652,
model/FrameFusionMoE) has separate matrices for q, k and v, and attention by two products with a softmax between them.
It runs each expert to which a caption of the batch is routed on all captions, and weights the outputs afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.blocks import Attention
from ctvr.methods.backbone.clip import Block, BlockSeams, Seams, TextTower, TokenState, VisionTower, run_blocks
from ctvr.methods.base import Batch, Method
from ctvr.methods.framefusion_moe import FrameFusionMoE
from ctvr.methods.layers.experts import PLACES, TaskAwareExperts
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
    """Return a copy of a method with plain towers and CTVR's attention and routed experts; its outputs are equal."""
    made = with_plain_towers(method)
    for module in made.modules():
        if isinstance(module, Attention):
            module.project = partial(_three_products, module)  # type: ignore[method-assign, assignment]
        if isinstance(module, TextTower):
            module.forward = partial(_whole_text, module)  # type: ignore[method-assign]
        if isinstance(module, FrameFusionMoE):
            module._text_seams = partial(_one_by_one, module)  # type: ignore[method-assign]
    return made


Made = TypeVar("Made")


def with_plain_attention(work: Callable[[], Made]) -> Callable[[], Made]:
    """Return a function that runs `work` with attention that stores softmax(q k^T / sqrt(d) + mask)."""

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


def _one_by_one(method: FrameFusionMoE, index: int) -> list[BlockSeams]:
    """Return hook functions (seams) of the text blocks that compute the adapters of q, k, v and out one by one."""
    prototype = method.prototypes[index] if index < len(method.prototypes) else None
    is_routed = not (method._has_bypass and index == 0)
    found = []
    for block in method.tame:
        adapters: Any = block
        q, k, v, out = (partial(_adapt, adapters[place], prototype, is_routed) for place in PLACES)
        found.append(BlockSeams(q=q, k=k, v=v, out=out))
    return found


def _adapt(
    adapter: TaskAwareExperts,
    prototype: Tensor | None,
    is_routed: bool,
    x: Tensor,
    projected: Tensor,
    state: TokenState,
) -> Tensor:
    experts, router = adapter.experts, adapter.router
    gates = None
    if router is not None and is_routed:
        u = x[torch.arange(len(x)), state.eot]
        u = u if prototype is None else u + prototype
        logits = F.linear(u, router.route)
        if router.noise is not None and router.training:
            logits = logits + torch.randn_like(logits) * (F.softplus(F.linear(u, router.noise)) + 0.01)
        best, chosen = logits.topk(router.top_k, dim=-1)
        gates = torch.zeros_like(logits).scatter(1, chosen, best.softmax(dim=-1))
    down = F.linear(F.dropout(x, experts.dropout, experts.training), experts.A)
    if gates is None:
        return projected + experts.scale * F.linear(down, experts.B[0])
    asked = [i for i in range(len(experts.B)) if gates[:, i].any()]
    answers = [F.linear(down, experts.B[i]) * gates[:, i, None, None] for i in asked]
    return projected + experts.scale * sum(answers[1:], answers[0])


def _every_token(
    block: Block, x: Tensor, seams: BlockSeams | None, state: TokenState, causal: bool, is_last: bool = False
) -> Tensor:
    return Block.forward(block, x, seams, state, causal)


def nothing_known(batch: Batch) -> Batch:
    """Return the batch without the ids that mark equal videos, so that no feature is cached or computed only once."""
    return replace(batch, unaugmented_video_ids=None)


@torch.no_grad()
def texts_by_prototype(method: Method, tokens: Tensor, tasks: Sequence[int], size: int) -> list[Tensor]:
    """Return, for the prototype of each of `tasks`, the features (Q, d) of all captions in the order of the stream."""
    return [torch.cat([method.encode_text(part, task) for part in tokens.split(size)]) for task in tasks]


def ranks_by_sorting(captions: Tensor, videos: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rank caption i among all videos and video i among all captions, both (N, d), by sorting a matrix twice."""
    scores = (captions @ videos.mT).numpy()
    first, second = (np.argsort(np.argsort(-each, axis=1), axis=1) for each in (scores, scores.T))
    return first.diagonal() + 1, second.diagonal() + 1


@torch.no_grad()
def xpool_scores(method: XPool, queries: Tensor, gallery: Tensor, videos: int = 16) -> Tensor:
    """Return cosines (Q, V) of captions (Q, d) and videos (V, T, d); each caption pools the frames of each video."""
    head, parts = method.pooling, []
    asked, unit = head.ask(queries), F.normalize(queries, dim=-1)
    for frames in gallery.split(videos):
        parts.append((F.normalize(head.pool(asked, *head.read(frames)), dim=-1) * unit).sum(dim=-1))
    return torch.cat(parts).mT


def captions_like_msrvtt(number: int, longest: int = 40) -> list[str]:
    """Return captions with MSRVTT's lengths (mean 11.8 tokens; 1.94 times as long if padded in batches of 32)."""
    generator = np.random.default_rng(0)
    lengths = np.clip(np.round(generator.lognormal(2.17, 0.42, number)), 3, longest).astype(int)
    return [" ".join(generator.choice(WORDS, length)) for length in lengths]
