"""The small backbone and its pairs as fixtures; they are those of `ctvr methods check`."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Method
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.layers.reduction.config import TRAINED_REDUCERS, ReducerConfig
from ctvr.methods.tiny_models import (
    CONTEXT,
    VOCABULARY,
    RegeneratedPairs,
    make_batch,
    make_small_clip,
    make_task,
    tokenize,
)

THREE = ("clip4clip", "xpool", "structalign")
AnyMethod = TypeVar("AnyMethod", bound=Method)

__all__ = [
    "CONTEXT",
    "THREE",
    "VOCABULARY",
    "RegeneratedPairs",
    "awake",
    "make_batch",
    "make_small_clip",
    "make_task",
    "maker",
    "reducer_config",
    "tokenize",
]


def reducer_config(name: str = "none", **settings: Any) -> ReducerConfig:
    """Build the settings of a reducer; `num_frames` is for those that need it."""
    cls = TRAINED_REDUCERS[name]
    known = {key: value for key, value in settings.items() if key != "num_frames" or hasattr(cls, key)}
    return cls(name=name, **known)  # type: ignore[arg-type]


def maker(cls: type[AnyMethod], inner: Any, **defaults: Any) -> Callable[..., AnyMethod]:
    """Return a function of settings that builds a method around a copy of `inner`, a backbone or a retriever."""

    def make(**settings: Any) -> AnyMethod:
        torch.manual_seed(0)
        return cls(cls.Config(**{**defaults, **settings}), copy.deepcopy(inner))  # type: ignore[call-arg]

    return make


def awake(method: AnyMethod) -> AnyMethod:
    """Return a method in evaluation mode whose matrices are larger than the small numbers with which BERT begins."""
    for parameter in method.eval().parameters():
        if parameter.ndim > 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return method


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


@pytest.fixture
def base(small_clip: Clip) -> Method:
    """A retriever for strategies to wrap."""
    return Clip4Clip(Clip4ClipConfig(), small_clip)


@pytest.fixture
def bases(small_clip: Clip) -> dict[str, Method]:
    """Return retrievers whose videos are one vector, frames, and frames and words."""
    return {name: find_method(name)(find_method(name).Config(), copy.deepcopy(small_clip)) for name in THREE}
