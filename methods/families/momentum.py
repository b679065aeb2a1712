"""Shared base of the momentum-contrast retrievers in BMU-MoCo's tables (NeurIPS 2022, section 3.3).

    q = f_theta(pair),  k = f_theta_m(pair) for every pair of momentum encoders (eq. 7, 9, 15)
    loss over the keys and their queues (eq. 10-11, 16-18);  optimizer step
    after the step: moving averages, which each method defines;  then the keys enter the queues

This file is not a method: base_moco, bmu_moco, bmu_fixed and bmu_ensemble define which momentum
encoders they keep and how parameters flow between theta, the local theta_m (initialised from theta at
every task) and the global theta~_m (initialised once). Queries are always encoded by theta, also in evaluation.

Differences and assumptions (no code was published): CLIP in place of ViT-Base and BERT-Base; unit vectors;
AdamW; the queue starts empty. The paper's resolution of 384 needs other position embeddings; here they are the
backbone's own. Its best epoch is chosen on a validation set, which not all of its datasets have: on the others the
epoch is chosen on test videos, and tables mark it. Its frames are drawn at random (section 3.2), which preset `paper`
does by `data.sampling=random`.

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
from ctvr.methods.layers.replay.momentum import Encoders, Momentum, Negatives, TextPool, momentum_contrast
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.layers.transfer import to_device
from ctvr.methods.settings import require, setting

MOCO_UNPUBLISHED = ("optim.weight_decay", "data.num_frames")  # of every row of BMU-MoCo's paper
# Section 4.1 and, where the paper does not specify (optimizer, weight decay, which caption), our assumption.
PAPER: dict[str, Any] = {
    "optim.name": "adamw",
    "optim.epochs": 10,
    "optim.schedule": "first_epoch",  # 5e-5 in the first epoch of each task, 5e-6 afterwards
    "optim.first_epoch_scale": 0.1,
    "optim.warmup": 0.0,  # the first epoch has 5e-5 from its first step on
    "optim.weight_decay": 0.01,
    "data.batch_size": 48,
    "data.augment": "gray_jitter",
    "data.sampling": "random",  # section 3.2: s frames are randomly sampled
    "data.caption_sampling": "random_per_video",
    "evaluation.select": "best",  # "choose the best trained one w.r.t. the validation R@1"
}
# With optim.lr_scale=50: 2e-4, which suits the small backbone. A task of shapes-cvlm has 64 to 256 pairs: the paper's
# 1440 keys would be 5 to 22 epochs of it, and are a small part of one epoch in the paper
SHAPES: dict[str, Any] = {"method.lr": 4e-6, "method.queue_size": 32}
SHAPES_WRAPPED: dict[str, Any] = {"base.lr": 4e-6, "base.queue_size": 32}
# Remedies of errors
MOMENTUM_HINT = "The paper uses 0.99; 1 changes nothing."
START_HINT = "Use 1 for all tasks, 2 as the paper's tables."


@dataclass(frozen=True, kw_only=True)
class MomentumConfig:
    """Settings of all four methods; defaults are the paper's."""

    UNPUBLISHED: ClassVar[tuple[str, ...]] = MOCO_UNPUBLISHED

    lr: float = setting(5e-5, doc="learning rate of both towers", part="recipe")
    m: float = setting(0.99, doc="momentum of the momentum encoders, eq. 8", part="recipe")
    tau: float = setting(0.07, doc="temperature of eq. 10, fixed", part="loss")
    queue_size: int = setting(1440, doc="keys in a queue N_Q", part="loss")
    text_pool: TextPool = setting("eot", doc="pooling of text tokens; avg: the paper's mean of all tokens", paper="avg")
    mask_same_video: bool = setting(False, doc="excludes keys of the same video from the negatives", part="loss")
    inbatch_negatives: bool = setting(
        False, doc="other keys of the batch as negatives, in addition to the queue", part="loss"
    )
    queue_init: Literal["empty", "random"] = setting("empty", doc="initial content of the queues", part="loss")
    queue_across_tasks: Literal["keep", "reset"] = setting(
        "keep", doc="local queue at the start of a task; the global queue is always kept", part="loss"
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use <lr>=0 for the zero-shot model.")
        require(self, "> 0", "tau", hint="The paper uses 0.07.")
        require(self, ">= 1", "queue_size", hint="The paper uses 1440.")
        require(self, "in [0, 1]", "m", hint=MOMENTUM_HINT)


@dataclass(frozen=True, kw_only=True)
class ReviewConfig(MomentumConfig):
    """Settings of the methods that move theta towards its momentum encoders."""

    m_hat: float = setting(0.99, doc="momentum of eq. 12; 1: without review", later=True, part="recipe")
    method_start_task: int = setting(
        2, doc="first task of the method; earlier ones are Base-MoCo, so all rows of table 1 share their first task"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "in [0, 1]", "m_hat", hint=MOMENTUM_HINT)
        require(self, ">= 1", "method_start_task", hint=START_HINT)


class MomentumRetriever(Method):
    """Mean-pooled CLIP trained against the keys of its momentum encoders.

    A method defines its momentum encoders and overrides `after_step`, which ends with
    `enqueue()`. A strategy that wraps one may pass its own queries and keys to `contrast`.
    """

    config: MomentumConfig
    ON_FEATURES = {"method.lr": 1e-3}

    @classmethod
    def capabilities(cls, config: Any) -> Capabilities:
        # Pairs are compared with queues, not with each other
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
        """The existing momentum encoders: local, global."""
        return [momentum for momentum in (self.local, self.global_) if momentum is not None]

    def contrasted(self) -> list[Momentum]:
        """Return the momentum encoders whose keys are in the current task's loss."""
        return self.momenta

    def begin_task(self, task: Task) -> None:
        self.task_index = task.index
        self._new = []
        is_first = task.index == 0
        for momentum in self.momenta:
            if is_first or momentum is self.local:  # theta~_m is initialised only in the first task
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
        """Compute q of the global batch, eq. 7."""
        return self.encoders.pair(batch.frames, batch.tokens)

    def keys(self, batch: Batch) -> list[Pair]:
        """Compute k of the global batch by each of `momenta`, eq. 9 and 15."""
        return [momentum.keys(batch.frames, batch.tokens) for momentum in self.momenta]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        queries, keys, videos = self.queries(batch), self.keys(batch), gather(batch.video_ids)
        if batch.task_ids is not None and world_size() > 1:  # replayed pairs after all others, as with one worker
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
        """Compute eq. 10-11 over `contrasted()`, eq. 16-18 for two. With gradients, `keys` will be enqueued.

        Args:
            queries: (B, d) of the global batch.
            keys: (B, d) for each of `momenta`.
            videos: (B,) video numbers.
            extra: (R, d) for each of `momenta`: keys that are only negatives and are not enqueued.
            extra_videos: (R,) video numbers of `extra`.
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

    def enqueue(self) -> None:
        """Put the keys of the last step into the queues."""
        for keys, videos in self._new:
            for momentum, pair in zip(self.momenta, keys):
                momentum.queue.enqueue(pair, videos)
        self._new = []
