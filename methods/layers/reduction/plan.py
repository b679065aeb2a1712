"""Interface of token reducers: steps that are known beforehand, and seams.

Shapes: B videos, T frames, N tokens of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams


@dataclass(frozen=True)
class Step:
    """Token reduction of one block. The default is none."""

    group: int = 1  # neighbouring clips joined into one before attention
    cross: int = 0  # tokens merged before attention, compared by their features
    intra: int = 0  # tokens removed between attention and MLP
    late: int = 0  # tokens removed after the MLP
    frames: int = 0  # whole frames merged before attention, at most (T - 1) // 2


def token_log(steps: Sequence[Step], tokens: int, frames: int) -> list[tuple[int, int, int]]:
    """List per block: attention groups of one video, tokens of a group in attention, and in the MLP."""
    log, groups = [], frames
    for step in steps:
        groups = groups // step.group - min(step.frames, most_frames(groups))
        tokens = tokens * step.group - step.cross
        log.append((groups, tokens, tokens - step.intra))
        tokens -= step.intra + step.late
    return log


def most_frames(frames: int) -> int:
    """Return the largest number of frames that one merge of whole frames can remove: (T - 1) // 2."""
    return max(0, (frames - 1) // 2)


class TokenReducer(nn.Module):
    """A plug-in of the vision tower that reduces its tokens. `steps` are those of evaluation."""

    steps: list[Step]  # one for each block

    def seams(self) -> list[BlockSeams]:
        """Build one entry for each block; each call builds new ones, so that a copied reducer uses its own weights."""
        return [self._block(block, step) for block, step in enumerate(self.steps)]

    def _block(self, block: int, step: Step) -> BlockSeams:
        """Build the seams of one block."""
        raise NotImplementedError(f"{type(self).__name__} must declare where it acts.")

    def after_step(self) -> None:
        """Update the reducer after every step of the optimizer."""


def tokens_at(x: Tensor, places: Tensor) -> Tensor:
    """Return tokens of x (G, N, D) at positions (G, K): (G, K, D)."""
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[-1]))


def spread(blocks: int, parts: int, start: int) -> tuple[int, ...]:
    """Return the first blocks of `parts` equal parts of a tower, from part `start` on: 12, 4, 1 -> 3, 6, 9."""
    return tuple(dict.fromkeys(blocks * part // parts for part in range(start, parts)))
