"""Bounds of a published recall on those videos of a benchmark that are still available."""

from __future__ import annotations


def survivors_note(lost: int, left: int) -> str:
    """Format the bounds on the recall on available videos if the recall on all videos is P %; "" if no video is lost.

    The lower bound assumes that all lost captions were hits. A smaller gallery cannot turn a hit into a miss, but may
    turn any miss into a hit, so the upper bound is 100 %.

    Args:
        lost: number of captions of the videos that are no longer available.
        left: number of captions of the other videos.
    """
    if not lost:
        return ""
    share = lost / (lost + left)
    return (
        f" ({100 * share:.2f} % of the test captions are lost, so a recall of P % over all of them is between "
        f"(P - {100 * share:.2f}) / {1 - share:.4f} % and 100 % on the rest)"
    )
