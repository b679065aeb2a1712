"""Similarity and pooling of word features and frame features (StructAlign, SIGIR 2026, eqs. 1-12).

The word features of a caption are padded with zero rows; a zero row is never counted as a word.

Shapes: B or Q captions, N words, V videos, T frames (the paper's M), L tokens, d joint embedding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import BlockSeams, Seams, TextTower, TokenState, run_block

CHUNK = 2**26  # word-frame cosines in memory at a time, 256 MiB in float32


def words_of(hidden: Tensor, eot: Tensor) -> Tensor:
    """Select the features of the tokens between the start and the end of text, and set the rows after them to zero.

    Args:
        hidden: (B, L, d) joint embeddings of all tokens; the first is the start of text.
        eot: (B,) positions of the end-of-text token.

    Returns:
        (B, L - 1, d). The last row of every caption is padding, so a caption has at most L - 2 words.
    """
    position = torch.arange(1, hidden.shape[1], device=hidden.device)
    return hidden[:, 1:] * (position < eot[:, None])[..., None]


def words_and_caption(
    tower: TextTower, tokens: Tensor, seams: Seams | None = None, with_pads: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute eq. 1: word features (B, N, d) and end-of-text features (B, d) of captions (B, L), not normalized.

    Args:
        tower: the text tower.
        tokens: (B, L) int64.
        seams: a `BlockSeams` per block.
        with_pads: whether the padding of a caption up to length L counts as words; see `hidden_with_pads`.
    """
    hidden, eot = hidden_with_pads(tower, tokens, seams) if with_pads else tower.hidden(tokens, seams)
    words = words_of(hidden, eot)
    if with_pads:  # all tokens except the start and the first end of text
        is_before = torch.arange(1, hidden.shape[1] - 1, device=hidden.device) < eot[:, None]
        words = torch.where(is_before[..., None], hidden[:, 1:-1], hidden[:, 2:])
    return words, hidden[torch.arange(len(hidden), device=hidden.device), eot]


def is_word(words: Tensor) -> Tensor:
    """Return a mask (B, N) of the rows of `words` (B, N, d) that are words, not padding."""
    return words.ne(0).any(dim=-1)


def frame_word_similarity(words: Tensor, frames: Tensor, chunk: int = CHUNK) -> Tensor:
    """Compute eq. 6 for all captions and videos.

    It averages two mean cosines: of words with their most similar frame, and of frames with their most similar word.

    Args:
        words: (Q, N, d), not necessarily normalized; zero rows are padding and are ignored. A caption without words
            scores 0 with every video.
        frames: (V, T, d), not necessarily normalized.
        chunk: maximum number of cosines that are computed at a time; it does not change the result.

    Returns:
        (Q, V) float32 in [-1, 1].
    """
    with torch.autocast(words.device.type, enabled=False):
        return _similarities(F.normalize(words.float(), dim=-1), F.normalize(frames.float(), dim=-1), chunk)


def _similarities(words: Tensor, frames: Tensor, chunk: int) -> Tensor:
    valid = is_word(words)
    longest = words.shape[1]
    if words.device.type == "cpu":  # on a GPU this would wait, and captions were already cut there
        longest = int(valid.any(dim=0).nonzero().max()) + 1 if valid.any() else 1
        words, valid = words[:, :longest], valid[:, :longest]
    videos = max(1, min(len(frames), chunk // (longest * frames.shape[1])))
    queries = max(1, chunk // (longest * frames.shape[1] * videos))
    rows = [
        torch.cat([_similarity(w, mask, f) for f in frames.split(videos)], dim=1)
        for w, mask in zip(words.split(queries), valid.split(queries), strict=True)
    ]
    return torch.cat(rows)


def _similarity(words: Tensor, valid: Tensor, frames: Tensor) -> Tensor:
    cosines = (words.flatten(0, 1) @ frames.flatten(0, 1).mT).view(*words.shape[:2], *frames.shape[:2])  # (Q, N, V, T)
    weight = valid / valid.sum(dim=1, keepdim=True).clamp(min=1)  # (Q, N)
    of_words = (cosines.amax(dim=3) * weight[..., None]).sum(dim=1)  # (Q, V)
    of_frames = cosines.masked_fill(~valid[:, :, None, None], -2.0).amax(dim=1).mean(dim=-1)  # (Q, V)
    return (of_words + of_frames) / 2 * valid.any(dim=1)[:, None]


def mean_z_score(scores: Tensor) -> Tensor:
    """Combine n kinds of similarity by the mean of their z-scores: (Q, V, n) -> (Q, V).

    A z-score is relative to the scores of a caption with all videos, so it depends on every video in the gallery.
    """
    centred = scores - scores.mean(dim=1, keepdim=True)
    return (centred / scores.std(dim=1, keepdim=True, correction=0).clamp(min=1e-6)).mean(dim=-1)


def pool_towards(projected: Tensor, valid: Tensor, p: Tensor) -> Tensor:
    """Compute eqs. 11-12: the mean of tokens, weighted by the softmax of their inner products with `p`.

    Args:
        projected: (B, N, d) tokens.
        valid: (B, N) bool, tokens that are averaged.
        p: (B, d).

    Returns:
        (B, d).
    """
    affinity = (projected @ p[..., None]).squeeze(-1)  # (B, N)
    weight = affinity.masked_fill(~valid, torch.finfo(affinity.dtype).min).softmax(dim=-1)
    return (weight[:, None] @ projected).squeeze(1)


def mean_of(tokens: Tensor, valid: Tensor | None = None, is_unit: bool = True) -> Tensor:
    """Average tokens: (B, N, d) -> (B, d); zero if a row has no valid token.

    Args:
        tokens: (B, N, d).
        valid: (B, N) bool, tokens that are averaged; if None, all.
        is_unit: whether the mean is normalized to length 1.
    """
    if valid is None:
        valid = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    else:
        tokens = tokens * valid[..., None]
    whole = tokens.sum(dim=1)
    return F.normalize(whole, dim=-1) if is_unit else whole / valid.sum(dim=1, keepdim=True).clamp(min=1)


def hidden_with_pads(tower: TextTower, tokens: Tensor, seams: Seams | None = None) -> tuple[Tensor, Tensor]:
    """Compute `TextTower.hidden` for captions padded with end-of-text tokens: (B, L, d) and end positions (B,).

    StructAlign's released code pads in this way, and counts the padding as words. A padding token has its own position
    embedding. It attends to the caption, but neither to itself nor to other padding. Captions are padded to the length
    L of `tokens`, even if all captions in the batch are shorter.
    """
    text: Any = tower
    eot = tokens.argmax(dim=-1)
    position = torch.arange(tokens.shape[1], device=tokens.device)
    tokens = torch.where(position > eot[:, None], tokens.gather(1, eot[:, None]), tokens)
    x = text.token_embedding(tokens) + text.positional_embedding[: tokens.shape[1]]
    visible = (position <= position[:, None]) & (position <= eot[:, None, None])  # (B, L, L)
    state = TokenState(len(tokens), eot=eot, protected=tokens.shape[1])
    for layer, block in enumerate(text.blocks):
        state.layer = layer
        seam = (None if seams is None else seams[layer]) or BlockSeams()
        x = run_block(partial(_block_with_pads, block, seam, visible), x, state)
    return text.ln_final(x) @ text.proj, eot


def _block_with_pads(block: Any, seam: BlockSeams, visible: Tensor, x: Tensor, state: TokenState) -> Tensor:
    y = block.ln_1(x)
    q, k, v = (block.attn.heads_first(z) for z in block.attn.project(y, seam, state))
    merged = F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None]).transpose(1, 2).flatten(2)
    out = block.attn.out(merged)
    x = x + block.ls_1(out if seam.out is None else seam.out(merged, out, state))
    return x + block.ls_2(block.mlp(block.ln_2(x)))
