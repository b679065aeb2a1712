"""Mixup of text-video pairs: lambda times one pair plus 1 - lambda times another.

It extends LUMP (Madaan et al., arXiv:2110.06976, section 4) to two modalities. Pixels are mixed directly. Token ids
cannot be mixed, so captions are mixed after token and position embedding. The output is read at the end-of-text
positions of both captions, and the two features are mixed by lambda. Lambda 1 or 0 gives the feature of one caption.

Shapes: B pairs, T frames, L text length, D width of the text tower, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import TextTower, TokenState
from ctvr.methods.layers.gather import world_size
from ctvr.methods.layers.patching import patched
from ctvr.methods.settings import SettingError, require, setting


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Settings of mixup; the default alpha is from LUMP's code."""

    alpha: float = setting(
        0.4,
        doc="parameter alpha of the distribution Beta(alpha, alpha) of the mixing factor lambda",
        unpublished=True,
        later=True,
        part="loss",
    )
    mix_level: Literal["input", "feature"] = setting(
        "input",
        doc="level at which pairs are mixed. input: pixels and token embeddings; feature: encoded pairs",
        unpublished=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, "> 0", "alpha", hint="LUMP uses 0.4.")


def sample_lambda(alpha: float) -> float:
    """Draw lambda ~ Beta(alpha, alpha); all workers get the same value."""
    shape = torch.tensor(alpha, device="cpu")  # on the CPU, so that reading the sample does not wait for a GPU
    lam = torch.distributions.Beta(shape, shape).sample()
    if world_size() > 1:
        dist.broadcast(lam, src=0)
    return float(lam)


@dataclass
class MixedState(TokenState):
    """Token state of mixed pairs of captions; `eot` has the end-of-text position of the first caption of each pair."""

    other_eot: Tensor | None = None  # (B,) end-of-text positions of the second captions
    lam: float = 1.0  # lambda, the weight of the first captions


def last_end(state: TokenState) -> Tensor:
    """Return the end-of-text position (B,) of each caption; for two mixed captions, the later of their positions."""
    assert state.eot is not None
    other = state.other_eot if isinstance(state, MixedState) else None
    return state.eot if other is None else torch.maximum(state.eot, other)


def embed_mixed(tower: TextTower, first: Tensor, second: Tensor, lam: float) -> tuple[Tensor, MixedState]:
    """Mix the embeddings of captions `first` (B, L) and `second` (B, L) by `lam` and 1 - `lam`; see `TextTower.embed`.

    Return embeddings (B, L', D), where L' is the length of the longest caption, and their state. Embeddings after the
    end of a caption are zero, so a caption's feature does not depend on the length of other captions in the batch.

    Raises:
        ValueError: if the tower encodes a caption as several vectors.
    """
    (a, at), (b, bt) = (type(tower).embed(tower, tokens) for tokens in (first, second))
    if len(a) != len(first):
        raise SettingError(
            "<mix_level>=input mixes captions encoded as one vector, and this tower encodes them as several",
            "Use <mix_level>=feature or another base.",
        )
    length = max(a.shape[1], b.shape[1])
    a, b = (F.pad(_zero_after_end(x, state), (0, 0, 0, length - x.shape[1])) for x, state in ((a, at), (b, bt)))
    state = MixedState(len(a), eot=at.eot, protected=length, other_eot=bt.eot, lam=lam)
    return lam * a + (1 - lam) * b, state


def _zero_after_end(x: Tensor, state: TokenState) -> Tensor:
    """Return the embeddings (B, L, D) with zeros after each caption's end-of-text token."""
    assert state.eot is not None
    return x * (torch.arange(x.shape[1], device=x.device) <= state.eot[:, None])[..., None]


@contextmanager
def mixed_captions(method: nn.Module, first: Tensor, second: Tensor, lam: float) -> Iterator[None]:
    """Context manager: if text towers of `method` get `first` (B, L), they encode its mixture with `second` (B, L).

    If the input is several concatenated copies of `first`, each copy is mixed with a copy of `second`.

    Raises:
        ValueError: if a tower receives other captions than `first`; on exit, if no tower received captions.
    """
    towers = [module for module in method.modules() if isinstance(module, TextTower)]
    reads: list[int] = []
    with ExitStack() as stack:
        for tower in towers:
            embed, read = partial(_embed, tower, first, second, lam, reads), partial(_read, tower)
            stack.enter_context(patched(tower, embed=embed, read=read))
        yield
    if not reads:
        raise SettingError(
            f"<mix_level>=input mixes captions in the text tower, which {type(method).__name__} bypasses here",
            "Use <mix_level>=feature or another base.",
        )


def _embed(
    tower: TextTower, first: Tensor, second: Tensor, lam: float, reads: list[int], tokens: Tensor
) -> tuple[Tensor, TokenState]:
    copies = len(tokens) // len(first)
    if tokens is not first and not torch.equal(tokens, first.repeat(copies, 1)):
        raise SettingError(
            "<mix_level>=input mixes unchanged captions, but this retriever changes captions before it encodes them",
            "Use <mix_level>=feature or another base.",
        )
    reads.append(copies)
    return embed_mixed(tower, tokens, second.repeat(copies, 1), lam)


def _read(tower: TextTower, x: Tensor, state: TokenState) -> Tensor:
    assert isinstance(state, MixedState)
    first, second = (type(tower).read(tower, x, replace(state, eot=eot)) for eot in (state.eot, state.other_eot))
    return state.lam * first + (1 - state.lam) * second


@contextmanager
def mixed_features(method: nn.Module, first: Tensor, second: Tensor, lam: float, name: str) -> Iterator[None]:
    """Context manager: the method `name` of `method` returns for `first` the mixed features of `first` and `second`.

    Args:
        method: the retriever.
        first: input whose features are replaced; other inputs are encoded unchanged.
        second: input that is mixed with `first`, of the same shape.
        lam: weight of the features of `first`.
        name: `encode_video` or `encode_text`.

    Raises:
        ValueError: on exit, if the function was never called with `first`.
    """
    encode: Callable[..., Tensor] = getattr(method, name)
    reads: list[int] = []

    def mixed(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if x is not first:
            return encode(x, *args, **kwargs)
        reads.append(1)
        return mix_features(encode(first, *args, **kwargs), encode(second, *args, **kwargs), lam)

    with patched(method, **{name: mixed}):
        yield
    if not reads:
        raise SettingError(
            f"<mix_level>=feature mixes the output of {name}, which the loss of {type(method).__name__} does not use",
            "Use <mix_level>=input or another base.",
        )


def mix_features(first: Tensor, second: Tensor, lam: float) -> Tensor:
    """Mix features (B, ..., d) by `lam` and 1 - `lam`; scale the results to the norms of both, mixed in the same way.

    If N differs between word features (B, N, d), the shorter ones are first padded with zero rows.
    """
    if first.ndim == 3:
        longest = max(first.shape[1], second.shape[1])
        first, second = (F.pad(x, (0, 0, 0, longest - x.shape[1])) for x in (first, second))
    length = lam * first.norm(dim=-1, keepdim=True) + (1 - lam) * second.norm(dim=-1, keepdim=True)
    return length * F.normalize(lam * first + (1 - lam) * second, dim=-1)
