"""CAMoE: matches a caption, its nouns and its verbs with three gated expert features of the frames.

Cheng et al., "Improving Video-Text Retrieval by Multi-Stream Corpus Alignment and Dual Softmax Loss",
arXiv:2109.04290. Equation numbers are the paper's. All of CLIP is fine-tuned with three experts:

    e_F, e_E, e_A   aggregate the frames (three schemes); v_F = sum_i g_i e_i, v_E = e_E, v_A = e_A   (eqs. 2-10)
    s_F, s_E, s_A   caption, its nouns, its verbs, by one text tower (layers/language/sentences.py)   (eq. 1)
    L = sum over the three of v2t + t2v, by cross-entropy or Dual Softmax (layers/losses/dual_softmax.py) (eqs. 11-18)

F is the fusion, E the entity (nouns), A the action (verbs) expert. A caption without nouns is left out of the matching
of nouns, likewise for verbs. The search uses only v_F and s_F, because the fusion row of table 7 equals the full model.
So only training needs a tagger. The paper's is trained; ours has rules (layers/language/tagger.py, with its accuracy).
The authors published only the Dual Softmax's code. Batch size, epochs, temperature and widths of the experts are not
printed (`unpublished` in the config). The method is not continual; on a stream it is fine-tuned task by task.

Shapes: B pairs, T frames, L tokens, d joint embedding, E = 3 experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Capabilities, Method, Override, ParamGroup, SeparableEncoders, l2_normalize
from ctvr.methods.layers.gather import gather, world_size
from ctvr.methods.layers.language.sentences import Keywords, MaskMode, Strategy, encoder
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.losses.dual_softmax import Gain, Reduction, dual_softmax, revise
from ctvr.methods.layers.pooling import frame_sum
from ctvr.methods.layers.transfer import to_device
from ctvr.methods.settings import SettingError, require, setting

STREAMS = ("sentence", "entity", "action")
Stream = Literal["sentence", "entity", "action"]
Scheme = Literal["mean", "se", "attention"]


@dataclass(frozen=True, kw_only=True)
class CAMoEConfig:
    """Settings of CAMoE, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.epochs", "optim.warmup", "data.batch_size")

    sentences: Strategy = setting(
        "muw", doc="rule that turns a caption into an entity and an action sentence, table 5: muw, rkw or akwe"
    )
    mask_mode: MaskMode = setting(
        "attention",
        doc="masking of words by muw. attention: no token attends to them; filler: a filler token replaces them",
        unpublished=True,
    )
    filler: int = setting(0, doc="token id in place of a masked word")
    auxiliaries: bool = setting(False, doc="whether `is` and `can` are verbs; in the paper's fig. 2 they are not")
    streams: Literal["parts", "whole"] = setting(
        "parts", doc="texts of the experts. parts: caption, nouns, verbs; whole: the caption for all (MTAC, table 4)"
    )

    fusion: Scheme = setting("se", doc="weighting of frames for the sentence expert")
    entity: Scheme = setting("attention", doc="weighting of frames for the entity expert")
    action: Scheme = setting("attention", doc="weighting of frames for the action expert")
    gate: Scheme = setting("se", doc="weighting of frames for the gate, AGG of eq. 10")
    gates: Literal["single", "multi"] = setting("single", doc="gated experts. single: sentence; multi: all (table 4)")
    tasks: Literal["three", "sentence"] = setting(
        "three", doc="trained matchings. three: one per expert; sentence: the single task of table 4 (not published)"
    )
    num_frames: int = setting(16, doc="maximum number of frames of a video, for which se and attention have weights")
    se_reduction: int = setting(
        2, doc="divisor of num_frames in the width of se's hidden layer; not published", unpublished=True
    )
    loss: Literal["cross_entropy", "dual_softmax"] = setting(
        "cross_entropy", doc="contrastive loss: cross_entropy (eqs. 11-12) or dual_softmax (eqs. 15-16)"
    )
    temperature: float = setting(
        1000.0,
        doc="temperature of the dual-softmax prior; not published, the default is that of the authors' code",
        unpublished=True,
        part="loss",
    )
    gain: Gain = setting("batch", doc="factor of the prior. batch: batch size, as in the code; one: 1, as in the paper")
    reduction: Reduction = setting("sum", doc="mean or sum of the two directions' losses; eq. 13: sum", part="loss")
    mask_same_video: bool = setting(
        False, doc="whether to exclude other captions of the same video from the negatives", part="loss"
    )
    train_scale: bool = setting(
        False, doc='whether to train the factor l at the towers\' rate, within [1, 200]; paper: "the same as CLIP"'
    )
    search_with: Stream = setting("sentence", doc="expert whose feature ranks videos (table 7)")
    revise: bool = setting(False, doc="whether to apply Dual Softmax over all queries at test time (transductive)")
    test_temperature: float = setting(1.0, doc="temperature of the prior at test time (authors recommend the prior)")

    lr: float = setting(1e-7, doc="learning rate of both towers", part="recipe")
    lr_experts: float = setting(1e-4, doc="learning rate of experts and gate", part="recipe")

    def __post_init__(self) -> None:
        require(self, ">= 1", "num_frames", "se_reduction")
        require(self, "> 0", "temperature", "test_temperature", hint="The authors use 1000, and 1 at test.")
        require(self, ">= 0", "lr", "lr_experts", "filler")


# The paper's "Implementation Details": 16 frames, Adam. Batch size, epochs and warm-up are not printed. Presets of
# tables use batch size 128 and 5 epochs of CLIP4Clip, with which the paper compares
ORIGINAL: dict[str, Any] = {"data.num_frames": 16, "optim.weight_decay": 0.0}


class FrameMean(nn.Module):
    """Aggregation of frames by eq. 2, a sum as printed: (B, T, d) -> (B, d)."""

    def forward(self, x: Tensor) -> Tensor:
        return frame_sum(x)


class SqueezeExcitation(nn.Module):
    """Aggregation of frames by eqs. 3-4, (B, T, d) -> (B, d): a sum, weighted by `scores` in (0, 1)."""

    def __init__(self, num_frames: int, reduction: int) -> None:
        super().__init__()
        hidden = max(1, num_frames // reduction)
        self.num_frames = num_frames
        self.ffn = nn.Sequential(nn.Linear(num_frames, hidden), nn.ReLU(), nn.Linear(hidden, num_frames))

    def scores(self, x: Tensor) -> Tensor:
        """Compute scores (B, T) of frames (B, T, d). We interpret AV of eq. 3 as each frame's mean over d."""
        means = F.pad(x.mean(dim=-1), (0, self.num_frames - x.shape[1]))  # missing frames are zero
        return self.ffn(means).sigmoid()[:, : x.shape[1]]

    def forward(self, x: Tensor) -> Tensor:
        return (self.scores(x)[..., None] * x).sum(dim=1)


class FrameAttention(nn.Module):
    """Aggregation of frames by eqs. 5-6, (B, T, d) -> (B, d): one attention head among frames with positions.

    Eq. 6 ends with one feature for each frame; we chose their mean.
    """

    def __init__(self, width: int, num_frames: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(num_frames, width) * 0.02)  # p; its initial values are ours
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.project(x + self.positions[: x.shape[1]]).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v)).mean(dim=1)


class Gate(nn.Module):
    """Gate of eq. 10: (B, T, d) -> weights (B, E) of the experts, which sum to 1; W_p starts at zero (our choice)."""

    used: Tensor | None = None  # (B, E) weights for the last training videos

    def __init__(self, aggregate: nn.Module, width: int) -> None:
        super().__init__()
        self.aggregate = aggregate
        self.project = nn.Linear(width, len(STREAMS), bias=False)
        nn.init.zeros_(self.project.weight)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.project(self.aggregate(x)).softmax(dim=-1)
        if self.training:
            self.used = gates.detach()
        return gates


class CAMoE(Method):
    """CLIP with three experts (fusion, entity, action) that aggregate the features of frames."""

    Config = CAMoEConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": ORIGINAL,
        "original": ORIGINAL,
        "dsl": Override({"method.loss": "dual_softmax", "method.revise": True}),  # CAMoE+DSL of table 1; transductive
        "dsl-loss": Override({"method.loss": "dual_softmax"}),  # only the training of CAMoE+DSL
        "single-task": Override({"method.tasks": "sentence"}),  # table 4
        "mtac": Override({"method.streams": "whole"}),
        "multi-gate": Override({"method.gates": "multi"}),
        "rkw": Override({"method.sentences": "rkw"}),  # table 5
        "akwe": Override({"method.sentences": "akwe"}),
        **{
            scheme: Override.fromkeys(("method.fusion", "method.entity", "method.action", "method.gate"), scheme)
            for scheme in ("mean", "se", "attention")
        },
        "entity": Override({"method.search_with": "entity"}),  # table 7
        "action": Override({"method.search_with": "action"}),
        # With optim.lr_scale=50, as for clip4clip
        "shapes": {"method.lr": 4e-6, "method.lr_experts": 2e-5, "method.num_frames": 8},
    }

    @classmethod
    def capabilities(cls, config: CAMoEConfig) -> Capabilities:
        return Capabilities(
            uses_all_parameters=True,
            uses_in_batch_negatives=False,  # the method has its own three losses
            rewrites_captions=(config.sentences, config.streams, config.tasks) == ("rkw", "parts", "three"),
            is_transductive=config.revise,
            normalizes_scores=config.revise,
        )

    def __init__(self, config: CAMoEConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.experts = nn.ModuleDict({name: self._aggregation(self._scheme(name)) for name in STREAMS})
        gated = STREAMS if config.gates == "multi" else STREAMS[:1]
        width = backbone.embed_dim
        self._share = 0.0
        self.gates = nn.ModuleDict({name: Gate(self._aggregation(config.gate), width) for name in gated})
        needs_words = config.streams == "parts" and (config.tasks == "three" or config.search_with != "sentence")
        self._keywords = Keywords(backbone, config.auxiliaries) if needs_words else None
        self._encode_part = encoder(config.sentences, config.mask_mode, config.filler)

    def _scheme(self, stream: str) -> Scheme:
        return {"sentence": self.config.fusion, "entity": self.config.entity, "action": self.config.action}[stream]

    def _aggregation(self, scheme: Scheme) -> nn.Module:
        if scheme == "se":
            return SqueezeExcitation(self.config.num_frames, self.config.se_reduction)
        if scheme == "attention":
            return FrameAttention(self.backbone.embed_dim, self.config.num_frames)
        return FrameMean()

    def param_groups(self) -> list[ParamGroup]:
        towers = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        if self.config.train_scale:
            towers.append(self.backbone.logit_scale)
        added = [*self.experts.parameters(), *self.gates.parameters()]
        groups = [
            ParamGroup(name="clip", params=towers, lr=self.config.lr),
            ParamGroup(name="experts", params=added, lr=self.config.lr_experts),
        ]
        return [group for group in groups if group["params"]]

    # ------------------------------------------------------------------------------------------ video

    def views(self, frames: Tensor) -> dict[str, Tensor]:
        """Compute v_F, v_E and v_A (B, d) of eqs. 7-9, not normalized, from frames (B, T, 3, H, W).

        Raises:
            ValueError: if videos have more frames than `num_frames`.
        """
        if frames.shape[1] > self.config.num_frames:
            raise SettingError(
                f"<num_frames>={self.config.num_frames} is less than the {frames.shape[1]} frames of a video",
                f"Set method.num_frames={frames.shape[1]}.",
            )
        x = self._frames(frames)
        return self.mix(x, {name: expert(x) for name, expert in self.experts.items()})

    def _frames(self, frames: Tensor) -> Tensor:
        """Compute frame features (B, T, 3, H, W) -> (B, T, d), not normalized."""
        return self.backbone.vision(frames).float()

    def mix(self, x: Tensor, experts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute v_F, v_E and v_A (B, d) from frame features x (B, T, d) and the experts' e_F, e_E and e_A (B, d).

        A matching with a gate gets the weighted sum of all e, a matching without a gate the e of its expert.
        """
        stacked = torch.stack([experts[name] for name in STREAMS], dim=1)  # (B, E, d)
        gated = {name: (gate(x)[..., None] * stacked).sum(dim=1) for name, gate in self.gates.items()}
        return {**experts, **gated}

    def encode_video(self, frames: Tensor) -> Tensor:
        return l2_normalize(self.views(frames)[self.config.search_with])

    # ------------------------------------------------------------------------------------------- text

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        if self.config.search_with == "sentence" or self._keywords is None:
            return self._sentences(tokens)
        part = self._keywords.find(tokens)[STREAMS.index(self.config.search_with) - 1]
        return self._parts(tokens, to_device(part, tokens.device))

    def _sentences(self, tokens: Tensor) -> Tensor:
        return l2_normalize(self.backbone.text(tokens))

    def _parts(self, tokens: Tensor, words: Tensor) -> Tensor:
        """Compute unit features (B, d) of the words that the mask `words` (B, L) selects in captions (B, L)."""
        return l2_normalize(self._encode_part(self.backbone.text, tokens, words))

    def separable_encoders(self) -> SeparableEncoders | str:
        return SeparableEncoders(self, ("_frames", "_sentences", "_parts"))

    def texts(self, tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return for each part k its unit features s_k (B, d), eq. 1, and which captions have it, (B,) CPU bool."""
        whole = self._sentences(tokens)
        everyone = torch.ones(len(tokens), dtype=torch.bool, device="cpu")
        if self.config.tasks == "sentence":
            return {"sentence": (whole, everyone)}
        if self._keywords is None:
            return dict.fromkeys(STREAMS, (whole, everyone))
        nouns, verbs = self._keywords.find(tokens)
        entity, action = self._parts(tokens.repeat(2, 1), to_device(torch.cat([nouns, verbs]), tokens.device)).chunk(2)
        return {
            "sentence": (whole, everyone),
            "entity": (entity, nouns.any(dim=1)),
            "action": (action, verbs.any(dim=1)),
        }

    # ------------------------------------------------------------------------------------------- loss

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return a scalar loss for each of the three matchings; eq. 13 is their sum."""
        views, texts = self.views(batch.frames), self.texts(batch.tokens)
        videos = gather(batch.video_ids)
        self._share = world_size() / len(videos)  # weight of a row in a mean over workers with different row counts
        terms = {}
        for name, (text, has_part) in texts.items():
            queries, gallery = gather(text), gather(l2_normalize(views[name]))
            kept = to_device(gather(has_part.long()).nonzero()[:, 0], queries.device)  # on the CPU, to avoid a GPU wait
            with torch.autocast(queries.device.type, enabled=False):
                logits = self.scale().float() * queries[kept] @ gallery[kept].mT
                terms[name] = self._matching(logits, videos[kept])
        return terms

    def _matching(self, logits: Tensor, videos: Tensor) -> Tensor:
        config = self.config
        same = videos if config.mask_same_video else None
        if config.loss == "dual_softmax":
            return dual_softmax(logits, config.temperature, config.gain, config.reduction, same)
        return contrastive(logits, config.reduction, same) if len(logits) else logits.sum()

    def batch_metrics(self) -> dict[str, float | Tensor]:
        """Return the mean weight of each expert over the last batch (fig. 7), for each matching that has a gate."""
        found: dict[str, float | Tensor] = {}
        for stream, gate in self.gates.items():
            used, name = getattr(gate, "used", None), "gate" if stream == "sentence" else f"gate_{stream}"
            if used is not None:
                shares = used.sum(dim=0) * self._share
                found |= {f"{name}/{expert}": share for expert, share in zip(STREAMS, shares.unbind())}
        return found

    def normalize_scores(self, scores: Tensor) -> Tensor:
        return self._revise(scores, dim=0)

    def normalize_scores_v2t(self, scores: Tensor) -> Tensor:
        return self._revise(scores, dim=1)

    def _revise(self, scores: Tensor, dim: int) -> Tensor:
        if not self.config.revise:
            return scores
        return revise(self.scale().item() * scores, self.config.test_temperature, dim)

    def after_step(self) -> None:
        with torch.no_grad():
            self.backbone.logit_scale.clamp_(0.0, math.log(200.0))
