"""Comparison of an untrained method's scores with those of zero-shot CLIP, on the same noise.

A method starts at another R@1 than zero-shot CLIP if its score uses more than the two unit features of CLIP: word or
frame features, normalization, merged tokens, or new weights that are not initialized to zero.

Shapes: Q captions, V videos.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.tiny_models import make_batch, make_small_clip, make_task
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.settings.experiment import Experiment

PAIRS = 16


@torch.no_grad()
def own_scores(experiment: Experiment) -> Tensor | None:
    """Return the scores (Q, V) of noise by the untrained method, standardized.

    None if they equal those of zero-shot CLIP, or if the method has no trained parameters.
    Empty if the small backbone does not fit the settings; the scores then count as different.
    """
    batch = make_batch(PAIRS, experiment.data.num_frames)
    try:
        method = Subject(experiment).make().eval()
        method.begin_task(make_task(0))
        method.eval()
        if not method.param_groups():
            return None
        found = _scores(method, batch.frames, batch.tokens)
    except (ConfigError, ValueError, RuntimeError, AttributeError, IndexError):  # UMT, or settings for a larger tower
        return torch.empty(0)
    return None if is_among(found, _zero_shot(batch.frames, batch.tokens)) else found


def is_among(scores: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether standardized scores equal one of `others`."""
    return any(scores.shape == other.shape and torch.allclose(scores, other, atol=1e-3) for other in others)


def _scores(method: Method, frames: Tensor, tokens: Tensor) -> Tensor:
    scores = method.score(method.encode_text(tokens, 0), method.encode_video(frames))
    return _standard(method.normalize_scores(scores).float())


def _zero_shot(frames: Tensor, tokens: Tensor) -> list[Tensor]:
    """Return zero-shot CLIP's scores with both ways of averaging frames, which differ between published tables."""
    clip = make_small_clip()
    queries, tower = l2_normalize(clip.text(tokens)), clip.vision(frames)
    return [_standard(queries @ mean_pool(tower, norm).mT) for norm in ("none", "l2")]


def _standard(scores: Tensor) -> Tensor:
    """Return scores (Q, V) with mean 0 and variance 1 in each row, which do not change the ranks."""
    return (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, keepdim=True).clamp_min(1e-9)
