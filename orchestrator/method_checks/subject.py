"""Subject of the checks: builds new copies of a method, and runs tasks on noise as the loop does.

Shapes: B pairs, Q captions, V videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctvr.methods import find_method
from ctvr.methods.base import Batch, Method, PairSource, Position
from ctvr.methods.capabilities import overrides
from ctvr.methods.tiny_models import EMBED_DIM, LAYERS, RegeneratedPairs, make_batch, make_small_clip, make_task
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.record.method_state import finish_task, prepare_task
from ctvr.orchestrator.learning.training.distributed import Workers, all_parameters_used, require_gradients
from ctvr.orchestrator.learning.training.gradients import StepGradients
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer
from ctvr.orchestrator.learning.training.step import take_step, total_of
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import get_method
from ctvr.orchestrator.settings.resolve import resolve

TASKS, FRAMES, PAIRS = 3, 4, 8
OPTIM = OptimConfig(lr_scale=20.0)


@dataclass(frozen=True)
class Subject:
    """A method to be checked, with its settings; `make` builds new instances."""

    experiment: Experiment
    embed_dim: int = EMBED_DIM  # d of the small backbone
    layers: int = LAYERS  # blocks of each of its towers

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any] | None = None, presets: Sequence[str] = ()) -> Subject:
        """Build a subject from a method's name (or `module:Class`), with `method.*` and `base.*` settings.

        Raises:
            ConfigError: for invalid settings, and for a method over images or questions.
        """
        learned = {"images": "labeled images", "questions": "questions"}
        if what := learned.get(get_method(name).domain):
            raise ConfigError(
                f"methods check: {name} is for {what}, but the checks use captions and videos. Pass another method."
            )
        words = {"data.num_frames": FRAMES, **(settings or {}), "method": name, "stream": "noise"}
        return cls(resolve(words, presets=presets))

    def make(self) -> Method:
        """Build a new method on the small backbone, with seeded new weights.

        Raises:
            ValueError: for settings that the method refuses on this backbone.
        """
        torch.manual_seed(5)
        made = self.experiment
        cls = find_method(made.run.method)
        backbone: Any = make_small_clip(self.layers, self.embed_dim)
        if cls.wraps:
            backbone = find_method(made.method.base)(made.base, backbone)
        method: Method = cls(made.method, backbone)
        return method


def batches_of(index: int, steps: int) -> list[Batch]:
    """Return training batches of a task, one per step."""
    categories = make_task(index, TASKS).categories
    return [make_batch(PAIRS, FRAMES, seed=10 * index + step, categories=categories) for step in range(steps)]


@torch.enable_grad()
def learn(
    method: Method,
    index: int,
    steps: int = 2,
    source: PairSource | None = None,
    watch: Callable[[Batch], None] | None = None,
) -> list[float]:
    """Learn one task as the loop does, from `begin_task` to `finish_task`, which calls `end_task`.

    Args:
        method: the method, which has learned the earlier tasks.
        index: index of the task.
        steps: number of optimizer steps.
        source: source of the pairs of earlier tasks.
        watch: called with every batch before the method gets it.

    Returns:
        The loss of each step; empty if the method has no trained parameters.
    """
    task = make_task(index, TASKS)
    method.set_pair_source(source or RegeneratedPairs())
    torch.manual_seed(100 + index)
    method.eval()
    method.begin_task(task)
    loader = batches_of(index, steps)
    for batch in loader if watch and overrides(method, "prepare_task") else ():
        watch(batch)  # type: ignore[misc]
    torch.manual_seed(300 + index)
    prepare_task(method, task, loader)
    groups = method.param_groups()
    parameters = freeze_except(method, groups)
    losses = []
    if parameters:
        gradients = StepGradients(method, parameters, OPTIM, Workers(), nullcontext)
        optimizer = make_optimizer(groups, OPTIM, method, gradients.recompute)
        method.train()
        for step, batch in enumerate(loader):
            if watch:
                watch(batch)
            torch.manual_seed(1000 * index + step)
            method.set_position(Position(step, steps, 0, 1))
            terms = gradients.add(batch, 1.0, is_last=True)
            assert terms is not None
            total = total_of(terms)
            if all_parameters_used(method):
                require_gradients(method)
            take_step(method, optimizer, parameters, OPTIM)
            losses.append(float(total.detach()))
    method.eval()
    for batch in loader if watch else ():
        watch(batch)  # type: ignore[misc]
    torch.manual_seed(200 + index)
    finish_task(method, task, loader)
    return losses


def store_gallery(method: Method, index: int) -> Tensor:
    """Encode and store the searched videos of a task, as the loop does after `learn`; return the gallery."""
    stored = gallery(method, index)
    with torch.no_grad():
        method.on_gallery_stored(make_task(index, TASKS), stored)
    return stored


@torch.no_grad()
def features(method: Method, task: int) -> list[Tensor]:
    """Return features of six videos, and of six captions that search the videos of `task`."""
    batch = make_batch(6, FRAMES, seed=3)
    return [method.encode_video(batch.frames), method.encode_text(batch.tokens, task)]


@torch.no_grad()
def gallery(method: Method, index: int) -> Tensor:
    """Return the searched videos of a task (V, ...) as they are stored."""
    return method.encode_video(make_batch(5, FRAMES, seed=77 + index).frames).float()


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """Return whether corresponding tensors have equal shapes and values, without a tolerance."""
    return all(torch.equal(a, b) for a, b in zip(some, others))
