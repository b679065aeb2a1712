"""Towers over drawn vectors of two widths, and pairs of them: a pair's video and captions share a direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ctvr.methods import CONFIGURATIONS
from ctvr.methods.backbone.vectors import CaptionTable, Vectors
from ctvr.methods.base import Batch, Method
from ctvr.orchestrator.learning.run.factory import make_method
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import resolve

WIDTH, TEXT, PAIRS, FRAMES = 12, 20, 40, 3


def drawn(seed: int = 0, text: int = TEXT, several: int = 1) -> tuple[Tensor, CaptionTable]:
    """Draw frames (PAIRS, FRAMES, 1, WIDTH) and a table of as many captions of `several` vectors (., text)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    topic = normal(PAIRS, 6)
    frames = (topic @ normal(6, WIDTH))[:, None] + 0.3 * normal(PAIRS, FRAMES, WIDTH)
    rows = (topic @ normal(6, text))[:, None] + 0.3 * normal(PAIRS, several, text)
    return frames[:, :, None], CaptionTable(rows.flatten(0, 1), torch.arange(PAIRS + 1) * several)


def towers(table: CaptionTable, seed: int = 0) -> Vectors:
    """Build towers whose captions start with a drawn map where they have another width than the videos."""
    made = Vectors(WIDTH, table, lambda texts: torch.zeros(len(texts), 1, dtype=torch.int64))
    text = made.text.width
    if text != WIDTH:
        generator = torch.Generator().manual_seed(seed)
        made.text.start_from(torch.randn(text, WIDTH, generator=generator) / 4, torch.full((text,), 0.1))
    return made


def made(name: str, several: int = 1, **settings: Any) -> tuple[Method, Tensor, Experiment]:
    """Build a method of METHODS or CONFIGURATIONS on such towers; also return their frames and its settings."""
    frames, table = drawn(several=several)
    method, preset = CONFIGURATIONS.get(name, (name, ""))
    full = {"method": method, "stream": "x", "backbone.name": "vectors", "backbone.weights": "imported", **settings}
    experiment = resolve(full, {}, [preset] if preset else [])
    return make_method(experiment, towers(table)), frames, experiment


def batch(frames: Tensor, rows: Sequence[int], task: int) -> Batch:
    """Return the pairs `rows` as pairs of `task`."""
    numbers = torch.tensor(list(rows))
    tasks = torch.full((len(numbers),), task)
    return Batch(frames[numbers], numbers[:, None], numbers, tasks, pair_ids=numbers, task_ids=tasks)


class Pairs:
    """Reader of previous pairs for a method that replays them."""

    def __init__(self, frames: Tensor) -> None:
        self.frames = frames

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(list(numbers))
        return self.frames[chosen], chosen[:, None]
