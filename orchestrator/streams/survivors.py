"""Bounds of a published recall on the videos that are left where others can no longer be had."""

from __future__ import annotations


def survivors_note(lost: int, left: int) -> str:
    """Return the bounds on the rest that follow from a recall of P % over all captions, as text; empty without a loss.

    Of P hits in 100 captions, at most as many are lost as captions are. A smaller gallery takes no hit away, and may
    make any miss a hit, so nothing but 100 bounds the recall from above.

    Args:
        lost: captions of the videos that are gone.
        left: captions of the others.
    """
    if not lost:
        return ""
    share = lost / (lost + left)
    return (
        f" ({100 * share:.2f} % of the test captions are lost, so a recall of P % over all of them is between "
        f"(P - {100 * share:.2f}) / {1 - share:.4f} % and 100 % on the rest)"
    )
