"""StructAlign: frozen CLIP with low-rank adapters; word and frame features are aligned with a simplex of categories.

Wang et al., "StructAlign: Structured Cross-Modal Alignment for Continual Text-to-Video Retrieval", SIGIR 2026. Equation
numbers refer to the paper. Where it is incomplete or contradicts itself, our choices are:

- Eq. 2 does not specify which token the router reads. Here it reads the end-of-text token, once for each caption.
- The prototypes of eq. 7 are "regularized to remain close to the reference". Here they are fixed to the reference P*,
  or learned with the penalty omega ||P - P*||^2 (`prototypes="learned"`).
- sigma of eq. 14 is not published. Here it is the measured standard deviation of each category.
- Eq. 14 samples pseudo features "in the same feature space after g_t and g_v", and eq. 13 on these should prevent old
  categories from moving. But constants sampled after the heads g_t and g_v train neither the heads nor fixed
  prototypes. So we sample inputs of the heads (means of words and of frames, not normalized), and map them by the
  current heads. `pseudo="shared"` follows the paper literally; its loss has no gradient. `pseudo="clip"` follows the
  released code, which also samples before the heads, but normalizes the samples; real inputs are not normalized.
- Eq. 17 sums over captions, but fig. 3 is "symmetric across modalities". Here both directions are averaged.
- Ranks, temperatures and dropout are from the released code. Ranks 64 and 32 give the printed 33.9 M parameters.

The released code differs from the paper in most modules. Preset `released` follows the code, except its defects.

Shapes: B pairs, N words, T frames (M in the paper), L text length, Q captions, V videos, d joint embedding, n
categories so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip, Seams
from ctvr.methods.base import Batch, Capabilities, Frozen, Method, ParamGroup, SeparableEncoders, Task, l2_normalize
from ctvr.methods.layers.expert_usage import usage
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.contrastive import contrastive, distillation
from ctvr.methods.layers.losses.distillation import symmetric_distillation
from ctvr.methods.layers.losses.etf import CategoryPrototypes, make_head, misalignment
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.methods.layers.replay.cache import VideoFeatureCache
from ctvr.methods.layers.replay.statistics import ClassStatistics, geometry
from ctvr.methods.layers.word_features import (
    frame_word_similarity,
    is_word,
    mean_of,
    mean_z_score,
    pool_towards,
    words_and_caption,
)
from ctvr.methods.structalign.adapters import TaskAwareAdapters, make_adapters
from ctvr.methods.structalign.config import StructAlignConfig
from ctvr.methods.structalign.recipes import PRESETS

Features = tuple[Tensor, Tensor]  # words (B, N, d), padded with zero rows, and frames (B, T, d)


class StructAlign(Method):
    """Frozen CLIP with adapters; word and frame features are aligned with a simplex of category prototypes."""

    Config = StructAlignConfig
    ON_FEATURES = dict.fromkeys(("method.lr_first", "method.lr", "method.lr_other"), 1e-3)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    EPOCH_STATE = ("_former_videos", "_weight")

    @classmethod
    def capabilities(cls, config: StructAlignConfig) -> Capabilities:
        is_final = config.score == "words"
        return Capabilities(
            fits_vectors=config.reducer.name == "none" and not config.pads_are_words,
            required_num_frames=config.reducer.required_num_frames,
            uses_all_parameters=True,
            task_conditioned_text=config.adapters == "task_aware",
            attends_to_padding=config.pads_are_words,
            several_text_vectors=True,
            normalizes_scores=not is_final,
            score_caveat="" if is_final else "score=fused needs a complete gallery. Set base.score=words",
        )

    def __init__(self, config: StructAlignConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        c, d = config, backbone.embed_dim
        text = (c.num_experts, c.top_k, c.text_rank, c.text_alpha, c.text_dropout)
        reducer = make_reducer(c.reducer, backbone.vision)
        vision = (c.vision_rank, c.vision_alpha)
        self.adapters = make_adapters(c.adapters, backbone, text, vision, c.fusion_layers, reducer)
        if isinstance(self.adapters, TaskAwareAdapters) and c.reducer.name == "none":
            self.frozen_blocks = self.adapters.first
        self.g_text, self.g_video = make_head(d, c.heads), make_head(d, c.heads)
        self.prototypes = CategoryPrototypes(d, c.etf_frame, c.prototypes == "learned", c.etf_num_classes)
        self.statistics = ClassStatistics()
        self.teacher: Frozen | None = None
        self.index = 0
        self._weight = torch.tensor(c.lambda1)  # weight of L_ETF in the last step
        self._geometry = torch.zeros(4)  # metrics of the last batch, in the order of `batch_metrics`

    # --------------------------------------------------------------------------------------- tasks

    def begin_task(self, task: Task) -> None:
        self.index = task.index
        if task.index > 0 and self.config.teacher == "previous":  # theta_{k-1} of eq. 16
            self.teacher = Frozen(self.adapters)
        self._former_videos = VideoFeatureCache()  # features by theta_{k-1}, which is fixed during a task
        self.adapters.begin_task(task.index)
        self.prototypes.begin(task.name, task.categories, task.num_categories)

    def param_groups(self) -> list[ParamGroup]:
        c, is_first = self.config, self.index == 0
        groups = self.adapters.groups(self.index)
        if c.heads == "mlp":
            groups["heads"] = [*self.g_text.parameters(), *self.g_video.parameters()]
        if self.prototypes.learned is not None:
            groups["other"] = [*groups.get("other", []), self.prototypes.learned]
        rates = {name: c.lr_first if is_first else c.lr_other if name == "other" else c.lr for name in groups}
        return [ParamGroup(name=name, params=params, lr=rates[name]) for name, params in groups.items()]

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Store the feature statistics of the task's categories, from which eq. 14 samples pseudo features."""
        self.statistics.observe((self._observed(batch) for batch in loader), normalise=self.config.pseudo == "shared")
        self.adapters.end_task(task.index)

    def _observed(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return categories (B,), features (2, B, d) for the statistics of eq. 14, and aligned features (2, B, d)."""
        words = self._words(batch.tokens, self.adapters.text_seams(None)).float()
        frames = self._frames(batch.frames).float()
        aligned = l2_normalize(torch.stack(self._aligned(words, frames, self.prototypes.of(batch.categories))))
        if self.config.pseudo == "shared":
            return batch.categories, aligned, aligned
        is_unit = self.config.pseudo == "clip"
        pooled = mean_of(words, is_word(words), is_unit), mean_of(frames, is_unit=is_unit)
        return batch.categories, torch.stack(pooled), aligned

    # ------------------------------------------------------------------------------------ encoding

    def _words(self, tokens: Tensor, seams: Seams | None) -> Tensor:
        """Compute the word features of eq. 1: (B, N, d), not normalized, padded with zero rows."""
        return words_and_caption(self.backbone.text, tokens, seams, self.config.pads_are_words)[0]

    def _frames(self, frames: Tensor) -> Tensor:
        """Compute the frame features of eqs. 4-5: (B, T, d), not normalized."""
        return self.backbone.vision(frames, self.adapters.vision_seams())

    def separable_encoders(self) -> SeparableEncoders | str:
        return SeparableEncoders(self, ("_words", "_frames", "encode_text"))

    def encode_video(self, frames: Tensor) -> Tensor:
        """Compute unit features of each frame, (B, T, 3, H, W) -> (B, T, d)."""
        return l2_normalize(self._frames(frames))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Compute unit features of each word, padded with zero rows: (B, L) -> (B, N, d).

        With score=fused the feature of the end-of-text token precedes the words: (B, 1 + N, d).
        """
        seams = self.adapters.text_seams(self.index if task is None else task)
        words, caption = words_and_caption(self.backbone.text, tokens, seams, self.config.pads_are_words)
        return (
            torch.cat([l2_normalize(caption)[:, None], l2_normalize(words)], dim=1)
            if self.config.score == "fused"
            else l2_normalize(words)
        )

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Compute the similarities (Q, V) of eq. 6 between captions (Q, N, d) and videos (V, T, d).

        With score=fused the result is (Q, V, 2): eq. 6, and the cosine of the end-of-text and the mean frame feature.
        """
        if self.config.score == "words":
            return frame_word_similarity(queries, gallery)
        whole = queries[:, 0].float() @ mean_of(gallery.float()).mT
        return torch.stack([frame_word_similarity(queries[:, 1:], gallery), whole], dim=-1)

    def normalize_scores(self, scores: Tensor) -> Tensor:
        """Return scores (Q, V), unchanged or, with score=fused, the mean of two z-scores over all stored videos."""
        return scores if self.config.score == "words" else mean_z_score(scores)

    # -------------------------------------------------------------------------------------- losses

    def scale(self) -> Tensor:
        if self.config.tau is None:
            return self.backbone.logit_scale.exp()
        return torch.full((), 1 / self.config.tau, device=self.prototypes.order.device)

    def _logits(self, similarity: Tensor) -> Tensor:
        """Compute the logits sim / tau of eqs. 19-20."""
        return similarity * self.scale() / (len(similarity) ** 0.5 if self.config.divide_by_batch else 1.0)

    def _features(self, batch: Batch) -> Features:
        words = self.encode_own_captions(
            batch, lambda x, task=self.index: self._words(x, self.adapters.text_seams(task))
        )
        return gather(words), gather(self._frames(batch.frames))

    def logits(self, batch: Batch) -> Tensor:
        return self._logits(frame_word_similarity(*self._features(batch)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss of eq. 18, weighted, by name."""
        words, frames = self._features(batch)
        before = self._former_similarity(batch) if self.index > 0 else None
        with torch.autocast(words.device.type, enabled=False):
            return self._terms(words.float(), frames.float(), gather(batch.categories), before)

    def _terms(self, words: Tensor, frames: Tensor, categories: Tensor, before: Tensor | None) -> dict[str, Tensor]:
        c = self.config
        similarity = frame_word_similarity(words, frames)  # (B, B) captions x videos, eq. 15
        terms = {"contrastive": contrastive(self._logits(similarity), c.loss_reduction)}  # eqs. 19-21
        if before is not None:
            terms["crp"] = c.lambda2 * self._relations(similarity, before)
        if before is not None and len(self.statistics) and c.pair_weight:
            terms["pairs"] = c.pair_weight * self._pseudo_contrast(words, frames)
        p = self.prototypes.of(categories)
        aligned = self._aligned(words, frames, p)
        self._geometry = geometry(aligned, categories)
        alignment = {"etf": misalignment(*aligned, p)}  # eqs. 10-13
        if before is not None and len(self.statistics):
            alignment["etf_pseudo"] = self._pseudo_misalignment(c.pseudo_per_pair * len(words))
        weight = torch.full_like(terms["contrastive"].detach(), c.lambda1)
        if c.lambda1_is == "share":
            base = terms["contrastive"].detach() + (terms["crp"].detach() if before is not None else 0.0)
            weight = c.lambda1 * base / torch.stack(list(alignment.values())).sum().detach()
        terms |= {name: weight * term for name, term in alignment.items()}
        if torch.is_grad_enabled():
            self._weight = weight
        if self.prototypes.learned is not None:
            terms["prototypes"] = c.prototype_weight * self.prototypes.penalty()
        return terms

    def _former_similarity(self, batch: Batch) -> Tensor:
        """Compute similarities (B, B) of eq. 16 by the previous model, or by zero-shot CLIP if there is no teacher."""
        former = None if self.teacher is None else self.teacher.module
        seams = (lambda _: None) if former is None else former.text_seams
        with torch.no_grad():
            words = self.encode_own_captions(
                batch, lambda x, task=self.index: self._words(x, seams(min(task, self.index - 1)))
            )
            encode = partial(self.backbone.vision, seams=former and former.vision_seams())
            return frame_word_similarity(gather(words), gather(self._former_videos.of(batch, encode)))

    def _relations(self, now: Tensor, before: Tensor) -> Tensor:
        """Compute L_CRP, eq. 17, a scalar, from similarities (B, B) by the current model and by the previous model."""
        tau2, temperature = self.config.tau2, 1.0
        if self.config.crp_on == "logits":
            now, before, temperature = self._logits(now), self._logits(before), tau2
        else:
            now, before = now / tau2, before / tau2
        if self.config.crp_rows == "text":
            return distillation(now, before, temperature)
        return symmetric_distillation(now, before, temperature) / 2

    def _aligned(self, words: Tensor, frames: Tensor, p: Tensor) -> Features:
        """Pool words and frames by attention to the prototypes p (B, d) of their categories, eqs. 10-12.

        Returns two tensors (B, d), one for texts and one for videos.
        """
        everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        return pool_towards(self.g_text(words), is_word(words), p), pool_towards(self.g_video(frames), everything, p)

    def _pseudo_misalignment(self, count: int) -> Tensor:
        """Compute eq. 13, a scalar, for `count` pseudo pairs, sampled by eq. 14, of categories of previous tasks."""
        categories, text, video = self.statistics.draw(count, self.config.sigma)
        if self.config.pseudo != "shared":
            for_text, for_video = (self.g_text, self.g_video)[:: -1 if self.config.swap_heads else 1]
            text, video = for_text(text), for_video(video)
        return misalignment(text, video, self.prototypes.of(categories))

    def _pseudo_contrast(self, words: Tensor, frames: Tensor) -> Tensor:
        """Compute the additional contrastive loss of the released code over B pooled real pairs and B pseudo pairs.

        Similarities are not divided by sqrt(B) in this loss.
        """
        _, text, video = self.statistics.draw(len(words), self.config.sigma)
        texts = torch.cat([mean_of(words, is_word(words)), text])
        videos = torch.cat([mean_of(frames), video])
        return contrastive(self.scale() * texts @ videos.mT, "sum")

    def task_metrics(self) -> dict[str, float]:
        """Return measures of (P1)-(P3), section 4.1, of the categories so far, and L_ETF's weight in the last step."""
        return {"etf_weight": float(self._weight), **self.statistics.geometry()}

    def similarities(self) -> dict[str, Tensor]:
        """Return the three matrices (n, n) of cosines of fig. 7: among prototypes P*, mean texts, and mean videos.

        The result is empty for fewer than two categories.
        """
        if len(self.statistics) < 2:
            return {}
        p = self.prototypes.reference[self.prototypes.indices(self.statistics.categories)]
        text, video = self.statistics.similarities()
        return {"ideal prototypes": p @ p.mT, "mean texts": text, "mean videos": video}

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Return statistics of the last batch: eq. 22 (fig. 8), |epsilon| of eq. 9, and the usage of text experts.

        Those of eq. 22 and 9 are computed from aligned texts and from aligned videos.
        """
        names = ("micd_text", "micd_video", "angle_text", "angle_video")
        return {**dict(zip(names, self._geometry.unbind())), **usage(self.adapters)}
