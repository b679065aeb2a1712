"""The small backbone and its pairs as fixtures; they are those of `ctvr conform`."""

from __future__ import annotations

import copy

import pytest

from methods.backbone.clip import Clip
from methods.base import Batch
from orchestrator.conform.small import (
    CONTEXT,
    VOCABULARY,
    MadeAgain,
    make_batch,
    make_small_clip,
    make_task,
    tokenize,
)

__all__ = ["CONTEXT", "VOCABULARY", "MadeAgain", "make_batch", "make_small_clip", "make_task", "tokenize"]


@pytest.fixture(scope="session")
def _small_clip() -> Clip:
    return make_small_clip()


@pytest.fixture
def small_clip(_small_clip: Clip) -> Clip:
    """A fresh copy for each test."""
    return copy.deepcopy(_small_clip)


@pytest.fixture
def batch() -> Batch:
    return make_batch()
