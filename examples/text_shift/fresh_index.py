"""Example of a protocol in another package: CTVR, except that all stored videos are encoded again after every task.

Its R@1 equals that of the protocol `ctvr` with `evaluation.reencode=100`.
"""

from __future__ import annotations

from ctvr.orchestrator.learning.evaluation.protocols import CTVR


class FreshIndex(CTVR):
    """Protocol in which all captions so far search all videos so far; the current model encodes both."""

    name = "fresh_index"
    reencodes_gallery = True
