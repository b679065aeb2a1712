"""Training batches and queries for questions about videos, each with one answer.

The captions of such a stream (`Stream.domain`) are questions; `Item.answers` contains their answers. The ranked
candidates are the training answers.

Shapes: N questions or answers, L tokens of a question, A tokens of an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr.methods.backbone.wordpiece import WordPieces
from ctvr.methods.layers.transfer import to_device
from ctvr.orchestrator.data.batches import StreamData

LONGEST = 16  # tokens of an answer, including start and end; methods may truncate further


@dataclass(frozen=True)
class Questions:
    """Questions about a task's videos in a split."""

    tokens: Tensor  # (N, L)
    video: Tensor  # (N,) int64, index of the video within the task
    answers: tuple[str, ...]  # the correct answer of each question


class QuestionData(StreamData):
    """A stream of questions as tensors; `Batch.answers` are the token ids (B, A) of the correct answers."""

    def _index(self) -> None:
        super()._index()
        items = (item for index in range(len(self.stream.tasks)) for item in self.stream.items(index, "train"))
        self._right = [answer for item in items for answer in item.answers]  # correct answer of each pair

    def _answers(self, numbers: Sequence[int]) -> Tensor:
        return to_device(self.answer_ids([self._right[number] for number in numbers]), self.device)

    def answer_ids(self, answers: Sequence[str]) -> Tensor:
        """Return token ids (N, A) int64 of answers: start, word pieces, end and zero padding, A at most `LONGEST`."""
        if isinstance(self.tokenizer, WordPieces):
            return self.tokenizer.answers(answers, LONGEST)
        return self.tokenizer(list(answers))[:, :LONGEST]

    def candidates(self, tasks: Sequence[int]) -> tuple[str, ...]:
        """Return the distinct training answers of `tasks`, most common first, then in the order of occurrence."""
        counts: Counter[str] = Counter()
        for task in tasks:
            for item in self.stream.items(task, "train"):
                counts.update(item.answers)
        return tuple(answer for answer, _ in counts.most_common())

    def questions(self, task: int, split: str) -> Questions:
        """Return all questions about the videos of a split of a task."""
        items = self.stream.items(task, split)
        asked = [(row, *pair) for row, item in enumerate(items) for pair in zip(item.captions, item.answers)]
        return Questions(
            self.tokens([question for _, question, _ in asked]),
            torch.tensor([row for row, _, _ in asked]),
            tuple(answer for _, _, answer in asked),
        )
