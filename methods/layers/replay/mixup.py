"""Mixed pairs: a share (lambda) of one pair and the rest of another.

Mixup as in LUMP (Madaan et al., arXiv:2110.06976, section 4), for two modalities. Pixels are mixed directly.
Token ids cannot be: captions are mixed after token and position embedding. The output is read at both captions' end
of text and mixed by the same share. So shares 1 and 0 are the captions themselves.

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
    """Settings of the mixture. The default of alpha is that of LUMP's code."""

    alpha: float = setting(0.4, doc="parameter of the Beta distribution", unpublished=True, later=True, part="loss")
    mix_level: Literal["input", "feature"] = setting(
        "input",
        doc="mixed data; feature: both pairs are encoded, then mixed",
        unpublished=True,
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, "> 0", "alpha", hint="LUMP uses 0.4.")


def sample_lambda(alpha: float) -> float:
    """Draw lambda ~ Beta(alpha, alpha), the same on every worker."""
    shape = torch.tensor(alpha, device="cpu")  # on the CPU, so that reading the sample does not wait for a GPU
    lam = torch.distributions.Beta(shape, shape).sample()
    if world_size() > 1:
        dist.broadcast(lam, src=0)
    return float(lam)


@dataclass
class MixedState(TokenState):
    """State of mixed captions; `eot` is the first one's, so seams and word masks follow it."""

    other_eot: Tensor | None = None  # (B,) of the second
    lam: float = 1.0  # of the first


def last_end(state: TokenState) -> Tensor:
    """Return the ends of captions (B,); of mixed ones the later end."""
    assert state.eot is not None
    other = state.other_eot if isinstance(state, MixedState) else None
    return state.eot if other is None else torch.maximum(state.eot, other)


def embed_mixed(tower: TextTower, first: Tensor, second: Tensor, lam: float) -> tuple[Tensor, MixedState]:
    """Apply `TextTower.embed` to `lam` of the captions `first` (B, L) and the rest of `second` (B, L).

    Returns (B, L', D), L' the longest caption of both. Embeddings after a caption's end are zero, so other captions of
    the batch have no influence.
    """
    (a, at), (b, bt) = (type(tower).embed(tower, tokens) for tokens in (first, second))
    if len(a) != len(first):
        raise SettingError(
            "<mix_level>=input mixes captions of one vector, and these have several",
            "Use <mix_level>=feature or another base.",
        )
    length = max(a.shape[1], b.shape[1])
    a, b = (F.pad(_own(x, state), (0, 0, 0, length - x.shape[1])) for x, state in ((a, at), (b, bt)))
    state = MixedState(len(a), eot=at.eot, protected=length, other_eot=bt.eot, lam=lam)
    return lam * a + (1 - lam) * b, state


def _own(x: Tensor, state: TokenState) -> Tensor:
    """Zero the embeddings (B, L, D) after each caption's end of text."""
    assert state.eot is not None
    return x * (torch.arange(x.shape[1], device=x.device) <= state.eot[:, None])[..., None]


@contextmanager
def mixed_captions(method: nn.Module, first: Tensor, second: Tensor, lam: float) -> Iterator[None]:
    """Inside, every text tower of `method` that reads the captions `first` (B, L) reads the mixture.

    If its input is several stacked copies of `first`, each copy is mixed with one of `second`.

    Raises:
        ValueError: inside, for captions that are not `first`; at the end, if no tower was given any.
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
            "<mix_level>=input mixes unchanged captions, but this retriever rewrites them before it reads them",
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
    """Inside, `method`'s function `name`, given `first`, returns `lam` of its features and the rest of `second`'s.

    Raises:
        ValueError: at the end, if it was never given `first`.
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
            f"<mix_level>=feature mixes what {name} returns, which the loss of {type(method).__name__} does not use",
            "Use <mix_level>=input or another base.",
        )


def mix_features(first: Tensor, second: Tensor, lam: float) -> Tensor:
    """Mix features (B, ..., d); each result has the mean of both lengths, so unit vectors give unit vectors.

    Word features (B, N, d) of different N get zero rows up to the longer.
    """
    if first.ndim == 3:
        longest = max(first.shape[1], second.shape[1])
        first, second = (F.pad(x, (0, 0, 0, longest - x.shape[1])) for x in (first, second))
    length = lam * first.norm(dim=-1, keepdim=True) + (1 - lam) * second.norm(dim=-1, keepdim=True)
    return length * F.normalize(lam * first + (1 - lam) * second, dim=-1)
