"""Data types that the training loop and a method exchange.

Shapes: B pairs, T frames, L text length, A token ids of an answer, R pairs read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """Description of a task for a method; if task boundaries are hidden, of a chunk of the stream."""

    index: int  # 0-based
    name: str
    num_tasks: int
    categories: tuple[int, ...]  # global category indices, in order of first appearance in the stream
    num_categories: int  # number of categories of the whole stream


@dataclass(frozen=True)
class Batch:
    """Text-video pairs: row i of every field belongs to pair i."""

    frames: Tensor  # (B, T, 3, H, W) float, normalized for the backbone; see also `Method.frozen_blocks`
    tokens: Tensor  # (B, L) int64, zeros after the end-of-text token
    video_ids: Tensor  # (B,) int64; equal ids mean the same video
    categories: Tensor  # (B,) int64 global category indices
    pair_ids: Tensor | None = None  # (B,) int64 arguments of `PairSource.pairs`; None if pairs cannot be read again
    task_ids: Tensor | None = None  # (B,) int64, on the CPU: tasks of the pairs; None if all are of the current task
    answers: Tensor | None = None  # (B, A) int64, in a stream of questions: ids of each answer, padded with zeros
    # The ids of `video_ids`, if equal ids also mean equal frames; None if augmentation may make frames differ
    unaugmented_video_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Position:
    """Position of an optimizer step in the training of a task; step 0 is the first step of epoch 0."""

    step: int  # 0-based, counted from the start of the task
    steps: int  # of the whole task
    epoch: int  # 0-based
    epochs: int  # of the whole task; `evaluation.patience` may end it earlier


class PairSource(Protocol):
    """Interface that reads training pairs of any task by id, so that a replay buffer need not store frames."""

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return frames (R, T, 3, H, W) and tokens (R, L) of the pairs whose `Batch.pair_ids` are `numbers`.

        Frames are not augmented. They are bit-identical to the frames that `end_task` received.
        """
        ...


@dataclass(frozen=True)
class SeparableEncoders:
    """Names of the functions of `owner` whose output row i depends only on row i of their input.

    As an exception, features of a caption may have more padding in a batch with longer captions.
    """

    owner: nn.Module
    names: tuple[str, ...] = ("encode_video", "encode_text")
    is_stateful: bool = False  # whether the functions count their rows, so that equal rows must all be encoded


# Which weights decay. matrices: tensors of two or more dimensions; all: every tensor; no_bias: names without "bias";
# no_bias_or_scale: as no_bias, but not logit_scale; no_vectors: all except tensors of one dimension
Decay = Literal["matrices", "all", "no_bias", "no_bias_or_scale", "no_vectors"]


class _Group(TypedDict):
    name: str
    params: list[nn.Parameter]
    lr: float


class ParamGroup(_Group, total=False):
    """Parameters with a shared learning rate `lr`, which the loop multiplies by `optim.lr_scale`.

    `decay`, if present, replaces `optim.decay_parameters` for the group; None means that no weight decay is applied.
    """

    decay: Decay | None
