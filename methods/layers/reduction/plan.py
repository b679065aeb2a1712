"""Interface of token reducers: the steps of all blocks, known before a run, and the hook functions that apply them.

Shapes: B videos, T frames, G attention groups, N tokens of a group, K selected tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams


@dataclass(frozen=True)
class Step:
    """Numbers of tokens that one block removes; the default values remove none."""

    group: int = 1  # successive clips joined into one before attention
    cross: int = 0  # tokens merged before attention, compared by their features
    intra: int = 0  # tokens removed between attention and MLP
    late: int = 0  # tokens removed after the MLP
    frames: int = 0  # whole frames merged before attention, at most (T - 1) // 2


def most_frames(frames: int) -> int:
    """Return the largest number of frames that one merge of whole frames can remove, (T - 1) // 2."""
    return max(0, (frames - 1) // 2)


class TokenReducer(nn.Module):
    """Base class of plug-ins of the vision tower that reduce its tokens."""

    steps: list[Step]  # one for each block, as applied in evaluation

    def seams(self) -> list[BlockSeams]:
        """Build the `BlockSeams` of each block; each call builds new ones, so that a deep copy uses its own weights."""
        return [self._block(block, step) for block, step in enumerate(self.steps)]

    def _block(self, block: int, step: Step) -> BlockSeams:
        """Return the `BlockSeams` that apply `step` in one block."""
        raise NotImplementedError(f"{type(self).__name__} must implement _block(block, step).")

    def after_step(self) -> None:
        """Update the reducer; called after every optimizer step."""


def tokens_at(x: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (G, K, D) of x (G, N, D) at positions `places` (G, K)."""
    return x.gather(1, places[:, :, None].expand(-1, -1, x.shape[-1]))


def spread(blocks: int, parts: int, start: int) -> tuple[int, ...]:
    """Divide `blocks` into equal `parts`; return the first block of each from part `start` on: 12, 4, 1 -> 3, 6, 9."""
    return tuple(dict.fromkeys(blocks * part // parts for part in range(start, parts)))
