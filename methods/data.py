"""Data that the training loop and a method exchange.

Shapes: B pairs, T frames, L text length, A ids of an answer, R pairs read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """One step of the stream, or a chunk where its boundaries are hidden: everything that a method may use of it."""

    index: int  # 0-based
    name: str
    num_tasks: int
    categories: tuple[int, ...]  # global category indices, in order of first appearance in the stream
    num_categories: int  # of the whole stream


@dataclass(frozen=True)
class Batch:
    """Text-video pairs: row i of every field belongs to pair i."""

    frames: Tensor  # (B, T, 3, H, W) float, normalised for the backbone; see also `Method.frozen_blocks`
    tokens: Tensor  # (B, L) int64, zeros after the end-of-text token
    video_ids: Tensor  # (B,) int64; equal numbers are the same video
    categories: Tensor  # (B,) int64 global category indices
    pair_ids: Tensor | None = None  # (B,) int64 arguments of `PairSource.pairs`; None: the pairs cannot be read again
    task_ids: Tensor | None = None  # (B,) int64, on the CPU: tasks of the pairs; None: all of the current task
    answers: Tensor | None = None  # (B, A) int64, of a stream of questions: ids of each answer, padded with zeros
    # The same numbers as `video_ids`, where equal numbers mean equal frames; None: frames may differ (augmentation)
    unaugmented_video_ids: tuple[int, ...] | None = None


class PairSource(Protocol):
    """Reader of training pairs of any task: a replay buffer keeps their numbers instead of their frames."""

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return frames (R, T, 3, H, W) and tokens (R, L) of the pairs with these `Batch.pair_ids`.

        They are not augmented, and bit for bit those that `end_task` received.
        """
        ...


@dataclass(frozen=True)
class SeparableEncoders:
    """Functions of `owner` whose output row i depends on row i of their input only.

    A caption's features may have more rows of padding in a batch with longer captions.
    """

    owner: nn.Module
    names: tuple[str, ...] = ("encode_video", "encode_text")
    is_stateful: bool = False  # the functions count their rows, so that equal rows must all be encoded


# Which weights decay. matrices: tensors of two or more dimensions; all: every tensor; no_bias: names without "bias";
# no_bias_or_scale: the same without logit_scale; no_vectors: all except tensors of one dimension
Decay = Literal["matrices", "all", "no_bias", "no_bias_or_scale", "no_vectors"]


class _Group(TypedDict):
    name: str
    params: list[nn.Parameter]
    lr: float


class ParamGroup(_Group, total=False):
    """Parameters that share a learning rate `lr`, which `optim.lr_scale` multiplies.

    `decay`, if present, replaces `optim.decay_parameters` for the group; None: nothing in it decays.
    """

    decay: Decay | None
