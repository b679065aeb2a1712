"""Base-MoCo: cross-modal momentum contrast, fine-tuned on one task after the other.

Section 3.3, "Cross-Modal MoCo", of BMU-MoCo (Gao et al., NeurIPS 2022). It is the paper's lower bound and the base of
all its competitors. A step computes queries q and keys k, then the loss (eq. 10-11), updates theta by the optimizer and
theta_m by eq. 8, and appends k to the queue. All negatives are from the queue. It is empty at first, so the first loss
is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from ctvr.methods.families.momentum import PAPER, SHAPES, MomentumConfig, MomentumRetriever


@dataclass(frozen=True, kw_only=True)
class BaseMoCoConfig(MomentumConfig):
    """Settings of Base-MoCo, with ranges in search_spaces/."""


class BaseMoCo(MomentumRetriever):
    """CLIP, contrasted with a queue of keys by momentum encoders, without protection against forgetting."""

    Config = BaseMoCoConfig
    PRESETS = {"paper": PAPER, "paper-text": {**PAPER, "method.text_pool": "avg"}, "shapes": SHAPES}
