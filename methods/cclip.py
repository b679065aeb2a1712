"""C-CLIP: low-rank adapters, merged at half strength after every task, and a contrastive loss to the previous model.

Liu, Zhu, Wei, Tian, "C-CLIP: Multimodal Continual Learning for Vision-Language Model", ICLR 2025. For a batch with
pooled features v of videos and c of captions, h the projector and * the model before the task:

    L = L_CLIP + weight L_CKC                                         L_CKC from the second task on
    L_CLIP = InfoNCE(s unit(c) unit(v)^T),  s learned                 eq. 6
    L_CKC  = InfoNCE(H Z^T / T),  H = unit[h(v); h(c)],  Z = unit[v*; c*]     eq. 5, 2B rows against 2B
    after a task:  W <- W + merge (alpha / r) B A                     eq. 2, and new adapters for the next task

Neither the authors' code nor the paper's text was available. Equations and recipe are those of two re-implementations,
KoyoImai/C-CLIP and ryder2003/C-CLIP_DynamicRank, and of summaries. Where these differ or are silent, our choices are:

- Eq. 5 stacks images and captions as rows (three of five sources). `rows="joined"` concatenates their features instead.
- The projector has two layers and no batch normalization, because its statistics would differ between workers.
- The token embedding is trained: adapters and embedding have 29.2 M parameters, and the paper's table 6 prints 29.1 M.
  It is exempt from weight decay, which would also change the embeddings of words that do not occur in a task.
- Before the end of a task, an evaluation (`evaluation.select=best`) multiplies the adapters by `merge`, as in the
  merged model that is stored.

The paper encodes all images again after each task. Here the stored features of videos are kept. The loss does not keep
captions close to old videos, because h need not be the identity; only small steps and the half merge do.

Shapes: B pairs, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, Seams
from ctvr.methods.base import (
    Batch,
    Capabilities,
    Frozen,
    Method,
    Override,
    ParamGroup,
    Recipe,
    SeparableEncoders,
    Task,
    l2_normalize,
)
from ctvr.methods.layers.gather import gather
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.parameter_groups import parts
from ctvr.methods.layers.pooling import frame_mean
from ctvr.methods.layers.temperature import ScaleConfig, bound_scale, set_scale
from ctvr.methods.layers.tower_lora import Place, TowerLoRA
from ctvr.methods.settings import SettingError, require, setting

Rows = Literal["stacked", "joined"]
_BOTH = "both re-implementations"
_PLAN = "appendix A.2, by one re-implementation and a plan of another"
PAPER = Recipe(
    "KoyoImai/C-CLIP and ryder2003/C-CLIP_DynamicRank, which are not the authors' (commits not recorded)",
    {
        "method.lr": (3e-5, f"{_PLAN}: six of eight data sets; Flickr30K 1e-5, COCO 5e-7"),
        "method.lr_text": (3e-4, f"{_PLAN}: 10 times the image tower's; COCO 80 times"),
        "method.rank": (16, _BOTH),
        "method.alpha": (32.0, _BOTH),
        "method.dropout": (0.1, _BOTH),
        "method.merge": (0.5, f"eq. 2; {_BOTH}"),
        "method.temperature": (0.07, f"assumed by {_BOTH}; not seen in the paper"),
        "optim.name": ("adamw", _BOTH),
        "optim.betas": ((0.9, 0.99), _BOTH),
        "optim.weight_decay": (0.2, _BOTH),
        "optim.schedule": ("cosine", _PLAN),
        "optim.epochs": (40, _PLAN),
        "optim.warmup": (0.125, f"{_PLAN}: 5 of 40 epochs"),
        "data.batch_size": (1024, f"{_PLAN}: on 8 GPUs; 256 for ViT-L"),
    },
    (
        "a warm-up that begins at a rate of 1e-6; here step i of w has the share (i + 1) / w",
        "rates of their own for Flickr30K and COCO",
        "images of former tasks are encoded again for every evaluation; here stored videos stay",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CCLIPConfig(ScaleConfig):
    """Settings of C-CLIP, with ranges in search_spaces/."""

    UNPUBLISHED = ("optim.grad_clip",)

    lr: float = setting(3e-5, doc="learning rate of the vision tower's adapters", part="recipe")
    lr_text: float = setting(
        3e-4, doc="learning rate of the text tower's adapters, the projector and the parts `trained`", part="recipe"
    )
    rank: int = setting(16, doc="rank r of the adapters")
    alpha: float = setting(32.0, doc="numerator of the adapters' factor alpha / r")
    dropout: float = setting(0.1, doc="dropout rate of the adapters' inputs")
    places: tuple[Place, ...] = setting(
        ("q", "v", "out", "fc", "proj"),
        doc="projections with adapters in every block, a selection of q, k, v, out, fc and proj",
    )
    merge: float = setting(
        0.5, doc="factor with which adapters are merged into the weights after a task, eq. 2 (1: full merge)"
    )
    weight: float = setting(1.0, doc="weight of the consolidation loss", later=True, part="loss")
    temperature: float = setting(
        0.07, doc="temperature T of the consolidation loss, eq. 5", unpublished=True, later=True, part="loss"
    )
    rows: Rows = setting(
        "stacked",
        doc="rows of the similarity matrix in eq. 5. stacked: all images, then all captions; joined: one row per "
        "pair, with both features concatenated",
        unpublished=True,
        later=True,
    )
    projector: Literal["mlp", "linear"] = setting(
        "mlp",
        doc="projector h. mlp: two layers, d-2d-d, with ReLU; linear: one layer that starts as the identity",
        unpublished=True,
    )
    trained: tuple[str, ...] = setting(
        ("text.token_embedding",), doc="parts of CLIP that are trained in full, without weight decay", unpublished=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "lr", "lr_text", "weight", hint="Use 0 to omit it.")
        require(self, ">= 1", "rank", hint="The paper uses 16.")
        if not self.places:
            raise SettingError("<places> is empty", "Use some of q, k, v, out, fc and proj.")
        require(self, "in [0, 1)", "dropout", hint="Use 0 for none.")
        require(self, "in [0, 1]", "merge", hint="Use 1 to merge in full.")
        require(self, "> 0", "temperature", hint="The re-implementations use 0.07.")


def consolidation(
    new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], temperature: float, rows: Rows = "stacked"
) -> Tensor:
    """Compute L_CKC, eq. 5, a scalar: symmetric InfoNCE in which row i of `new` matches row i of `old`.

    Args:
        new: h(v) and h(c), (B, d) each, not normalized.
        old: v* and c*, (B, d) each, not normalized.
        temperature: T.
        rows: `stacked`: 2B unit rows of width d; `joined`: B unit rows of width 2d.
    """
    dim = 0 if rows == "stacked" else 1
    h, z = l2_normalize(torch.cat(new, dim)), l2_normalize(torch.cat(old, dim))
    return contrastive(h @ z.mT / temperature)


class CCLIP(Method):
    """CLIP that learns each task with adapters; after the task, `merge` times the adapters is added to its weights."""

    Config = CCLIPConfig
    ON_FEATURES = {"method.lr": 3e-3, "method.lr_text": 3e-3}
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PAPER,
        "joined": Override({"method.rows": "joined"}),
        "shapes": {"method.lr": 2e-5, "method.lr_text": 2e-5},  # with optim.lr_scale=50: 1e-3, for the small backbone
    }
    learned: Tensor  # () int64: number of tasks whose adapters are merged into the weights

    @classmethod
    def capabilities(cls, config: CCLIPConfig) -> Capabilities:
        return Capabilities(fits_vectors=True, uses_all_parameters=True, accumulation="features")

    def __init__(self, config: CCLIPConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        has_words = hasattr(backbone.text, "token_embedding")  # False if captions are imported vectors
        self.trained = [part for part in config.trained if has_words or part != "text.token_embedding"]
        set_scale(backbone, config)
        low_rank = (config.places, config.rank, config.alpha, config.dropout)
        self.vision, self.text = TowerLoRA(backbone.vision, *low_rank), TowerLoRA(backbone.text, *low_rank)
        self.projector = _projector(config.projector, backbone.embed_dim)
        self.register_buffer("learned", torch.tensor(0))
        self.teacher: Frozen | None = None

    # --------------------------------------------------------------------------------------- tasks

    def begin_task(self, task: Task) -> None:
        """Add new adapters, and copy CLIP's towers after the last merge as the teacher."""
        for tower in (self.vision, self.text):
            tower.reset()
        # A joint training starts from CLIP again, so it lacks a previous model
        is_tied = task.index > 0 and self.config.weight > 0 and int(self.learned) > 0
        self.teacher = Frozen(self.backbone) if is_tied else None

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Add `merge` times the adapters to CLIP's weights, eq. 2."""
        for own, tower in ((self.vision, self.backbone.vision), (self.text, self.backbone.text)):
            own.merge_into(tower, self.config.merge)
            for block in own.adapters():
                for lora in block.values():
                    lora.B.zero_()
        self.learned += 1
        self.teacher = None

    def param_groups(self) -> list[ParamGroup]:
        c = self.config
        whole = {id(p): p for p in parts(self.backbone, self.trained, "trained")}
        if c.train_scale:
            whole[id(self.backbone.logit_scale)] = self.backbone.logit_scale
        groups = [
            ParamGroup(name="vision", params=list(self.vision.parameters()), lr=c.lr),
            ParamGroup(name="text", params=list(self.text.parameters()), lr=c.lr_text),
        ]
        if self.teacher is not None:
            groups.append(ParamGroup(name="projector", params=list(self.projector.parameters()), lr=c.lr_text))
        if whole:
            groups.append(ParamGroup(name="clip", params=list(whole.values()), lr=c.lr_text, decay=None))
        return groups

    # ------------------------------------------------------------------------------------ encoding

    def _seams(self, adapters: TowerLoRA) -> Seams:
        """Return hooks (seams) that apply the adapters with factor 1 in training, and with factor `merge` otherwise."""
        return adapters.seams(1.0 if self.training else self.config.merge)

    def pooled_video(self, frames: Tensor) -> Tensor:
        """Compute the mean of each video's frame features, (B, T, 3, H, W) -> (B, d), not normalized."""
        return _mean(self.backbone, frames, self._seams(self.vision))

    def pooled_text(self, tokens: Tensor) -> Tensor:
        """Compute features of captions, (B, L) -> (B, d), not normalized."""
        return self.backbone.text(tokens, self._seams(self.text)).float()

    def encode_video(self, frames: Tensor) -> Tensor:
        return l2_normalize(self.pooled_video(frames))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return l2_normalize(self.pooled_text(tokens))

    def separable_encoders(self) -> SeparableEncoders | str:
        return SeparableEncoders(self, ("pooled_video", "pooled_text"))

    # -------------------------------------------------------------------------------------- losses

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        videos, texts = gather(self.pooled_video(batch.frames)), gather(self.pooled_text(batch.tokens))
        old = self._encode_by_teacher(batch)
        with torch.autocast(videos.device.type, enabled=False):
            cosines = l2_normalize(texts) @ l2_normalize(videos).mT
            terms = {"contrastive": contrastive(self.scale().float() * cosines)}  # eq. 6
            if old is not None:
                new = self.projector(videos), self.projector(texts)
                tie = consolidation(new, old, self.config.temperature, self.config.rows)  # eq. 5
                terms["ckc"] = self.config.weight * tie
        return terms

    def _encode_by_teacher(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Compute v* and c* of the global batch, without gradients; None in the first task."""
        if self.teacher is None:
            return None
        clip: Clip = self.teacher.module
        with torch.no_grad():
            return gather(_mean(clip, batch.frames)), gather(clip.text(batch.tokens).float())

    def after_step(self) -> None:
        bound_scale(self.backbone, self.config)


def _mean(clip: Clip, frames: Tensor, seams: Seams | None = None) -> Tensor:
    return frame_mean(clip.vision(frames, seams).float())


def _projector(kind: Literal["mlp", "linear"], d: int) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
    layer = nn.Linear(d, d)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
