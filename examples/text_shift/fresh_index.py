"""A protocol of another package: CTVR whose stored videos are all encoded again after every task.

Its R@1 is that of a run of the protocol `ctvr` with `evaluation.reencode=100`.
"""

from __future__ import annotations

from ctvr.orchestrator.learning.evaluation.protocols import CTVR


class FreshIndex(CTVR):
    """Protocol in which all captions so far search all videos so far, both encoded by the current model."""

    name = "fresh_index"
    reencodes_gallery = True
