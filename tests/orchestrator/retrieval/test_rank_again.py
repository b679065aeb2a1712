"""Captions on which drawn ranks depend are encoded, too, and no others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ctvr.methods.capabilities import Capabilities
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.retrieval import rank_again as module


@pytest.mark.parametrize(
    ("declared", "encoded"),
    [
        (Capabilities(), ("a#0",)),
        (Capabilities(attends_to_padding=True), ("a#0", "b#0")),  # the longest caption of all sets the length of each
        (Capabilities(normalizes_scores=True), ("a#0", "b#0")),
    ],
)
def test_captions_on_which_the_drawn_ranks_depend_are_encoded_too(declared, encoded, monkeypatch):
    every = Queries(torch.tensor([[1, 9, 0], [1, 2, 9]]), torch.tensor([0, 1]), torch.tensor([-1, -1]), ("a#0", "b#0"))
    asked: list[str] = []

    def compute_ranks(method: Any, queries: Any, *others: Any) -> Any:
        asked.extend(name for each in queries for name in each.names)
        ranks = SimpleNamespace(listed=lambda: [(0, 0, 1)] * len(asked))
        return SimpleNamespace(to_videos=ranks, own=ranks)

    monkeypatch.setattr(module, "compute_ranks", compute_ranks)
    block = SimpleNamespace(items=(), task=0, features=torch.zeros(2, 4))
    experiment = SimpleNamespace(evaluation=None)
    trained = SimpleNamespace(method=SimpleNamespace(declared=declared), experiment=experiment)
    data = SimpleNamespace(queries=lambda task, split: every)
    model: Any = SimpleNamespace(trained=trained, gallery=lambda: [block], data=lambda items: data, device="cpu")
    assert "a#0" in module.rank_again(model, {"a#0"}, "ctvr")
    assert tuple(asked) == encoded
