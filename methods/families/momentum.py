"""Shared base of the momentum-contrast retrievers in BMU-MoCo's tables (NeurIPS 2022, section 3.3).

A training step computes

    q = f_theta(pair),  k = f_theta_m(pair) for the momentum encoders theta_m (eq. 7, 9, 15)
    the loss over the keys k and the queues of keys (eq. 10-11, 16-18);  the optimizer step
    the moving averages, which each method defines;  then keys are appended to the queues

This file is not a method. base_moco, bmu_moco, bmu_fixed and bmu_ensemble define which momentum encoders they have, and
how these and the trained encoders theta are averaged. The local momentum encoders theta_m are initialized from theta in
every task, the global ones (theta~_m) only in the first. Queries are always encoded by theta, also in evaluation.

No code was published. Differences and assumptions: CLIP instead of ViT-Base and BERT-Base; unit vectors; AdamW; queues
start empty. The paper's resolution of 384 needs other position embeddings than those of the backbone used here. The
paper selects the epoch on a validation set. For datasets without one, the epoch is selected on test videos here, and
tables mark this. The paper samples frames at random (section 3.2); preset `paper` does this by `data.sampling=random`.

Shapes: B pairs of all workers, d joint embedding, R keys in a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Capabilities, Method, ParamGroup, SeparableEncoders, Task
from ctvr.methods.layers.gather import gather, world_size
from ctvr.methods.layers.replay.momentum import Encoders, Momentum, Negatives, TextPool, ema_update, momentum_contrast
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.layers.transfer import to_device
from ctvr.methods.settings import require, setting

MOCO_UNPUBLISHED = ("optim.weight_decay", "data.num_frames")  # for every row of BMU-MoCo's tables
# Values of section 4.1; optimizer, weight decay and caption sampling, which the paper does not specify, are ours
PAPER: dict[str, Any] = {
    "optim.name": "adamw",
    "optim.epochs": 10,
    "optim.schedule": "first_epoch",  # 5e-5 in the first epoch of each task, 5e-6 afterwards
    "optim.first_epoch_scale": 0.1,
    "optim.warmup": 0.0,  # the first epoch has the learning rate 5e-5 from its first step on
    "optim.weight_decay": 0.01,
    "data.batch_size": 48,
    "data.augment": "gray_jitter",
    "data.sampling": "random",  # section 3.2: s frames are randomly sampled
    "data.caption_sampling": "random_per_video",
    "evaluation.select": "best",  # "choose the best trained one w.r.t. the validation R@1"
}
# With optim.lr_scale=50 the learning rate is 2e-4, which suits the small backbone. A task of shapes-cvlm has 64 to 256
# pairs, so a queue of 1440 keys would span 5 to 22 epochs; in the paper it spans a small part of one epoch
SHAPES: dict[str, Any] = {"method.lr": 4e-6, "method.queue_size": 32}
SHAPES_WRAPPED: dict[str, Any] = {"base.lr": 4e-6, "base.queue_size": 32}
# Remedies of errors
MOMENTUM_HINT = "The paper uses 0.99; 1 disables the update."
START_HINT = "Use 1 for all tasks, or 2 as in the paper's tables."


@dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Settings that all four momentum retrievers share; defaults are the paper's unless a setting states otherwise."""

    UNPUBLISHED: ClassVar[tuple[str, ...]] = MOCO_UNPUBLISHED

    lr: float = setting(5e-5, doc="learning rate of both towers", part="recipe")
    m: float = setting(0.99, doc="momentum of the momentum encoders, eq. 8", part="recipe")
    tau: float = setting(0.07, doc="temperature of the contrastive loss, eq. 10; it is not trained", part="loss")
    queue_size: int = setting(1440, doc="number N_Q of keys in a queue", part="loss")
    text_pool: TextPool = setting(
        "eot",
        doc="pooling of text tokens: eot, the end-of-text token; avg, the mean of all tokens, as in the paper",
        paper="avg",
    )
    mask_same_video: bool = setting(
        False, doc="whether to exclude keys of the query's own video from the negatives", part="loss"
    )
    inbatch_negatives: bool = setting(
        False,
        doc="whether the keys of other pairs in the batch are negatives, in addition to the keys in the queue",
        part="loss",
    )
    queue_init: Literal["empty", "random"] = setting(
        "empty", doc="initial content of the queues: empty, or random unit vectors", part="loss"
    )
    queue_across_tasks: Literal["keep", "reset"] = setting(
        "keep",
        doc="whether the local queue is kept or reset at the start of a task; the global queue is always kept",
        part="loss",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 for the zero-shot model.")
        require(self, "> 0", "tau", hint="The paper uses 0.07.")
        require(self, ">= 1", "queue_size", hint="The paper uses 1440.")
        require(self, "in [0, 1]", "m", hint=MOMENTUM_HINT)


@dataclass(frozen=True, kw_only=True)
class ReviewConfig(MomentumConfig):
    """Settings of the methods that also update theta from momentum encoders: bmu_moco and bmu_fixed."""

    m_hat: float = setting(
        0.99,
        doc="momentum of the reverse update, from the momentum encoder to the encoder, eq. 12; 1: no reverse update",
        later=True,
        part="recipe",
    )
    method_start_task: int = setting(
        2,
        doc="number, from 1, of the first task trained with the method; earlier tasks are trained with Base-MoCo, so "
        "all rows of table 1 have an equal first task",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "in [0, 1]", "m_hat", hint=MOMENTUM_HINT)
        require(self, ">= 1", "method_start_task", hint=START_HINT)


class MomentumRetriever(Method):
    """Base class of mean-pooled CLIP that is contrasted with the keys of momentum encoders.

    A subclass defines its momentum encoders, and may override `after_step`, which must end with `enqueue()`. A strategy
    that wraps it may pass other queries and keys to `contrast`.
    """

    config: MomentumConfig
    ON_FEATURES = {"method.lr": 1e-3}

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        # Negatives are from queues, not from the batch
        return Capabilities(fits_vectors=True, uses_all_parameters=True, uses_in_batch_negatives=False)

    def __init__(
        self, config: MomentumConfig, backbone: Clip, has_local: bool = True, has_global: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.encoders = Encoders(backbone, config.text_pool)
        self.local = Momentum(self.encoders, config.queue_size) if has_local else None
        self.global_ = Momentum(self.encoders, config.queue_size) if has_global else None
        self.task_index = 0
        self._new: list[tuple[list[Pair], Tensor]] = []  # keys to enqueue after the optimizer step

    @property
    def momenta(self) -> list[Momentum]:
        """Momentum encoders that the method has: the local ones, then the global ones."""
        return [momentum for momentum in (self.local, self.global_) if momentum is not None]

    def contrasted(self) -> list[Momentum]:
        """Return the momentum encoders whose keys the loss of the current task uses."""
        return self.momenta

    def begin_task(self, task: Task) -> None:
        self.task_index = task.index
        self._new = []
        is_first = task.index == 0
        for momentum in self.momenta:
            if is_first or momentum is self.local:  # theta~_m is initialized only in the first task
                momentum.restart(self.encoders)
            if is_first or (momentum is self.local and self.config.queue_across_tasks == "reset"):
                momentum.queue.reset(random=self.config.queue_init == "random")

    def param_groups(self) -> list[ParamGroup]:
        clip = self.encoders.clip
        return [ParamGroup(name="clip", params=[*clip.vision.parameters(), *clip.text.parameters()], lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        return self.encoders.video(frames)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self.encoders.text(tokens)

    def scale(self) -> Tensor:
        return torch.full((), 1 / self.config.tau, device=self.encoders.clip.logit_scale.device)

    def separable_encoders(self) -> SeparableEncoders | str:
        return SeparableEncoders(self.encoders, ("video", "text"))

    def queries(self, batch: Batch) -> Pair:
        """Compute the queries q (B, d) of the global batch, eq. 7."""
        return self.encoders.pair(batch.frames, batch.tokens)

    def keys(self, batch: Batch) -> list[Pair]:
        """Compute the keys k (B, d) of the global batch by each element of `momenta`, eq. 9 and 15."""
        return [momentum.keys(batch.frames, batch.tokens) for momentum in self.momenta]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        queries, keys, videos = self.queries(batch), self.keys(batch), gather(batch.video_ids)
        if batch.task_ids is not None and world_size() > 1:  # put replayed pairs last, as with one worker
            is_replayed = to_device((batch.task_ids != self.task_index).long(), videos.device)
            order = gather(is_replayed).argsort(stable=True)
            queries, *keys = (Pair(pair.video[order], pair.text[order]) for pair in (queries, *keys))
            videos = videos[order]
        return {"contrastive": self.contrast(queries, keys, videos)}

    def contrast(
        self,
        queries: Pair,
        keys: Sequence[Pair],
        videos: Tensor,
        extra: Sequence[Pair] = (),
        extra_videos: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss over the encoders of `contrasted()`: eq. 10-11 for one, eq. 16-18 for two.

        If gradients are enabled, the next `enqueue()` appends `keys` to the queues.

        Args:
            queries: (B, d) features of the global batch.
            keys: (B, d) keys by each element of `momenta`.
            videos: (B,) video ids of the global batch.
            extra: (R, d) additional negatives for each element of `momenta`, which are not appended to the queues.
            extra_videos: (R,) video ids of `extra`.
        """
        if torch.is_grad_enabled():
            self._new.append((list(keys), videos))
        chosen = [momentum in self.contrasted() for momentum in self.momenta]
        parts = []
        for i in (i for i, is_chosen in enumerate(chosen) if is_chosen):
            parts.append(self._negatives(*self.momenta[i].queue.content(), videos))
            if self.config.inbatch_negatives:
                own = self._negatives(keys[i], videos, videos)
                itself = torch.eye(len(videos), dtype=torch.bool, device=videos.device)
                parts.append(Negatives(own.keys, own.spared | itself))
            if extra and extra_videos is not None:
                parts.append(self._negatives(extra[i], extra_videos, videos))
        positives = [key for key, is_chosen in zip(keys, chosen) if is_chosen]
        return momentum_contrast(queries, positives, Negatives.join(parts), self.config.tau)

    def _negatives(self, keys: Pair, key_videos: Tensor, videos: Tensor) -> Negatives:
        same = videos[:, None] == key_videos[None, :]  # (B, R)
        return Negatives(keys, same if self.config.mask_same_video else torch.zeros_like(same))

    def after_step(self) -> None:
        for momentum in self.momenta:  # eq. 8, eq. 14
            ema_update(momentum.encoders, self.encoders, self.config.m)
        self.enqueue()

    def enqueue(self) -> None:
        """Append the keys of the current step, which `contrast` has stored, to the queues."""
        for keys, videos in self._new:
            for momentum, pair in zip(self.momenta, keys):
                momentum.queue.enqueue(pair, videos)
        self._new = []
