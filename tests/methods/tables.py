"""Strategies around a table of features, so that a test can choose the features of every caption."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method
from ctvr.methods.families.compensation import QueryCompensation
from tests.methods.conftest import make_task

AnyStrategy = TypeVar("AnyStrategy", bound=QueryCompensation)


class Table(Method):
    """Retriever whose feature of caption number i, after task t, is tables[t][i]."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        super().__init__()
        self.tables, self.now = [table.float() for table in tables], 0

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self.tables[self.now][tokens[:, 0]]


def captions(first: int, last: int) -> Batch:
    """Return pairs whose captions have the numbers first .. last - 1."""
    numbers = torch.arange(first, last)
    return Batch(torch.zeros(len(numbers), 1), numbers[:, None], numbers, torch.zeros_like(numbers))


def learned_tables(
    method: AnyStrategy, tables: Sequence[Tensor], parts: Sequence[tuple[int, int]] | None = None
) -> AnyStrategy:
    """Let a strategy learn one task for each table; task t has the captions parts[t], by default all of them."""
    method.base = Table(tables)
    for index in range(len(tables)):
        method.begin_task(make_task(index, len(tables)))
        method.base.now = index
        method.eval()
        first, last = (0, len(tables[0])) if parts is None else parts[index]
        method.end_task(make_task(index, len(tables)), [captions(first, last)])
    return method
