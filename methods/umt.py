"""UMT: compares captions and videos by their features, then re-ranks the best pairs with fusion layers.

Li et al., "Unmasked Teacher: Towards Training-Efficient Video Foundation Models", arXiv:2303.16058, as its authors'
code fine-tunes it for retrieval; rows UMT and UMT4Clip of TempMe (arXiv:2409.01156, table 6). The towers are in
methods/backbone/umt.py and bert.py, the losses in methods/layers/losses/matching.py:

    s = mean over frames of cos(W_v pooled_t, W_t [CLS]);  loss = VTC(s / temp) + VTM, temp learns within [0.001, 0.5]
    the `rerank` best videos of a caption by s are ordered by logit 1 of the head on the fused [CLS]; others get -100
    the `rerank` best captions of a video are ordered likewise, in a separate pass

VTC is the contrastive loss, VTM the matching loss. All weights are trained. `attends=frame` is UMT4Clip, whose tokens a
`reducer` can merge. A merging schedule with TempMe's 111.5 GMACs is not published; ours is the schedule of TempMe's
other B/16 towers, with 120.3 GMACs.

For UMT's own towers, set `backbone.name=UMT-B-16` (or UMT-L-16), `backbone.weights=FILE` to the authors' checkpoint
(with `backbone.sha256` for a pickle) and `backbone.vocabulary=vocab.txt` to the vocabulary of bert-base-uncased.

Differences: with a CLIP backbone, both towers have CLIP's sizes and tokenizer, but random weights. Negatives are
sampled among the pairs of all workers, and every encoder gets the whole gradient, so the result does not depend on the
number of workers. In the release, a worker samples among its own pairs, and the gradient of VTC is divided by the
number of workers. Dropout and stochastic depth are omitted. An evaluation computes the fusion layers for every pair and
then selects the `rerank` best; ranks are equal, at a higher cost.

Shapes: B pairs, Q captions, V videos, L words, N tokens of a video, D width of the text, E width of the tokens, d joint
embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.umt import Umt, UmtVision, like
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, Recipe, Task, l2_normalize
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.matching import matching, negative_weights, shared_contrastive
from ctvr.methods.layers.pooling import frame_mean
from ctvr.methods.layers.reduction.config import REDUCERS, ReducerConfig
from ctvr.methods.layers.reduction.reducers import make_reducer
from ctvr.methods.layers.transfer import to_device, truncate
from ctvr.methods.settings import SettingError, group, require, setting

_RETRIEVAL = "recipe file of MSR-VTT (9k), B/16-25M"
OUT = -100.0  # the score of a pair that is not among the best
# batch size, epochs and decay for MSR-VTT with our optimizer's other defaults; preset `original` is the whole recipe
PAPER = {
    "optim.name": "adamw",
    "optim.weight_decay": 0.02,
    "optim.epochs": 10,
    "optim.warmup": 0.1,
    "optim.grad_clip": None,
    "data.batch_size": 256,
    "data.num_frames": 12,
    "data.augment": "crop_flip",
}


def original(lr: float, epochs: int, warmup: float, words: dict[str, tuple[int, str]], config: str) -> Recipe:
    """Build the authors' recipe for B/16, whose optimizer is the same for retrieval and question answering.

    Args:
        lr: learning rate.
        epochs: number of epochs.
        warmup: share of the steps in the warm-up.
        words: setting -> (value, source), for the settings that differ between both tasks, such as text lengths.
        config: name of the authors' configuration, the source of the other values.
    """
    return Recipe(
        "OpenGVLab/unmasked_teacher@4fb4049f",
        {
            "method.lr": (lr, config),
            **words,
            "optim.name": ("adamw", config),
            "optim.betas": ((0.9, 0.999), config),
            "optim.eps": (1e-8, "torch's default"),
            "optim.weight_decay": (0.02, config),
            "optim.decay_parameters": (
                "no_vectors",
                "optimizer.py: vectors and biases do not decay, the temperature does",
            ),
            "optim.grad_clip": (None, config),
            "optim.epochs": (epochs, config),
            "optim.warmup": (warmup, f"{config}: one epoch"),
            "optim.warmup_from": ("zero", "scheduler.py"),
            "optim.schedule": ("cosine", "scheduler.py: half a cosine"),
            "optim.least": (0.01, "scheduler.py: min_lr_multi"),
            "data.batch_size": (256, f"{config}: 32 on each of 8 GPUs"),
            "data.num_frames": (12, config),
            "data.sampling": ("random", f"{config}: one random frame of each interval in training, the middle at test"),
            "data.augment": ("crop_flip", config),
        },
        (
            "stochastic depth 0.2 and dropout 0.1 of BERT",
            "half precision: precision=bf16",
            "the random frame of an interval is never its last one there",
            "the gradient of the contrastive loss is divided by the number of workers there",
            "the best epoch is chosen by the test videos",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class UmtConfig:
    """Settings of UMT, with ranges in search_spaces/."""

    lr: float = setting(1e-5, doc="learning rate of all weights", part="recipe")
    rerank: int = setting(
        128,
        doc="number of candidates that are re-ranked for each caption and each video; 0: no re-ranking, only the "
        "similarity s ranks",
    )
    hard_negatives: bool = setting(
        True,
        doc="whether to sample negatives with probabilities that depend on similarity, instead of equal probabilities",
        part="loss",
    )
    attends: Literal["video", "frame"] = setting(
        "video",
        doc="tokens to which a patch attends. video: all tokens of the video; frame: the tokens of its frame "
        "(UMT4Clip)",
    )
    reducer: ReducerConfig = group(
        {name: REDUCERS[name] for name in UmtVision.reducers},
        "none",
        doc="token reduction in the vision tower, with attends=frame",
    )
    num_words: int = setting(32, doc="maximum number of tokens of a caption, including [CLS]")

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr")
        require(self, ">= 0", "rerank", hint="Use 0 to rank by s alone.")
        require(self, ">= 2", "num_words", hint="The paper has 32.")
        if self.attends == "video" and self.reducer.name != "none":
            raise SettingError(
                f"<reducer.name>={self.reducer.name} merges tokens within frames", write="<attends>=frame"
            )


class UMT(Method):
    """UMT for retrieval: two towers, and fusion layers that re-rank the best pairs; all weights are trained."""

    Config = UmtConfig
    PRESETS = {
        "paper": PAPER,
        "original": original(
            1e-5, 10, 0.1, {"method.num_words": (32, _RETRIEVAL), "method.rerank": (128, _RETRIEVAL)}, _RETRIEVAL
        ),
        "shapes": {"method.lr": 2e-5},  # with optim.lr_scale=50: 1e-3, which suits the small backbone
        "umt4clip": Override({"method.attends": "frame"}),
        "umt4clip-tempme": Override({"method.attends": "frame", "method.reducer.name": "tempme"}),
    }
    EPOCH_STATE = ("seed",)

    def __init__(self, config: UmtConfig, backbone: Clip) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone if isinstance(backbone, Umt) else like(backbone)
        if self.backbone.only_answers:
            raise ValueError(
                "backbone.weights: this question-answering checkpoint lacks the retrieval heads. Use a pre-training or "
                "retrieval checkpoint, or method=umt_qa."
            )
        self.backbone.vision.attends = config.attends
        self.reducer = make_reducer(config.reducer, self.backbone.vision)
        self.seed = 0  # seed of the next negatives, equal on all workers and in a resumed run

    @classmethod
    def capabilities(cls, config: UmtConfig) -> Capabilities:
        caveat = "umt orders the best pairs of a complete matrix by another score. Set base.rerank=0"
        return Capabilities(
            backbone_agnostic=True,
            needs_umt=True,
            fits_vectors=False,
            required_num_frames=config.reducer.required_num_frames,
            uses_all_parameters=True,
            accumulation="features",
            several_text_vectors=True,
            normalizes_scores=config.rerank > 0,
            score_caveat=caveat if config.rerank else "",
        )

    def begin_task(self, task: Task) -> None:
        self.seed = (task.index + 1) << 32

    def param_groups(self) -> list[ParamGroup]:
        own = [*self.backbone.parameters(), *self.reducer.parameters()]
        return [ParamGroup(name="umt", params=own, lr=self.config.lr)]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode videos: (B, T, 3, H, W) -> (B, 1 + N, max(d, E)), the mean of unit frame embeddings and all tokens."""
        tokens, pooled, _ = self.backbone.vision.tokens(frames, self.reducer.seams())
        mean = frame_mean(l2_normalize(self.backbone.vision.proj(pooled)))
        return _stack(mean[:, None], tokens)

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Encode captions: (B, L) -> (B, 1 + L, max(d, D + 1)), the unit embedding of [CLS], then words with mask."""
        most = min(self.config.num_words, self.backbone.text.bert.context_length)
        ids = self.backbone.text.without_end(truncate(tokens, most + 1))[:, :most]
        ids = F.pad(ids, (0, most - ids.shape[1]))
        words, feature = self.backbone.text.read(ids)
        return _stack(l2_normalize(feature)[:, None], torch.cat([words, (ids != 0)[..., None].to(words)], dim=-1))

    def _cosines(self, queries: Tensor, gallery: Tensor) -> Tensor:
        width = self.backbone.vision.embed_dim
        return queries[:, 0, :width] @ gallery[:, 0, :width].mT

    def _words(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the word features (Q, L, D) in encoded captions and their mask (Q, L), 0 at padding."""
        width = self.backbone.text.bert.width
        return queries[:, 1:, :width], (queries[:, 1:, width] > 0.5).long()

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Compute s (Q, V) of captions and videos; with `rerank` above 0, s and the matching logit (Q, V, 2).

        The fusion layers' keys and values are computed once per video.
        """
        similar = self._cosines(queries, gallery)
        if not self.config.rerank:
            return similar
        words, there = self._words(queries)
        logits = []
        for video in gallery[:, 1:, : self.backbone.vision.width].split(1):
            logits.append(self.backbone.match(words, there, self.backbone.text.bert.memory(video))[:, 1])
        return torch.stack([similar, torch.stack(logits, dim=1).to(similar)], dim=-1)

    def normalize_scores(self, scores: Tensor) -> Tensor:
        return self._select_best(scores, 1)

    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        return self._select_best(scores, 0)

    def _select_best(self, scores: Tensor, dim: int) -> Tensor:
        """Return (Q, V): matching logits of the `rerank` best pairs by s along `dim`, `OUT` for all others.

        If `rerank` is 0, the scores are returned unchanged.
        """
        if not self.config.rerank:
            return scores
        similar, logits = scores.unbind(dim=-1)
        best = similar.topk(min(self.config.rerank, similar.shape[dim]), dim=dim).indices
        return torch.full_like(logits, OUT).scatter(dim, best, logits.gather(dim, best))

    def scale(self) -> Tensor:
        return 1 / self.backbone.temp

    def logits(self, batch: Batch) -> Tensor:
        """Compute s / temp (B, B) over the pairs of all workers."""
        return self._compare(gather(self.encode_text(batch.tokens)), gather(self.encode_video(batch.frames)))

    def _compare(self, queries: Tensor, videos: Tensor) -> Tensor:
        with torch.autocast(videos.device.type, enabled=False):
            return self.scale().float() * self._cosines(queries.float(), videos.float())

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        queries, videos = gather(self.encode_own_captions(batch)), gather(self.encode_video(batch.frames))
        numbers = gather(batch.video_ids)
        similar = self._compare(queries, videos)
        terms = {"contrastive": shared_contrastive(similar, numbers)}
        hard = self.config.hard_negatives
        wrong_video = self._draw(negative_weights(similar, numbers, hard))
        wrong_text = self._draw(negative_weights(similar.mT, numbers, hard))
        rows = torch.arange(len(queries), device=queries.device)
        words, there = self._words(queries[torch.cat([rows, rows, wrong_text])])
        shown = torch.cat([rows, wrong_video, rows])
        memory = self.backbone.text.bert.memory(videos[:, 1:, : self.backbone.vision.width])
        chosen = [(keys[shown], values[shown]) for keys, values in memory]
        logits = self.backbone.match(words, there, chosen).float()
        return {**terms, "matching": matching(logits)}

    def _draw(self, weights: Tensor) -> Tensor:
        """Sample a column index (B,) for each row of weights (B, B), in proportion to them, without a GPU wait."""
        generator = torch.Generator().manual_seed(self.seed)
        self.seed += torch.is_grad_enabled()
        noise = torch.empty(weights.shape).exponential_(generator=generator)
        return (weights / to_device(noise, weights.device)).argmax(dim=1)

    def after_step(self) -> None:
        with torch.no_grad():
            self.backbone.temp.clamp_(0.001, 0.5)


def _stack(first: Tensor, others: Tensor) -> Tensor:
    """Concatenate rows (B, 1, a) and (B, N, b) to (B, 1 + N, max(a, b)); the narrower rows are padded with zeros."""
    width = max(first.shape[-1], others.shape[-1])
    return torch.cat([F.pad(x.float(), (0, width - x.shape[-1])) for x in (first, others)], dim=1)
