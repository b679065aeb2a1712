"""X-Pool: each caption attends to the frames of each video, so that a video's feature depends on the caption.

Gorti et al., "X-Pool: Cross-Modal Language-Video Attention for Text-Video Retrieval", arXiv:2203.15086
(CVPR 2022), section 4.2, here fine-tuned on one task after the other as in CTVR (arXiv:2503.10111, table 1).
With features q (Q, d) of captions and f (V, T, d) of frames, neither normalized, and one LayerNorm for both:

    Q = LN1(q) W_q,  K = LN1(f) W_k,  V = LN1(f) W_v                    eq. 3-5
    o = softmax_T(Q K^T / sqrt(d)) V W_o,  a = LN2(o)                    eq. 6
    r = LN3(a + Dropout(a W_l)),  S = cos(q, r)                          eq. 7-8; r is (V, Q, d)

All matrices have biases and start as identities; with the biases, the model has the printed 152.59 M parameters.
A video's feature depends on the query, so the frame features f are stored, which takes T times the usual space. The
current pooling head reads them, even if an older model computed them. Neither paper describes how it stores videos.

Shapes: B pairs, Q captions, V videos, T frames, d joint embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Capabilities, Method, ParamGroup, Recipe, Task
from ctvr.methods.layers.gather import world_size
from ctvr.methods.layers.temperature import ScaleConfig, bound_scale, set_scale
from ctvr.methods.settings import require, setting

# The authors' command for MSR-VTT-9k
ORIGINAL = Recipe(
    "layer6ai-labs/xpool@bc88718",
    {
        "method.lr": (1e-6, "config/all_config.py: --clip_lr"),
        "method.lr_head": (3e-5, "README: --noclip_lr 3e-5"),
        "method.dropout": (0.3, "README: --transformer_dropout 0.3"),
        "method.train_scale": (True, "train.py: every parameter is in a group"),
        "method.max_scale": (100.0, "trainer/trainer.py: clamp at log 100 after a step"),
        "method.min_scale": (0.0, "trainer/trainer.py: no lower bound"),
        "optim.name": ("adamw_hf", "modules/optimization.py"),
        "optim.betas": ((0.9, 0.999), "modules/optimization.py"),
        "optim.eps": (1e-6, "modules/optimization.py"),
        "optim.weight_decay": (0.2, "config/all_config.py: --weight_decay"),
        "optim.decay_parameters": ("all", "train.py: every group has the decay, LayerNorms and logit_scale too"),
        "optim.schedule": ("cosine", "modules/optimization.py: get_cosine_schedule_with_warmup"),
        "optim.least": (0.0, "modules/optimization.py: get_cosine_schedule_with_warmup"),
        "optim.warmup": (0.1, "config/all_config.py: --warmup_proportion"),
        "optim.warmup_from": ("zero", "modules/optimization.py: get_cosine_schedule_with_warmup"),
        "optim.grad_clip": (1.0, "trainer/trainer.py"),
        "optim.epochs": (5, "config/all_config.py: --num_epochs"),
        "data.batch_size": (32, "README: --batch_size 32"),
        "data.num_frames": (12, "config/all_config.py: --num_frames"),
        "data.augment": ("crop_flip", "datasets/model_transforms.py: crop of 0.5 to 1, flip, alike in all frames"),
    },
    (
        "ten evaluations an epoch, and the weights with the best mean of five R@1 of the test set",
        "crops are resized bicubically there, bilinearly here",
    ),
)
CHUNK = 2**22  # float32 values in memory at a time in `score` (16 MiB)


@dataclass(frozen=True, kw_only=True)
class XPoolConfig(ScaleConfig):
    """Settings of X-Pool, with ranges in search_spaces/. Rates are the defaults of both papers' code."""

    UNPUBLISHED = ("method.train_scale", "optim.weight_decay", "optim.warmup")

    lr: float = setting(1e-6, doc="learning rate of both towers and the temperature", unpublished=True, part="recipe")
    lr_head: float = setting(
        1e-5, doc="learning rate of X-Pool's pooling module (MSR-VTT-9k: 3e-5)", unpublished=True, part="recipe"
    )
    dropout: float = setting(0.3, doc="dropout rate in X-Pool's pooling module", unpublished=True)
    max_scale: float = setting(100.0, doc="upper bound of 1 / temperature after each step", part="recipe")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "lr", "lr_head", hint="Use 0 to keep these weights unchanged.")
        require(self, "in [0, 1)", "dropout", hint="The paper uses 0.3.")


class Pooling(nn.Module):
    """X-Pool's pooling head: five matrices and three LayerNorms."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out, self.linear = (nn.Linear(width, width) for _ in range(5))
        self.ln_1, self.ln_2, self.ln_3 = (nn.LayerNorm(width) for _ in range(3))
        self.dropout = dropout
        self.seed = 0  # seed of dropout masks that all workers share
        for linear in (self.q, self.k, self.v, self.out, self.linear):
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)

    def ask(self, queries: Tensor) -> Tensor:
        """Compute the attention queries (Q, d), eq. 3, from features of captions (Q, d)."""
        return self.q(self.ln_1(queries))

    def read(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the keys K and the values V W_o, (V, T, d) each, from frame features (V, T, d).

        Attention weights sum to 1, so W_o can be applied before the attention, at a far lower cost.
        """
        y = self.ln_1(frames)
        return self.k(y), self.out(self.v(y))

    def attention(self, asked: Tensor, keys: Tensor) -> Tensor:
        """Compute attention weights (V, Q, T) of frames from queries `asked` (Q, d) and `keys` (V, T, d)."""
        return (asked @ keys.mT / math.sqrt(keys.shape[-1])).softmax(dim=-1)

    def pool(self, asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Compute r (V, Q, d), the feature of every video for every caption, from the outputs of `ask` and `read`."""
        a = self.ln_2(self.attention(asked, keys) @ values)
        return self.ln_3(a + self._drop(self.linear(a)))

    def _drop(self, x: Tensor) -> Tensor:
        """Apply dropout with the same mask on all workers, because each computes r for the pairs of all workers."""
        if world_size() == 1 or not self.training:
            return F.dropout(x, self.dropout, self.training)
        self.seed += 1
        with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return F.dropout(x, self.dropout)

    def cosines(self, asked: Tensor, unit: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Compute cos(q, r) (V, Q) without dropout and without r: a pair needs sums over T frames, not d dimensions.

        After the frame weights w (T,), all operations are linear except two LayerNorms and the norm of r, which need
        quadratic forms of w. c are the values minus their mean over d. W is the matrix and b the bias of the residual
        layer; g_2, b_2 and g_3, b_3 are weight and bias of LN2 and LN3:

            s^2 = w (c c' / d) w' + eps,  r before LN3 = u M,  u = (w / s, 1),  M = [(c g_2) (1 + W)'; b_2 + W b_2 + b]
            N = (M - mean over d) g_3,  r = u N / s_3 + b_3,  s_3^2 = u (N/g_3)(N/g_3)' u' / d + eps

        Args:
            asked, keys, values: see `pool`.
            unit: (Q, d) features of captions, normalized to length 1.
        """
        d, first, last = values.shape[-1], self.ln_2, self.ln_3
        centred = values - values.mean(dim=-1, keepdim=True)  # c (V, T, d)
        bent, bias = centred * first.weight, first.bias  # after LN2, except the factor 1 / s
        rest = (bias + self.linear(bias)).expand(len(values), 1, d)
        m = torch.cat([bent + F.linear(bent, self.linear.weight), rest], dim=1)  # M (V, T + 1, d)
        m = m - m.mean(dim=-1, keepdim=True)
        n = m * last.weight  # N
        w = self.attention(asked, keys)  # (V, Q, T)
        w = w * (quadratic(w, centred @ centred.mT / d) + first.eps).rsqrt()[..., None]
        u = torch.cat([w, torch.ones_like(w[..., :1])], dim=-1)  # (V, Q, T + 1)
        s3 = (quadratic(u, m @ m.mT / d) + last.eps).rsqrt().reciprocal()
        along = (u * (unit @ n.mT)).sum(dim=-1) / s3 + unit @ last.bias
        square = quadratic(u, n @ n.mT) / s3**2 + 2 * (u @ (n @ last.bias)[..., None])[..., 0] / s3
        return along * (square + last.bias @ last.bias).clamp(min=1e-24).rsqrt()


def quadratic(x: Tensor, form: Tensor) -> Tensor:
    """Compute x A x' for every row x of `x` (V, Q, T), with A = `form` (V, T, T): (V, Q)."""
    return ((x @ form) * x).sum(dim=-1)


class XPool(Method):
    """CLIP with text-conditioned pooling; all weights are trained."""

    Config = XPoolConfig
    ON_FEATURES = {"method.lr": 1e-3, "method.lr_head": 1e-3}
    PRESETS = {
        "paper": {},
        "shapes": {"method.lr": 4e-6, "method.lr_head": 4e-6},  # with optim.lr_scale=50, for the small backbone
        "original": ORIGINAL,
    }

    @classmethod
    def capabilities(cls, config: XPoolConfig) -> Capabilities:
        return Capabilities(uses_all_parameters=True, fits_vectors=True)

    def __init__(self, config: XPoolConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        set_scale(backbone, config)
        self.pooling = Pooling(backbone.embed_dim, config.dropout)

    def begin_task(self, task: Task) -> None:
        self.pooling.seed = torch.initial_seed() % 2**62  # equal on all workers when a task begins

    def param_groups(self) -> list[ParamGroup]:
        clip = [*self.backbone.vision.parameters(), *self.backbone.text.parameters()]
        if self.config.train_scale:
            clip.append(self.backbone.logit_scale)
        head = list(self.pooling.parameters())
        return [
            ParamGroup(name="clip", params=clip, lr=self.config.lr),
            ParamGroup(name="head", params=head, lr=self.config.lr_head),
        ]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Compute frame features, (B, T, 3, H, W) -> (B, T, d), not normalized."""
        return self.backbone.vision(frames).float()

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """Compute caption features, (B, L) -> (B, d), not normalized."""
        return self.backbone.text(tokens).float()

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Compute cos(q, r) of captions (Q, d) and stored frame features (V, T, d): (Q, V)."""
        with torch.autocast(queries.device.type, enabled=False):
            queries = queries.float()
            asked, unit = self.pooling.ask(queries), F.normalize(queries, dim=-1)
            keys, values = self.pooling.read(gallery.float())
            numbers = gallery.shape[-1] if self.training else gallery.shape[1] + 1  # values for each pair
            videos = max(1, CHUNK // max(1, len(queries) * numbers))
            parts = []
            for k, v in zip(keys.split(videos), values.split(videos), strict=True):
                if self.training:  # dropout acts on r
                    pooled = F.normalize(self.pooling.pool(asked, k, v), dim=-1)  # (V', Q, d)
                    parts.append((pooled * unit).sum(dim=-1))
                else:
                    parts.append(self.pooling.cosines(asked, unit, k, v))
            return torch.cat(parts).mT

    def after_step(self) -> None:
        bound_scale(self.backbone, self.config)
