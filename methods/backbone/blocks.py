"""The blocks of a CLIP tower, with named hook points (*seams*) for adapters.

A method acts at the seams of every block without changing CLIP's weights. Seams are an argument of each call, so a
student and its teacher can share one unchanged backbone.

One block, where <name> marks a seam; by default a seam does nothing::

    x = <before>(x)
    y = LN1(x);  q, k, v = split <qkv>(W y);  q, k, v = <q>(q), <k>(k), <v>(v)
    a = <beside>(y, <out>(W_o attention(q, k, v)))
    x = <between>(x + a)
    x = <after>(x + <mlp>(MLP(LN2 x))),   MLP(y) = <proj>(W_2 act(<fc>(W_1 y)))

Shapes: B videos or captions, T frames, N tokens of one frame (or caption), G attention groups (B*T frames, or
B captions), D width of the tower, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ctvr.methods.backbone.compiled import run_compiled
from ctvr.methods.backbone.frozen_casts import CastOnceLinear, cast_once
from ctvr.methods.backbone.merged_weights import Fold, merge
from ctvr.methods.backbone.quick_gelu import QuickGELU
from ctvr.methods.backbone.recompute import is_checkpointing, recomputing


@dataclass
class TokenState:
    """State of the tokens of one forward pass, which hook functions read and change. Each pass has its own state."""

    batch: int  # B videos or captions
    frames: int = 1  # T; 1 for text
    classes: int = 1  # leading class tokens of a group, one for each of its frames
    protected: int = 1  # leading tokens of a group that no reducer may move (class tokens, prompts)
    layer: int = 0  # index of the current block
    start: int = 0  # number of blocks that stored tokens (`VisionTower.prefix`) have already passed
    sizes: Tensor | None = None  # (G, N, 1) patches that each token represents; if None, one each
    proportional: bool = True  # whether attention counts a token once for each patch it represents (ToMe, eq. 1)
    frame_of: Tensor | None = None  # (B, T) int64: the remaining frame that represents each frame; None: all remain
    keys: Tensor | None = None  # (G, n, D/H) stored by `between` of a block for its `after`
    policy: Tensor | None = None  # (G, n) 1 for patches that a search of rates keeps, 0 for others; has a gradient
    class_row: Tensor | None = None  # (G, N) stored by `mix` of a block for its `between`
    rotate: Callable[[Tensor], Tensor] | None = None  # applies rotary positions to q or k (G, H, N, D/H)
    eot: Tensor | None = None  # (B,) position of the end-of-text token; None for images
    log: list[tuple[int, int, int]] = field(default_factory=list)
    # per block: attention groups of one video, tokens of a group in attention, tokens of a group in the MLP
    moves: list[Any] = field(default_factory=list)  # destinations of merged tokens (merge.Move), in order
    extra_macs: int = 0  # multiply-adds of the whole batch that seams add to CLIP's own; each seam adds its share

    def copy(self) -> TokenState:
        """Return a copy; later changes to this state leave it unchanged."""
        return replace(self, log=list(self.log), moves=list(self.moves))


@dataclass(frozen=True)
class AttentionTrace:
    """Results of a block's attention that its seam `between` gets if it requests them (`BlockSeams.wants_keys`)."""

    keys: Tensor | None = None  # (G, N, D/H) keys averaged over heads
    class_row: Tensor | None = None  # (G, N) attention of the class token to each token, averaged over heads


Seam = Callable[..., Tensor]
_RECORDED: ContextVar[list[TokenState] | None] = ContextVar("recorded", default=None)


@dataclass(frozen=True)
class BlockSeams:
    """Hook functions of one block. If a function is None, its part of the block is unchanged.

    Attributes:
        before, after: (x, state) -> x.
        qkv: (input, projected, state) -> projected, (G, N, 3D); acts before q, k and v.
        fold: () -> the matrix (3D, D) equivalent to qkv, q, k and v, for frozen weights (merged_weights.py).
        q, k, v, out: (input, projected, state) -> projected, (G, N, D).
        mix: (q, k, v, bias, state) -> mixed, heads first (G, H, N, D/H). It replaces the fused attention and is slower;
            use it only if attention probabilities are needed.
        beside: (y, attention, state) -> attention.
        between: (x, attended, state) -> x.
        fc, proj: like out, for the two layers of the MLP, (G, N, 4D) and (G, N, D); only in CLIP's own towers.
        mlp: (y, output, state) -> output.
        wants_keys, wants_class_row: whether `between` reads this part of `AttentionTrace`.
        needs_alignment: whether token i of neighboring frames must be at the same image position.
        breaks_alignment: whether, after this block, token i of neighboring frames can be at different positions.
        by_token: whether qkv, q, out, fc, proj and mlp compute a token from this token and the token at `eot` only.
        leaves_classes: whether `between` returns the class tokens unchanged and first.
    """

    before: Seam | None = None
    qkv: Seam | None = None
    fold: Fold | None = None
    q: Seam | None = None
    k: Seam | None = None
    v: Seam | None = None
    out: Seam | None = None
    mix: Seam | None = None
    beside: Seam | None = None
    between: Seam | None = None
    fc: Seam | None = None
    proj: Seam | None = None
    mlp: Seam | None = None
    after: Seam | None = None
    wants_keys: bool = False
    wants_class_row: bool = False
    needs_alignment: bool = False
    breaks_alignment: bool = False
    by_token: bool = False
    leaves_classes: bool = False

    @property
    def needs_all(self) -> bool:
        """Return whether a seam after the projections of q, k and v may need every token that the block computes.

        A seam that only merges patches (`leaves_classes`) does not need all tokens, unless `record_tokens` is active.
        """
        between = None if self.leaves_classes and _RECORDED.get() is None else self.between
        behind = (self.mix, self.out, self.beside, between, self.fc, self.proj, self.mlp, self.after)
        return any(seam is not None for seam in behind)


Seams = Sequence[BlockSeams | None]
_NO_SEAMS = BlockSeams()
_PLAIN = TokenState(1)  # state of a pass without seams


class Attention(nn.Module):
    """Multi-head self-attention with open_clip's fused weights and one hook point (seam) for each projection."""

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        if source.in_proj_weight is None or source.in_proj_bias is None:
            raise ValueError("this backbone's attention lacks fused q, k, v weights; use a plain open_clip ViT.")
        self.heads = source.num_heads
        self.in_weight = nn.Parameter(source.in_proj_weight.detach().clone())  # (3D, D)
        self.in_bias = nn.Parameter(source.in_proj_bias.detach().clone())  # (3D,)
        self.out = CastOnceLinear(source.embed_dim, source.embed_dim)
        self.out.load_state_dict(source.out_proj.state_dict())
        if isinstance(norm := getattr(source, "norm", None), nn.Module) and not isinstance(norm, nn.Identity):
            self.norm = norm  # before `out`, as in EVA-02

    def project(
        self, y: Tensor, seams: BlockSeams, state: TokenState, read: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v of tokens y (G, N, D), each (G, N, D); with `read`, q has only the first `read` tokens."""
        weight, seams = merge(self.in_weight, seams)
        weight, bias = cast_once(weight), cast_once(self.in_bias)
        if read is not None and seams.qkv is seams.q is seams.k is seams.v is None:
            width = y.shape[-1]
            q = F.linear(y[:, :read], weight[:width], bias[:width])
            k, v = F.linear(y, weight[width:], bias[width:]).chunk(2, dim=-1)
            return q, k, v
        qkv = F.linear(y, weight, bias)
        qkv = qkv if seams.qkv is None else seams.qkv(y, qkv, state)
        q, k, v = qkv.chunk(3, dim=-1)
        q = q if seams.q is None else seams.q(y, q, state)
        k = k if seams.k is None else seams.k(y, k, state)
        v = v if seams.v is None else seams.v(y, v, state)
        return q[:, :read], k, v

    def heads_first(self, x: Tensor) -> Tensor:
        """Split channels into heads: (G, N, D) -> (G, H, N, D/H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self, y: Tensor, seams: BlockSeams, state: TokenState, causal: bool = False, read: int | None = None
    ) -> tuple[Tensor, AttentionTrace]:
        """Attend within each group: y (G, N, D) -> (G, N, D), and the results that `between` requested.

        With `read`, only the first `read` tokens are queries: (G, read, D). All tokens are keys.
        """
        q, k, v = (self.heads_first(x) for x in self.project(y, seams, state, read))
        if state.rotate is not None:
            q, k = state.rotate(q), state.rotate(k)
        bias = None  # (G, 1, 1, N)
        if state.sizes is not None and state.proportional:
            bias = state.sizes.log()[:, None, None, :, 0].to(q.dtype)
        if seams.mix is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        else:
            mixed = seams.mix(q, k, v, bias, state)
        merged = mixed.transpose(1, 2).flatten(2)
        if hasattr(self, "norm"):
            merged = self.norm(merged)
        out = self.out(merged)
        out = out if seams.out is None else seams.out(merged, out, state)
        keys = k.mean(dim=1) if seams.wants_keys and read is None else None
        row = None
        if seams.wants_class_row and read is None:
            logits = (q[:, :, :1] @ k.mT)[:, :, 0] / math.sqrt(q.shape[-1])  # (G, H, N)
            row = (logits if bias is None else logits + bias[:, :, 0]).softmax(dim=-1).mean(dim=1)
        return out, AttentionTrace(keys, row)


class Block(nn.Module):
    """One pre-norm residual block of an image or text tower, with the seams that this module's docstring lists."""

    is_compiled = False  # whether a pass without seams runs compiled (compiled.py)

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.mlp = source.ln_1, source.ln_2, source.mlp
        self.ls_1, self.ls_2 = source.ls_1, source.ls_2
        if type(getattr(source.mlp, "gelu", None)).__name__ == "QuickGELU":
            source.mlp.gelu = QuickGELU()
        for layer in source.mlp.children():
            if type(layer) is nn.Linear:
                layer.__class__ = CastOnceLinear
        self.attn = Attention(source.attn)

    def forward(
        self, x: Tensor, seams: BlockSeams | None, state: TokenState, causal: bool = False, is_last: bool = False
    ) -> Tensor:
        """Map tokens x (G, N, D) to (G, N', D).

        With `is_last`, only class tokens are computed, unless a seam needs all tokens. `state.log` counts all tokens in
        any case, because papers count the multiply-adds of all tokens.
        """
        seams = seams or _NO_SEAMS
        if self.is_compiled and seams == _NO_SEAMS and state.sizes is None and state.rotate is None:
            state.log.append((len(x) // state.batch, x.shape[1], x.shape[1]))
            return run_compiled(Block._plain, self, x, causal, state.classes if is_last else None)
        x = x if seams.before is None else seams.before(x, state)
        attended_groups, attended_tokens = len(x) // state.batch, x.shape[1]
        read = state.classes if is_last and not seams.needs_all else None
        y = self.ln_1(x)
        a, attended = self.attn(y, seams, state, causal, read)
        a = a if seams.beside is None else seams.beside(y, a, state)
        x = x[:, :read] + self.ls_1(a)
        if seams.between is not None and read is None:
            x = seams.between(x, attended, state)
        state.log.append((attended_groups, attended_tokens, x.shape[1] if read is None else attended_tokens))
        x = x + self.ls_2(self.feed_forward(self.ln_2(x), seams, state))
        return x if seams.after is None else seams.after(x, state)

    def _plain(self, x: Tensor, causal: bool, read: int | None) -> Tensor:
        """Return the output of `forward` without seams; if `read` is given, only its first `read` tokens."""
        attended, _ = self.attn(self.ln_1(x), _NO_SEAMS, _PLAIN, causal, read)
        x = x[:, :read] + self.ls_1(attended)
        return x + self.ls_2(self.feed_forward(self.ln_2(x), _NO_SEAMS, _PLAIN))

    def feed_forward(self, y: Tensor, seams: BlockSeams, state: TokenState) -> Tensor:
        """Pass tokens y (G, N, D) through the MLP and its seams."""
        if seams.fc is seams.proj is None:
            m = self.mlp(y)
        else:
            hidden = self.mlp.c_fc(y)
            hidden = self.mlp.gelu(hidden if seams.fc is None else seams.fc(y, hidden, state))
            m = self.mlp.c_proj(hidden)
            m = m if seams.proj is None else seams.proj(hidden, m, state)
        return m if seams.mlp is None else seams.mlp(y, m, state)


@contextmanager
def record_tokens() -> Iterator[list[TokenState]]:
    """Context manager: yield a list that gets the state of every pass through a vision tower (see `TokenState.log`)."""
    states: list[TokenState] = []
    token = _RECORDED.set(states)
    try:
        yield states
    finally:
        _RECORDED.reset(token)


def record(state: TokenState) -> TokenState:
    """Append the state of a pass through a vision tower to the list of an active `record_tokens`; return the state.

    Every tower calls this once per pass, including towers that a method builds from CLIP's blocks.
    """
    listening = _RECORDED.get()
    if listening is not None:
        listening.append(state)
    return state


def run_block(block: Callable[[Tensor, TokenState], Tensor], x: Tensor, state: TokenState) -> Tensor:
    """Pass tokens x (G, N, D) through one block; inside `checkpointing` its activations are not stored.

    Every tower calls this for each block, including towers that a method builds from CLIP's blocks.
    """
    if not (is_checkpointing() and torch.is_grad_enabled()):
        return block(x, state)
    before = state.copy()  # seams change the state, and each pass of the block must start from the same one
    first = [state]

    def run(x: Tensor) -> Tensor:
        if first:
            return block(x, first.pop())
        with recomputing():
            return block(x, before.copy())

    passed: Tensor = checkpoint(run, x, use_reentrant=False, preserve_rng_state=True)
    return passed


def run_blocks(
    blocks: nn.ModuleList, x: Tensor, seams: Seams | None, state: TokenState, causal: bool, classes_only: bool = False
) -> Tensor:
    """Pass tokens x (G, N, D) through a tower.

    Args:
        blocks: blocks of the tower.
        x: tokens.
        seams: one entry per block, or None.
        state: state of these tokens.
        causal: whether a token cannot attend to later tokens.
        classes_only: whether only class tokens are needed; the last block then does not compute the others.

    Raises:
        ValueError: if `seams` does not have one entry per block, or a seam acts in a block before `state.start`.
    """
    if seams is not None and len(seams) != len(blocks):
        raise ValueError(f"got seams (hook points) for {len(seams)} blocks, but the tower has {len(blocks)}.")
    for layer, block in enumerate(blocks):
        if layer < state.start:
            if seams is not None and seams[layer] not in (None, _NO_SEAMS):
                raise ValueError(f"a hook acts in block {layer}, but stored tokens enter at block {state.start}.")
            continue
        state.layer = layer
        seam = None if seams is None else seams[layer]
        is_last = classes_only and layer == len(blocks) - 1
        x = run_block(partial(_pass, block, seam, causal, is_last), x, state)
    return x


def _pass(
    block: nn.Module, seams: BlockSeams | None, causal: bool, is_last: bool, x: Tensor, state: TokenState
) -> Tensor:
    passed: Tensor = block(x, seams, state, causal, is_last) if is_last else block(x, seams, state, causal)
    return passed
