"""A method that is looked at: made anew as often as asked for, and a task as the loop runs it, on noise.

Shapes: B pairs, Q captions, V videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctvr.methods import find_method
from ctvr.methods.base import Batch, Method, PairSource
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.distributed import all_parameters_used, require_gradients
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.optimizer import OptimConfig, freeze_except, make_optimizer, set_learning_rates
from ctvr.orchestrator.learning.resolve import get_method, resolve
from ctvr.orchestrator.method_checks.tiny_models import (
    EMBED_DIM,
    RegeneratedPairs,
    make_batch,
    make_small_clip,
    make_task,
)

TASKS, FRAMES, PAIRS = 3, 4, 8
OPTIM = OptimConfig(lr_scale=20.0)


@dataclass(frozen=True)
class Subject:
    """A method with its settings."""

    experiment: Experiment
    embed_dim: int = EMBED_DIM  # d of the small backbone

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any] | None = None, presets: Sequence[str] = ()) -> Subject:
        """A method by its name (or `module:Class`), with `method.*` and `base.*` settings.

        Raises:
            ConfigError: as for a run, and for a method over images.
        """
        learned = {"images": "labelled images", "questions": "questions"}
        if what := learned.get(get_method(name).domain):
            raise ConfigError(
                f"check-method: {name} learns from {what}, and the checks are of captions and videos. Name another."
            )
        words = {"data.num_frames": FRAMES, **(settings or {}), "method": name, "stream": "conform"}
        return cls(resolve(words, presets=presets))

    def make(self) -> Method:
        """A fresh method on the small backbone, its new weights seeded.

        Raises:
            ValueError: for settings that the method refuses on this backbone.
        """
        torch.manual_seed(5)
        made = self.experiment
        cls = find_method(made.run.method)
        backbone: Any = make_small_clip(embed_dim=self.embed_dim)
        if cls.wraps:
            backbone = find_method(made.method.base)(made.base, backbone)
        method: Method = cls(made.method, backbone)
        return method


def batches_of(index: int, steps: int, salt: int = 0) -> list[Batch]:
    """Training pairs of a task, one batch a step; another `salt` makes other pairs."""
    categories = make_task(index, TASKS).categories
    return [make_batch(PAIRS, FRAMES, seed=10 * index + step + salt, categories=categories) for step in range(steps)]


@torch.enable_grad()
def learn(
    method: Method,
    index: int,
    steps: int = 2,
    source: PairSource | None = None,
    watch: Callable[[Batch], None] | None = None,
) -> list[float]:
    """One task as the loop runs it, up to `end_task`.

    Args:
        method: that has learned the tasks before.
        index: of the task.
        steps: of the optimizer.
        source: of former pairs.
        watch: told of every batch before the method sees it.

    Returns:
        The losses of its steps; none if nothing is trained.
    """
    task = make_task(index, TASKS)
    method.set_pair_source(source or RegeneratedPairs())
    torch.manual_seed(100 + index)
    method.eval()
    method.begin_task(task)
    groups = method.param_groups()
    parameters = freeze_except(method, groups)
    losses = []
    if parameters:
        optimizer = make_optimizer(groups, OPTIM)
        method.train()
        for step, batch in enumerate(batches_of(index, steps)):
            if watch:
                watch(batch)
            torch.manual_seed(1000 * index + step)
            total = torch.stack(list(method.losses(batch).values())).sum()
            total.backward()
            if all_parameters_used(method):
                require_gradients(method)
            set_learning_rates(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            method.after_step()
            losses.append(float(total.detach()))
    method.eval()
    loader = batches_of(index, steps)
    for batch in loader if watch else ():
        watch(batch)  # type: ignore[misc]
    torch.manual_seed(200 + index)
    method.end_task(task, loader)
    return losses


def store_gallery(method: Method, index: int) -> Tensor:
    """What follows `learn` in the loop: the searched videos of the task are encoded, stored and told to the method."""
    stored = gallery(method, index)
    with torch.no_grad():
        method.on_gallery_stored(make_task(index, TASKS), stored)
    return stored


@torch.no_grad()
def features(method: Method, task: int) -> list[Tensor]:
    """Features of six videos and of six captions that search the videos of `task`."""
    batch = make_batch(6, FRAMES, seed=3)
    return [method.encode_video(batch.frames), method.encode_text(batch.tokens, task)]


@torch.no_grad()
def gallery(method: Method, index: int) -> Tensor:
    """The searched videos of a task (V, ...) as they are stored."""
    return method.encode_video(make_batch(5, FRAMES, seed=77 + index).frames).float()
