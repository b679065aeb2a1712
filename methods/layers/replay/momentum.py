"""Momentum encoders, which are moving averages of the trained encoders, and the contrastive loss over their keys.

Gao et al., "BMU-MoCo: Bidirectional Momentum Update for Continual Video-Language Modeling", NeurIPS 2022, section 3.3,
based on MoCo (He et al., CVPR 2020). Equation numbers refer to BMU-MoCo. theta are the parameters of the trained
encoders, theta_m those of the momentum encoders. Both encoders contain all of CLIP with its projections. Moving
averages are computed in float32, never under autocast.

Shapes: B pairs, T frames, L text length, R keys in a queue, P positives of a query, d joint embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, run_blocks
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.replay.mixup import embed_mixed
from ctvr.methods.layers.replay.queues import KeyQueue, Pair

TextPool = Literal["eot", "avg"]


class Encoders(nn.Module):
    """A video encoder and a text encoder that return unit vectors: eq. 7 for theta, eq. 9 for theta_m.

    Args:
        clip: the towers; each frame is projected, then frames are averaged.
        text_pool: `eot` reads the end-of-text token of a caption, as CLIP does; `avg` averages all projected tokens, as
            the paper does with BERT.
    """

    def __init__(self, clip: Clip, text_pool: TextPool = "eot") -> None:
        super().__init__()
        self.clip, self.text_pool = clip, text_pool

    def video(self, frames: Tensor) -> Tensor:
        """Encode videos: (B, T, 3, H, W) -> (B, d)."""
        return mean_pool(self.clip.vision(frames))

    def text(self, tokens: Tensor) -> Tensor:
        """Encode captions: (B, L) -> (B, d)."""
        if self.text_pool == "eot":
            return F.normalize(self.clip.text(tokens).float(), dim=-1)
        hidden, eot = self.clip.text.hidden(tokens)
        return self._pool(hidden, self._weights(eot, hidden.shape[1]))

    def mixed_text(self, first: Tensor, second: Tensor, lam: float) -> Tensor:
        """Encode mixtures of captions `first` and `second` (B, L): (B, d); `lam` is the weight of `first`.

        Token embeddings and pooling weights are mixed. With `lam` 1 or 0 the features equal those of `first` or
        `second`.
        """
        tower = self.clip.text
        x, state = embed_mixed(tower, first, second, lam)
        assert state.eot is not None
        assert state.other_eot is not None
        x = run_blocks(tower.blocks, x, None, state, causal=True)
        length = x.shape[1]
        weights = lam * self._weights(state.eot, length) + (1 - lam) * self._weights(state.other_eot, length)
        hidden = tower.project(x)
        return self._pool(hidden, weights)

    def pair(self, frames: Tensor, tokens: Tensor) -> Pair:
        """Encode this worker's pairs, and return the features of the pairs of all workers."""
        return Pair(gather(self.video(frames)), gather(self.text(tokens)))

    def _weights(self, eot: Tensor, length: int) -> Tensor:
        """Return the pooling weight (B, L) of each token of a caption; rows sum to 1."""
        position = torch.arange(length, device=eot.device)
        if self.text_pool == "eot":
            return (position == eot[:, None]).float()
        real = (position <= eot[:, None]).float()
        return real / real.sum(dim=1, keepdim=True)

    @staticmethod
    def _pool(hidden: Tensor, weights: Tensor) -> Tensor:
        return F.normalize((hidden.float() * weights[..., None]).sum(dim=1), dim=-1)


@torch.no_grad()
def lerp_(target: nn.Module, source: nn.Module, weight: float) -> None:
    """Set target <- (1 - weight) target + weight source, in place; buffers are copied if `weight` is 1.

    Values that are equal in both modules do not change, and with `weight` 0 no value does. With weights below 1,
    target keeps its running statistics, as in MoCo's code (facebookresearch/moco@132aea9).
    """
    _lerp_all(target, source, weight)
    if weight == 1:
        for kept, copied in zip(target.buffers(), source.buffers()):
            kept.copy_(copied)


def ema_update(momentum: nn.Module, encoders: nn.Module, m: float) -> None:
    """Update the momentum encoders: theta_m <- m theta_m + (1 - m) theta, eq. 8 and 14."""
    lerp_(momentum, encoders, 1 - m)


@torch.no_grad()
def reverse_ema_update(encoders: nn.Module, momentum: nn.Module, m_hat: float) -> None:
    """Update the trained encoders in reverse: theta <- m_hat theta + (1 - m_hat) theta_m, eq. 12 and 13."""
    _lerp_all(encoders, momentum, 1 - m_hat)


def _lerp_all(target: nn.Module, source: nn.Module, weight: float) -> None:
    """Interpolate all parameters in one call, because on a GPU one kernel then updates many small tensors."""
    moved: list[Tensor] = list(target.parameters())
    torch._foreach_lerp_(moved, list(source.parameters()), weight)
    torch.autograd.graph.increment_version(moved)  # in a dispatch mode `_foreach_lerp_` does not increment it


class Momentum(nn.Module):
    """Momentum encoders and the queue of their keys.

    The encoders are never trained and stay in evaluation mode, except for batch normalization layers (CLIP has none).
    In training these use the statistics of the batch, as in MoCo.
    """

    def __init__(self, encoders: Encoders, queue_size: int) -> None:
        super().__init__()
        self.encoders = copy.deepcopy(encoders).requires_grad_(False).eval()
        self.queue = KeyQueue(queue_size, encoders.clip.embed_dim)

    def train(self, mode: bool = True) -> Momentum:
        super().train(False)
        for module in self.encoders.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train(mode)
        return self

    def restart(self, encoders: Encoders) -> None:
        """Set theta_m <- theta: copy the parameters and buffers of the trained encoders."""
        lerp_(self.encoders, encoders, 1.0)

    @torch.no_grad()
    def keys(self, frames: Tensor, tokens: Tensor) -> Pair:
        """Compute the keys of pairs (eq. 9), and gather them from all workers."""
        return self.encoders.pair(frames, tokens)


@dataclass(frozen=True)
class Negatives:
    """Keys used as negatives, and a mask that excludes keys for single queries."""

    keys: Pair  # (R, d) each
    spared: Tensor  # (B, R) bool: the key is not a negative of the query

    @staticmethod
    def join(parts: Sequence[Negatives]) -> Negatives:
        """Concatenate several sets of keys and their masks."""
        keys = Pair(torch.cat([p.keys.video for p in parts]), torch.cat([p.keys.text for p in parts]))
        return Negatives(keys, torch.cat([p.spared for p in parts], dim=1))


def momentum_contrast(queries: Pair, keys: Sequence[Pair], negatives: Negatives, tau: float) -> Tensor:
    """Compute L_V2T + L_T2V: eq. 10-11 with one pair of keys, eq. 16-18 with two.

    L_V2T = mean_i -log( sum_P exp(q_i^V k_i^T / tau) / (sum_P exp(q_i^V k_i^T / tau) + sum_R exp(q_i^V k_r^T / tau)) ),
    with queries q and keys k of videos (V) and texts (T); sum_P is over momentum encoders. Without negatives it is 0.

    Args:
        queries: (B, d) features of the trained encoders.
        keys: (B, d) features of each momentum encoder for the same pairs.
        negatives: R keys.
        tau: temperature.
    """
    with torch.autocast(queries.video.device.type, enabled=False):
        to_text = _one_way(queries.video, [k.text for k in keys], negatives.keys.text, negatives.spared, tau)
        to_video = _one_way(queries.text, [k.video for k in keys], negatives.keys.video, negatives.spared, tau)
    return to_text + to_video


def _one_way(query: Tensor, positives: Sequence[Tensor], negatives: Tensor, spared: Tensor, tau: float) -> Tensor:
    p = torch.stack([(query * k).sum(dim=-1) for k in positives], dim=1) / tau  # (B, P)
    n = (query @ negatives.mT / tau).masked_fill(spared, float("-inf"))  # (B, R)
    return (torch.cat([p, n], dim=1).logsumexp(dim=1) - p.logsumexp(dim=1)).mean()
