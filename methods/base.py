"""The contract between a method and the loop that trains it.

The loop calls `method.set_pair_source(source)` once and then, in this order, for every task of a stream::

    method.begin_task(task)             # may add parameters; names and shapes depend on task.index alone
    for batch in loader:                # as many epochs as the settings say
        sum(method.losses(batch).values()).backward()
        method.before_step();  optimizer.step();  method.after_step()
    method.end_task(task, loader)       # the task's training pairs once more, without augmentation
    gallery = method.encode_video(...)  # of the task's searched videos, stored from now on
    method.on_gallery_stored(task, gallery)
    method.score(method.encode_text(queries), gallery)

A run is resumed by replaying `begin_task` and `on_gallery_stored` for the finished tasks and loading the last
checkpoint. So everything that must survive is a parameter or a buffer; what `begin_task` makes anew
(a teacher, a momentum copy) may live outside the state.

Shapes: B pairs, T frames, L text length, d joint embedding, Q queries, V videos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.layers.frozen import Frozen as Frozen
from ctvr.methods.layers.gather import gather, world_size
from ctvr.methods.layers.losses.blockwise import LARGE, contrastive_in_blocks
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.task_captions import by_task
from ctvr.methods.recipes import Override as Override
from ctvr.methods.recipes import Recipe as Recipe


@dataclass(frozen=True)
class Task:
    """One step of the stream, as far as a method may know it."""

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
    pair_ids: Tensor | None = None  # (B,) int64 numbers by which `PairSource` finds them again; None: it does not
    task_ids: Tensor | None = None  # (B,) int64, on the CPU: tasks they come from; None: all from the present one
    answers: Tensor | None = None  # (B, A) int64, of a stream of questions: ids of each answer, zeros behind it
    unaugmented_video_ids: tuple[int, ...] | None = (
        None  # `videos`, where frames of equal numbers are equal; None: who knows
    )


class PairSource(Protocol):
    """Training pairs of any task, read again: a memory keeps their numbers and not their frames."""

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Frames (R, T, 3, H, W) and tokens (R, L) of the pairs with these `Batch.pair_ids`.

        They are what `end_task` was given: not augmented, bit for bit the same every time.
        """
        ...


@dataclass(frozen=True)
class SeparableEncoders:
    """Functions of `owner` that make row i of their result of row i of their tensors alone.

    A caption may get more rows of pads beside longer ones.
    """

    owner: nn.Module
    names: tuple[str, ...] = ("encode_video", "encode_text")
    is_stateful: bool = False  # they count their rows, so that equal ones must all pass


# Which weights decay: tensors of two dimensions and more; every one; all whose name has no "bias"; the same without
# logit_scale; all but vectors, so numbers without a dimension decay
Decay = Literal["matrices", "all", "no_bias", "no_bias_or_scale", "no_vectors"]


class _Group(TypedDict):
    name: str
    params: list[nn.Parameter]
    lr: float


class ParamGroup(_Group, total=False):
    """Parameters that share a learning rate. `lr` is the method's own, before `optim.lr_scale`.

    `decay` is the method's own rule for the group, in place of `optim.decay_parameters`.
    """

    decay: Decay


class Method(nn.Module):
    """A retriever, or a strategy that wraps one. Subclassed once, directly; a method never subclasses a method.

    A retriever is built as `Class(config, backbone)`. A strategy sets `wraps = True`, has a setting
    `base` and is built as `Class(config, base)`, where `base` is a retriever that knows nothing of it.
    """

    Config: ClassVar[type]
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}  # name -> {dotted setting: value}, a recipe or an `Override`
    wraps: ClassVar[bool] = False
    domain: ClassVar[Literal["videos", "images", "questions"]] = "videos"  # of the streams it is for

    # It reaches its towers through `forward` and seams alone, so that any backbone will do (openclip_towers.py)
    backbone_agnostic: ClassVar[bool] = False
    # Each step gives every weight of `param_groups` a gradient, but for the experts of a `RoutingRecorder`
    uses_all_parameters: bool = False
    # For a retriever that reads captions by task: it obeys `is_joint`
    joins_tasks: ClassVar[bool] = False
    is_joint: bool = False  # all tasks so far are learned together: what is kept for each of them is trained
    trains_on: Literal["task", "seen"] = "task"  # pairs of this task, or of all tasks so far
    reencodes_gallery: bool = False  # True breaks the protocol on purpose (joint training)
    task_conditioned_text: bool = False  # True: a caption is encoded once for each task whose videos it searches
    max_frames: int | None = None  # of a video; None: as many as there are
    is_transductive: bool = False  # True: a query's ranks depend on the other queries; tables say so
    uses_in_batch_negatives: ClassVar[bool] = (
        True  # a loss called `contrastive` compares the pairs of a batch, and no others
    )
    needs_umt: ClassVar[bool] = False  # for a retriever: it knows UMT's towers, and needs no CLIP
    # Rows `method:preset` that a sweep of the method runs beside its winner, unless its baselines are named
    controls: ClassVar[tuple[str, ...]] = ()
    # How `optim.accumulation_steps` makes one step of several batches. features: `losses` reads frames and tokens only
    # through the functions of `separable_encoders`. pairs: it is a mean over independent pairs. None: features
    # where `losses` and `logits` are those of this class; refused elsewhere.
    accumulation: ClassVar[Literal["features", "pairs"] | None] = None
    # Leading vision blocks whose output is the pre-trained tower's, in every task, for any video. Where there are
    # some, `Batch.frames` and `encode_video` may get the tokens (B, T, N, D) that enter the block behind them.
    frozen_blocks: int = 0
    attends_to_padding: bool = (
        False  # what stands behind a caption up to L counts, so L is that of the task or of all queries
    )
    text_is_frozen: bool = False  # `encode_text` depends on the caption alone, in every task

    @classmethod
    def check_base(cls, config: Any, base: type[Method], base_config: Any) -> None:
        """For a strategy: refuse a retriever that it cannot wrap under these settings, before anything is built.

        Raises:
            ValueError: with the reason and the setting to change.
        """

    @classmethod
    def required_num_frames(cls, config: Any) -> int | None:
        """For a retriever: the one number of frames that its videos must have; None if any will do."""
        return None

    @classmethod
    def masks_missing_frames(cls, config: Any) -> bool:
        """For a retriever: whether frames (3, H, W) of zeros at a video's end count as missing under these settings."""
        return False

    @classmethod
    def is_task_conditioned(cls, config: Any) -> bool:
        """For a retriever: whether it sets `task_conditioned_text` under these settings."""
        return False

    @classmethod
    def trains_on_searched(cls, config: Any, of_base: bool = False) -> bool:
        """Return whether training reads the features that `on_gallery_stored` hands over; tables say so.

        Args:
            config: of the method.
            of_base: of a strategy: whether the wrapped retriever's training reads them.
        """
        return of_base or cls.on_gallery_stored is not Method.on_gallery_stored

    @classmethod
    def score_caveat(cls, config: Any) -> str:
        """For a retriever: why its `score` is no similarity yet under these settings, and what to set instead.

        Empty if `score` is final but for what `normalize_scores` does to a complete matrix (Q, V). Strategies that
        compare similarities within a batch refuse other retrievers.
        """
        return ""

    def set_pair_source(self, source: PairSource) -> None:
        """Get the source of former pairs; only a method that replays them keeps it. It is no part of the state."""

    def begin_task(self, task: Task) -> None:
        """Get ready to learn `task`. The only place that adds or removes parameters."""

    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Conclude `task`. `loader` yields its training pairs once, in order, without augmentation."""

    def on_gallery_stored(self, task: Task, gallery: Tensor) -> None:
        """Take note of the features (V, ...) under which the videos of `task` are stored and searched."""

    def param_groups(self) -> list[ParamGroup]:
        """Everything that is trained in the present task, each tensor once. Empty: nothing is trained."""
        return []

    def encode_video(self, frames: Tensor) -> Tensor:
        """Features of videos as they are stored: (B, T, 3, H, W) -> (B, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must say how a video is encoded.")

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """The same of videos or images that are known to be of the task with this index; it makes no difference here.

        What the evaluation calls: of a protocol that encodes former tasks anew, a method may have a network for each.
        """
        return self.encode_video(frames)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Features of captions: (B, L) -> (B, ...).

        Args:
            tokens: (B, L) int64.
            task: index of the task whose stored videos are searched; None while training the present
                task. Ignored unless `task_conditioned_text`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how a caption is encoded.")

    def rank_answers(self, questions: Tensor, videos: Tensor, answers: Tensor) -> Tensor:
        """For a method over questions: the places of answers in a list, the likeliest first.

        Args:
            questions: (B, L) int64.
            videos: (B, ...), `encode_video` of each question's video.
            answers: (N, A) int64, the commonest of the training answers first.

        Returns:
            (B, k) int64, k <= N.
        """
        raise NotImplementedError(f"{type(self).__name__} answers no questions.")

    def encode_own_captions(self, batch: Batch, encode: Callable[..., Tensor] | None = None) -> Tensor:
        """Features (B, ...) of a batch's captions, each as it searches the videos of the task that it comes from.

        Args:
            batch: of the present task, or of several where `batch.task_ids` says so.
            encode: stands for `encode_text`, with its arguments.
        """
        return by_task(encode or self.encode_text, batch.tokens, batch.task_ids if self.task_conditioned_text else None)

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Similarities (Q, V) of caption and video features; a cosine where both are unit vectors (., d).

        Each from its caption and its video alone: the evaluation asks for parts of the captions and of the videos.
        """
        return queries @ gallery.mT

    def normalize_scores(self, scores: Tensor) -> Tensor:
        """Final similarities (Q, V) from the complete matrix of `score`, (Q, V) or (Q, V, ...); as they are by default.

        Captions -> videos. Applied by the evaluation over all queries and all stored videos, in CVLM over each task's.
        A method that lets queries influence one another here is transductive.
        """
        return scores

    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        """The same for videos -> captions: rows stay captions and columns videos, and a column is ranked."""
        return self.normalize_scores(scores)

    def normalizes_scores(self) -> bool:
        """Whether one of the two changes scores: the evaluation then holds the matrix (Q, V)."""
        names = ("normalize_scores", "normalize_scores_v2t")
        return any(getattr(type(self), name) is not getattr(Method, name) for name in names)

    def scale(self) -> Tensor:
        """The factor exp(logit_scale) = 1 / temperature of the contrastive loss, a scalar."""
        raise NotImplementedError(f"{type(self).__name__} must say its temperature.")

    def logits(self, batch: Batch) -> Tensor:
        """Scaled similarities (B, B), captions x videos, over the pairs of all workers."""
        queries = gather(self.encode_own_captions(batch))
        videos = gather(self.encode_video(batch.frames))
        with torch.autocast(videos.device.type, enabled=False):  # similarities are float32 whatever the towers are
            return self.scale().float() * self.score(queries.float(), videos.float())

    def info_nce(
        self, batch: Batch, reduction: Literal["mean", "sum"] = "mean", numbers: Tensor | None = None
    ) -> Tensor:
        """`contrastive` of the pairs of all workers; of very many cosines without their matrix (blockwise.py)."""
        cls = type(self)
        is_cosine = cls.logits is Method.logits and cls.score is Method.score
        if not is_cosine or len(batch.video_ids) * world_size() < LARGE:
            return contrastive(self.logits(batch), reduction, numbers)
        queries, videos = gather(self.encode_own_captions(batch)), gather(self.encode_video(batch.frames))
        with torch.autocast(videos.device.type, enabled=False):
            return contrastive_in_blocks(queries.float(), videos.float(), self.scale().float(), reduction, numbers)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Named, already weighted scalars; the loop minimises their sum and logs each one.

        Where no gradient is made, the pairs are not learned from: it takes note of none of them.
        """
        return {"contrastive": self.info_nce(batch)}

    def separable_encoders(self) -> SeparableEncoders | str:
        """Through what `losses` reads frames and tokens, so that a large batch can be encoded in parts; or why not."""
        cls = type(self)
        if cls.accumulation == "features" or (cls.losses is Method.losses and cls.logits is Method.logits):
            return SeparableEncoders(self)
        return f"the loss of {cls.__name__} reads more than features"

    def before_step(self) -> None:
        """Called before every optimizer step, with the whole gradient of the step: clipping, notes of gradients."""

    def after_step(self) -> None:
        """Called after every optimizer step: moving averages, clamping."""

    def task_metrics(self) -> dict[str, float]:
        """Numbers that a finished task is logged with, as `task/NAME` at the number of tasks; they decide nothing."""
        return {}

    def similarities(self) -> dict[str, Tensor]:
        """Square matrices of cosines in [-1, 1] that a finished stream is drawn with; they decide nothing."""
        return {}

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Numbers of the last batch that an epoch is logged with, averaged over its batches; they decide nothing.

        Their keys are `train/NAME`, at the number of optimizer steps.

        Scalars of the device stay there: reading one in every step would make the host wait.
        """
        return {}


def l2_normalize(x: Tensor) -> Tensor:
    """Vectors x (..., d) at length 1, in float32 whatever the precision of the towers."""
    return F.normalize(x.float(), dim=-1)
