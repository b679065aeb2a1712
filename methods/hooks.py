"""Optional members of a method, with defaults that suit most methods.

Shapes: B pairs, T frames, L text length, d joint embedding, Q queries, V videos, N answers, A token ids of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ctvr.methods.capabilities import Capabilities, is_overridden, neutral
from ctvr.methods.data import Batch, PairSource, Position, SeparableEncoders, Task
from ctvr.methods.layers.gather import gather, world_size
from ctvr.methods.layers.losses.blockwise import LARGE, contrastive_in_blocks
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.task_captions import by_task


class Hooks(nn.Module):
    """Base class of `Method` with the optional members that the loop calls; a method overrides those that it needs."""

    # Properties of an instance that depend on the backbone or change while a stream is learned
    max_frames: int | None = None  # maximum number of frames of a video; None: any number
    # Number of leading vision blocks whose outputs equal those of the pre-trained tower in every task, for any video.
    # If > 0, `Batch.frames` and `encode_video` may receive tokens (B, T, N, D), the input of the next block
    frozen_blocks: int = 0
    gallery_is_fresh: bool = False  # set by the evaluation: whether the current model has encoded all videos
    is_joint: bool = False  # set by joint training: whether to train parameters of all tasks so far
    # With `Capabilities.task_conditioned_text`: number of passes of a caption through text towers that serve all tasks
    # (`encode_text_once`, then `move_text` for each task). If 0, `encode_text` is called for each task
    text_passes: int = 0

    if TYPE_CHECKING:  # members of `Method` that the defaults call

        @property
        def declared(self) -> Capabilities: ...
        def encode_video(self, frames: Tensor) -> Tensor: ...
        def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor: ...
        def scale(self) -> Tensor: ...

    # ---------------------------------------------------------------- tables

    @classmethod
    def trains_on_searched(cls, config: Any, of_base: bool = False) -> bool:
        """Return whether training reads the features that `on_gallery_stored` receives; tables mark such a method.

        This is not a field of `Capabilities`, because those must not depend on settings that only later tasks read.

        Args:
            config: settings of the method.
            of_base: for a strategy, the result for the wrapped retriever.
        """
        return of_base or is_overridden(cls, "on_gallery_stored")

    @classmethod
    def keeps_videos(cls, config: Any, of_base: bool = False) -> bool:
        """Return whether a later task trains on videos of earlier tasks; tables list such methods in a separate block.

        The default is true if the method overrides `set_pair_source`. A method that stores frames itself must override
        this function.

        Args:
            config: settings of the method.
            of_base: for a strategy, the result for the wrapped retriever.
        """
        return of_base or is_overridden(cls, "set_pair_source")

    # ---------------------------------------------------------------- tasks and steps

    @neutral
    def set_pair_source(self, source: PairSource) -> None:
        """Receive the reader of training pairs; a method with replay stores it as an attribute outside its state."""

    @neutral
    def prepare_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Read the training data of `task`, after `begin_task` and before `param_groups`.

        `loader` yields the batches that `end_task` gets: the task's training pairs once, in order, without
        augmentation. Every worker receives all of them. A resumed run does not repeat the call for finished tasks, so
        keep the result in buffers, or compute it again from buffers. Do not add parameters here. If the number of
        parameters depends on the data, create the largest possible number in `begin_task`, record in a buffer which of
        them are trained, and return only these from `param_groups`.
        """

    def set_position(self, position: Position) -> None:
        """Receive the position of the next optimizer step, before its first call of `losses`."""

    @neutral
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Finish `task`. `loader` yields its training pairs once, in order, without augmentation.

        A method that is not trained by gradients may learn here (`Capabilities.learns_in_end_task`). Every worker
        receives all pairs.
        """

    @neutral
    def on_gallery_stored(self, task: Task, gallery: Tensor) -> None:
        """Receive the stored features (V, ...) of the videos of `task`, in which later queries search."""

    @neutral
    def combine_gradients(self, gradients: dict[str, Tensor]) -> Tensor:
        """Return the gradient of a step, (P,), from the gradients of the terms of `losses`; the default is their sum.

        If a method overrides this function, the loop runs one backward pass for each term. A strategy also gets the
        terms of its retriever. The loop then calls `before_step`.

        Args:
            gradients: name of a term -> (P,) float32, its gradient with respect to the P trained weights of
                `param_groups`, in their order, over the pairs of the step and averaged over all workers. `losses` must
                return terms of the same names on all workers.
        """
        return torch.stack(list(gradients.values())).sum(dim=0)

    @neutral
    def make_optimizer(
        self, groups: list[dict[str, Any]], recompute: Callable[[], None]
    ) -> torch.optim.Optimizer | None:
        """Make the optimizer of a task; return None to use the optimizer that `optim.name` selects.

        The `state` of the optimizer may contain only tensors and numbers; it is dropped after the task.
        `optim.lr_scale`, `optim.schedule`, `optim.weight_decay`, `optim.grad_clip` and `optim.accumulation_steps` apply
        as to other optimizers.

        Args:
            groups: parameter groups for the constructor of a `torch.optim.Optimizer`. Before every step the loop sets
                `lr` of a group to its `peak` times the factor of the schedule. `weight_decay` is 0 for parameters that
                do not decay.
            recompute: function for optimizers such as SAM. It computes the gradients of the step's batches again, at
                the current weights and on every worker, calls `before_step` and clips them.
        """
        return None

    def before_step(self) -> None:
        """Read or change the complete gradient of a step before the optimizer uses it, for example to clip it."""

    def after_step(self) -> None:
        """Update the method after every optimizer step, for example moving averages or clamped weights."""

    # ---------------------------------------------------------------- features and scores

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode videos (B, T, 3, H, W) of the task with index `task`; the default ignores the task.

        The evaluation calls this function. A method that encodes videos of earlier tasks again may use a different
        network for each task.
        """
        return self.encode_video(frames)

    def encode_own_captions(self, batch: Batch, encode: Callable[..., Tensor] | None = None) -> Tensor:
        """Encode the captions of a batch, each for a search among the videos of its own task: (B, ...).

        Args:
            batch: pairs of the current task, or of the tasks in `batch.task_ids`.
            encode: function that is called instead of `encode_text`, with the same arguments.
        """
        tasks = batch.task_ids if self.declared.task_conditioned_text else None
        return by_task(encode or self.encode_text, batch.tokens, tasks)

    def encode_text_once(self, tokens: Tensor) -> Any:
        """Encode captions (B, L) once for all tasks; the result is the input of `move_text`, row i for caption i."""
        raise NotImplementedError(f"{type(self).__name__} must define encode_text_once(tokens), or text_passes = 0.")

    def move_text(self, features: Any, task: int) -> Tensor:
        """Return a result bit-identical to `encode_text(tokens, task)`, from `features` by `encode_text_once`."""
        raise NotImplementedError(f"{type(self).__name__} must define move_text(features, task), or text_passes = 0.")

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Return similarities (Q, V) of caption features and video features; the default is their dot product.

        A similarity may depend only on its caption and its video, because the evaluation computes them in blocks.
        """
        return queries @ gallery.mT

    @neutral
    def normalize_scores(self, scores: Tensor) -> Tensor:
        """Return final similarities (Q, V), text to video, from the complete output of `score`, (Q, V) or (Q, V, ...).

        The evaluation passes all queries and all stored videos; the protocol CVLM passes those of one task. If the
        result for a query depends on other queries, set `Capabilities.is_transductive`.
        """
        return scores

    @neutral
    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        """Return final similarities (Q, V), captions x videos, for searches by a video, which rank each column."""
        return self.normalize_scores(scores)

    def rank_answers(self, questions: Tensor, videos: Tensor, answers: Tensor) -> Tensor:
        """Rank answers to questions: return indices (B, k) int64 into `answers`, the likeliest first, k <= N.

        Args:
            questions: (B, L) int64 tokens.
            videos: (B, ...) features, by `encode_video`, of each question's video.
            answers: (N, A) int64 tokens of the candidates, the most frequent training answer first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not answer questions.")

    # ---------------------------------------------------------------- the default loss

    @neutral
    def logits(self, batch: Batch) -> Tensor:
        """Return scaled similarities (B, B), captions x videos, over the pairs of all workers."""
        queries = gather(self.encode_own_captions(batch))
        videos = gather(self.encode_video(batch.frames))
        with torch.autocast(videos.device.type, enabled=False):  # similarities are float32 for towers of any precision
            return self.scale().float() * self.score(queries.float(), videos.float())

    def info_nce(
        self, batch: Batch, reduction: Literal["mean", "sum"] = "mean", numbers: Tensor | None = None
    ) -> Tensor:
        """Return the symmetric contrastive loss, a scalar, over the pairs of all workers.

        For a very large batch with cosine similarities, the loss is computed in blocks, and the whole matrix is not
        stored (layers/losses/blockwise.py).

        Args:
            batch: batch of this worker.
            reduction: how the losses of the pairs are combined.
            numbers: (B,) int64, ids of the pairs of all workers; pairs with equal ids are not negatives of each other.
                If None, all pairs are negatives of each other.
        """
        cls = type(self)
        is_cosine = cls.logits is Hooks.logits and cls.score is Hooks.score
        if not is_cosine or len(batch.video_ids) * world_size() < LARGE:
            return contrastive(self.logits(batch), reduction, numbers)
        queries, videos = gather(self.encode_own_captions(batch)), gather(self.encode_video(batch.frames))
        with torch.autocast(videos.device.type, enabled=False):
            return contrastive_in_blocks(queries.float(), videos.float(), self.scale().float(), reduction, numbers)

    def separable_encoders(self) -> SeparableEncoders | str:
        """Return the functions through which `losses` reads frames and tokens; if none exist, the reason as a string.

        The loop uses these functions to encode a large batch in parts.
        """
        if self.declared.accumulation == "features":
            return SeparableEncoders(self)
        return f"the loss of {type(self).__name__} reads more than features"

    # ---------------------------------------------------------------- logs

    def task_metrics(self) -> dict[str, float]:
        """Return metrics that are logged after a task as `task/NAME`; MLflow's step is the number of learned tasks."""
        return {}

    def similarities(self) -> dict[str, Tensor]:
        """Return a dictionary of square matrices with cosines in [-1, 1], drawn as heat maps after a stream."""
        return {}

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Return statistics of the last batch by name; the mean over an epoch is logged as `train/NAME`.

        The MLflow step is the number of optimizer steps so far. Leave scalars on the device, because reading a scalar
        in every step makes the host wait for the device.
        """
        return {}
