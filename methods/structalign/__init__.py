"""StructAlign: frozen CLIP with low-rank adapters, aligned with a simplex of categories.

Wang et al., "StructAlign: Structured Cross-Modal Alignment for Continual Text-to-Video Retrieval",
SIGIR 2026. Equation numbers are the paper's. Where it leaves something open or contradicts itself:

- eq. 2 does not specify the token that the router reads: here the end-of-text token (one row of gates a caption).
- eq. 7's prototypes are "regularised to remain close to the reference": they are P* itself and fixed, or
  learned with the penalty omega ||P - P*||^2 (`prototypes="learned"`).
- eq. 14's sigma is unpublished: here each category's own measured spread.
- eq. 14 draws pseudo features "in the same feature space after g_t and g_v" and says that eq. 13 on them keeps old
  categories in place. But constants drawn after the heads train neither the heads nor fixed prototypes. So we
  draw them at the inputs of the heads (means of the pooled words and frames, not normalised) and map them by the
  current heads to the shared space. `pseudo="shared"` is the literal sentence: a term without a gradient.
  `pseudo="clip"`, the released code: before the heads too, but of unit length, unlike the heads' inputs.
- eq. 17 sums over captions, fig. 3 is "symmetric across modalities": here both directions are averaged.
- Ranks, temperatures, dropout: as in the released code. Ranks 64 and 32 give the printed 33.9 M.

The released code differs in most modules; the preset `released` follows it (except its defects).

Shapes: B pairs, N words, T frames (the paper's M), L text length, d joint embedding, C categories.
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

Features = tuple[Tensor, Tensor]  # words (B, N, d) with zero rows as pads, frames (B, T, d)


class StructAlign(Method):
    """Frozen CLIP whose words and frames are aligned with one simplex of categories."""

    Config = StructAlignConfig
    ON_FEATURES = dict.fromkeys(("method.lr_first", "method.lr", "method.lr_other"), 1e-3)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = PRESETS

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
            score_caveat="" if is_final else "score=fused is known for a whole gallery only. Write base.score=words",
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
        self._weight = torch.tensor(c.lambda1)  # of the last L_ETF
        self._geometry = torch.zeros(4)  # of the last batch, as `batch_metrics` names it

    # --------------------------------------------------------------------------------------- tasks

    def begin_task(self, task: Task) -> None:
        self.index = task.index
        if task.index > 0 and self.config.teacher == "previous":  # theta_{k-1} of eq. 16
            self.teacher = Frozen(self.adapters)
        self._former_videos = VideoFeatureCache()  # by theta_{k-1}, which a task does not change
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
        """Store the statistics of this task's categories (below eq. 13)."""
        self.statistics.observe((self._observed(batch) for batch in loader), normalise=self.config.pseudo == "shared")
        self.adapters.end_task(task.index)

    def _observed(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return categories (B,), features (2, B, d) where pseudo features are drawn, and aligned features."""
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
        """Compute eq. 1: (B, N, d), not normalised, zero rows as pads."""
        return words_and_caption(self.backbone.text, tokens, seams, self.config.pads_are_words)[0]

    def _frames(self, frames: Tensor) -> Tensor:
        """Compute eqs. 4-5: (B, T, d), not normalised."""
        return self.backbone.vision(frames, self.adapters.vision_seams())

    def separable_encoders(self) -> SeparableEncoders | str:
        return SeparableEncoders(self, ("_words", "_frames", "encode_text"))

    def encode_video(self, frames: Tensor) -> Tensor:
        """Compute unit frame features, (B, T, 3, H, W) -> (B, T, d)."""
        return l2_normalize(self._frames(frames))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Compute unit word features (B, L) -> (B, N, d), zero rows as pads; `fused` puts the caption's own first."""
        seams = self.adapters.text_seams(self.index if task is None else task)
        words, caption = words_and_caption(self.backbone.text, tokens, seams, self.config.pads_are_words)
        return (
            torch.cat([l2_normalize(caption)[:, None], l2_normalize(words)], dim=1)
            if self.config.score == "fused"
            else l2_normalize(words)
        )

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Compute eq. 6: (Q, N, d) and (V, T, d) -> (Q, V). `fused`: (Q, V, 2), for `normalize_scores` to join."""
        if self.config.score == "words":
            return frame_word_similarity(queries, gallery)
        whole = queries[:, 0].float() @ mean_of(gallery.float()).mT
        return torch.stack([frame_word_similarity(queries[:, 1:], gallery), whole], dim=-1)

    def normalize_scores(self, scores: Tensor) -> Tensor:
        """Average both columns' z-scores over a query's whole row if `fused`, so over all stored videos."""
        return scores if self.config.score == "words" else mean_z_score(scores)

    # -------------------------------------------------------------------------------------- losses

    def scale(self) -> Tensor:
        if self.config.tau is None:
            return self.backbone.logit_scale.exp()
        return torch.full((), 1 / self.config.tau, device=self.prototypes.order.device)

    def _logits(self, similarity: Tensor) -> Tensor:
        """Compute sim / tau of eqs. 19-20."""
        return similarity * self.scale() / (len(similarity) ** 0.5 if self.config.divide_by_batch else 1.0)

    def _features(self, batch: Batch) -> Features:
        words = self.encode_own_captions(
            batch, lambda x, task=self.index: self._words(x, self.adapters.text_seams(task))
        )
        return gather(words), gather(self._frames(batch.frames))

    def logits(self, batch: Batch) -> Tensor:
        return self._logits(frame_word_similarity(*self._features(batch)))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of eq. 18."""
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
        """Compute eq. 16: similarities (B, B) under the previous model, or under zero-shot CLIP."""
        former = None if self.teacher is None else self.teacher.module
        seams = (lambda _: None) if former is None else former.text_seams
        with torch.no_grad():
            words = self.encode_own_captions(
                batch, lambda x, task=self.index: self._words(x, seams(min(task, self.index - 1)))
            )
            encode = partial(self.backbone.vision, seams=former and former.vision_seams())
            return frame_word_similarity(gather(words), gather(self._former_videos.of(batch, encode)))

    def _relations(self, now: Tensor, before: Tensor) -> Tensor:
        """Compute L_CRP, eq. 17: zero, with zero gradient, where `now` equals `before`."""
        tau2, temperature = self.config.tau2, 1.0
        if self.config.crp_on == "logits":
            now, before, temperature = self._logits(now), self._logits(before), tau2
        else:
            now, before = now / tau2, before / tau2
        if self.config.crp_rows == "text":
            return distillation(now, before, temperature)
        return symmetric_distillation(now, before, temperature) / 2

    def _aligned(self, words: Tensor, frames: Tensor, p: Tensor) -> Features:
        """Pool words and frames towards the prototypes p (B, d) of their categories, both (B, d): eqs. 10-12."""
        everything = torch.ones(frames.shape[:2], dtype=torch.bool, device=frames.device)
        return pool_towards(self.g_text(words), is_word(words), p), pool_towards(self.g_video(frames), everything, p)

    def _pseudo_misalignment(self, count: int) -> Tensor:
        """Compute eq. 13 for `count` pairs drawn around former categories (eq. 14)."""
        categories, text, video = self.statistics.draw(count, self.config.sigma)
        if self.config.pseudo != "shared":
            for_text, for_video = (self.g_text, self.g_video)[:: -1 if self.config.swap_heads else 1]
            text, video = for_text(text), for_video(video)
        return misalignment(text, video, self.prototypes.of(categories))

    def _pseudo_contrast(self, words: Tensor, frames: Tensor) -> Tensor:
        """Compute the released code's extra term over pooled real pairs and as many pseudo pairs, without sqrt(B)."""
        _, text, video = self.statistics.draw(len(words), self.config.sigma)
        texts = torch.cat([mean_of(words, is_word(words)), text])
        videos = torch.cat([mean_of(frames), video])
        return contrastive(self.scale() * texts @ videos.mT, "sum")

    def task_metrics(self) -> dict[str, float]:
        """Report (P1)-(P3) of section 4.1 over the categories so far, and the last weight of L_ETF."""
        return {"etf_weight": float(self._weight), **self.statistics.geometry()}

    def similarities(self) -> dict[str, Tensor]:
        """Return fig. 7: cosines among prototypes P* and among centred means of texts and videos (eq. 9), (n, n)."""
        if len(self.statistics) < 2:
            return {}
        p = self.prototypes.reference[self.prototypes.indices(self.statistics.categories)]
        text, video = self.statistics.similarities()
        return {"ideal prototypes": p @ p.mT, "mean texts": text, "mean videos": video}

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Report eq. 22 (fig. 8) and |epsilon| of eq. 9 for the aligned texts and videos of the last batch.

        It also reports the usage of the text adapters' experts.
        """
        names = ("micd_text", "micd_video", "angle_text", "angle_video")
        return {**dict(zip(names, self._geometry.unbind())), **usage(self.adapters)}
