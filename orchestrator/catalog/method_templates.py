"""Templates for `ctvr methods new`: module, search space and test of each kind of method.

CLASS, NAME and RANGES are placeholders. Each template runs and passes the contract checks without changes.
"""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """Sources of the package of a method."""

    module: str
    ranges: tuple[str, ...]  # lines of the dictionary of the search space
    test: str


MODULE = '''\
"""CLASS: CLIP with only its LayerNorms trained. Replace this method and this line with yours.

loss = contrastive + weight * |p - p0|^2   (L2-SP, arXiv:1802.01483; p0: the pre-trained values)

`methods/base.py` of ctvr defines the contract; `ctvr methods check NAME:CLASS` checks it.
Shapes: B pairs, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import Batch, Capabilities, Clip, Method, ParamGroup, l2_normalize, mean_pool, require, setting


@dataclass(frozen=True, kw_only=True)
class CLASSConfig:
    """Settings: method.lr=1e-5 sets one, and `ctvr methods NAME:CLASS` prints its doc."""

    lr: float = setting(3e-5, doc="learning rate of the LayerNorms; optim.lr_scale of the stream multiplies it")
    weight: float = setting(1e-3, doc="weight of the squared distance from the pre-trained values")

    def __post_init__(self) -> None:
        require(self, "in [0, inf)", "lr", hint="Use 3e-5.")
        require(self, "in [0, inf)", "weight", hint="Use 1e-3.")


class CLASS(Method):
    """CLIP with trained LayerNorms."""

    Config = CLASSConfig
    PRESETS = {"free": {"method.weight": 0.0}}  # `--preset free`
    start: Tensor  # (P,) pre-trained values of the P trained weights

    @classmethod
    def capabilities(cls, config: CLASSConfig) -> Capabilities:
        return Capabilities(uses_all_parameters=True)  # each step gives every trained parameter a gradient

    def __init__(self, config: CLASSConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        norms = [module for module in backbone.modules() if isinstance(module, nn.LayerNorm)]
        self.trained = [parameter for norm in norms for parameter in norm.parameters()]
        self.register_buffer("start", self._values().detach().clone())  # state must be a parameter or a buffer

    def _values(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.trained])

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "norms", "params": self.trained, "lr": self.config.lr}]  # others are frozen

    def encode_video(self, frames: Tensor) -> Tensor:
        """(B, T, 3, H, W) -> (B, d)."""
        return mean_pool(self.backbone.vision(frames), "none")

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """(B, L) -> (B, d)."""
        return l2_normalize(self.backbone.text(tokens).float())

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        distance = (self._values() - self.start).square().sum()
        return {**super().losses(batch), "distance": self.config.weight * distance}
'''

TEST = '''\
"""Contract checks of NAME, and its own invariants."""

import torch

import ctvr
from ctvr import l2_normalize
from NAME import CLASS, CLASSConfig
from ctvr.methods.tiny_models import make_batch, make_small_clip


def test_it_conforms():
    ctvr.check_method("NAME:CLASS")


def test_the_untrained_method_is_zero_shot_clip():
    clip, batch = make_small_clip(), make_batch()
    made = CLASS(CLASSConfig(), clip)
    assert torch.equal(made.encode_text(batch.tokens), l2_normalize(clip.text(batch.tokens)))
'''

STRATEGY = '''\
"""CLASS: a strategy that keeps weights near those before the task. Replace this method and this line with yours.

loss = loss of the retriever + weight * |p - p_before|^2   (L2-SP, arXiv:1802.01483; p_before: weights before the task)

`docs/new-method.md` of ctvr explains strategies; `ctvr methods check NAME:CLASS` checks the contract.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr import Batch, Strategy, Task, require, setting


@dataclass(frozen=True, kw_only=True)
class CLASSConfig:
    """Settings: method.base=xpool wraps another retriever, and base.lr=1e-5 sets one of its settings."""

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    weight: float = setting(10.0, doc="weight of the squared distance from the weights before the task", later=True)

    def __post_init__(self) -> None:
        require(self, "in [0, inf)", "weight", hint="Use 10.")


class CLASS(Strategy):
    """Strategy that passes every member that it does not define to the wrapped retriever."""

    Config = CLASSConfig
    PRESETS = {"free": {"method.weight": 0.0}}  # `--preset free`

    def begin_task(self, task: Task) -> None:
        self.before: Tensor | None = None  # recorded in the first step: a resumed run has loaded its weights by then
        self.index = task.index
        super().begin_task(task)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = super().losses(batch)
        if self.index == 0 or not torch.is_grad_enabled():  # without gradients the loop only measures the loss
            return terms
        groups = self.param_groups()
        now = torch.cat([parameter.flatten() for group in groups for parameter in group["params"]])
        if self.before is None:
            self.before = now.detach().clone()
        return {**terms, "distance": self.config.weight * (now - self.before).square().sum()}
'''

STRATEGY_TEST = '''\
"""Contract checks of NAME, and its own invariants."""

import torch

import ctvr
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from NAME import CLASS, CLASSConfig
from ctvr.methods.tiny_models import make_batch, make_small_clip, make_task


def test_it_conforms():
    ctvr.check_method("NAME:CLASS")


def test_the_first_task_is_the_retrievers():
    base = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    made, batch = CLASS(CLASSConfig(), base), make_batch()
    made.begin_task(make_task(0))
    assert torch.equal(made.losses(batch)["contrastive"], base.losses(batch)["contrastive"])
'''

ANALYTIC = '''\
"""CLASS: frozen CLIP with a map of videos in closed form. Replace this method and this line with yours.

    G <- G + sum v v',  C <- C + sum v q',  W = (G + ridge I)^-1 C     over all pairs; v: video, q: caption
    a searched video is unit(v + strength unit(W' v))

`methods/base.py` of ctvr defines the contract; `ctvr methods check NAME:CLASS` checks it.
Shapes: B pairs, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ctvr import Batch, Capabilities, Clip, Method, Task, l2_normalize, mean_pool, require, setting


@dataclass(frozen=True, kw_only=True)
class CLASSConfig:
    """Settings: method.ridge=1 sets one, and `ctvr methods NAME:CLASS` prints its doc."""

    ridge: float = setting(10.0, doc="weight of the squared norm of the map in the regression")
    strength: float = setting(0.5, doc="weight of the mapped feature in the feature of a video")

    def __post_init__(self) -> None:
        require(self, "> 0", "ridge", hint="Use 10.")
        require(self, ">= 0", "strength", hint="Use 0 for zero-shot CLIP.")


class CLASS(Method):
    """Frozen CLIP and a ridge regression from videos to captions; nothing is trained by gradients."""

    Config = CLASSConfig
    PRESETS = {"weak": {"method.strength": 0.1}}  # `--preset weak`

    @classmethod
    def capabilities(cls, config: CLASSConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, text_is_frozen=True)  # ctvr infers that it learns in end_task

    def __init__(self, config: CLASSConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)  # features of frames are computed once and stored
        for name in ("gram", "cross", "map"):  # state must be a parameter or a buffer
            self.register_buffer(name, torch.zeros(backbone.embed_dim, backbone.embed_dim, dtype=torch.float64))

    @torch.no_grad()
    def end_task(self, task: Task, loader: Iterable[Batch]) -> None:
        """Add the task's pairs, which every worker receives, and solve again."""
        for batch in loader:
            v = self._video(batch.frames).double()
            self.gram += v.mT @ v
            self.cross += v.mT @ self.encode_text(batch.tokens).double()
        ridge = self.config.ridge * torch.eye(len(self.gram), dtype=torch.float64, device=self.gram.device)
        self.map.copy_(torch.linalg.solve(self.gram + ridge, self.cross))

    def _video(self, frames: Tensor) -> Tensor:
        return mean_pool(self.backbone.vision(frames), "none")

    def encode_video(self, frames: Tensor) -> Tensor:
        """(B, T, 3, H, W) -> (B, d)."""
        v = self._video(frames)
        return l2_normalize(v + self.config.strength * l2_normalize(v @ self.map.float()))

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """(B, L) -> (B, d)."""
        return l2_normalize(self.backbone.text(tokens))
'''

FEATURES = '''\
"""CLASS: frozen towers or imported features, and a map of captions. Replace this method and this line with yours.

q = unit(x + D x),   D (d, d) zero at first: the untrained method is zero-shot

It learns on videos, and on vectors that another model computed (`ctvr streams import features ... text=`), if the
vectors of captions and videos have the same width. `ctvr methods check NAME:CLASS` checks the contract.
Shapes: B pairs, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr import Capabilities, Clip, Method, ParamGroup, l2_normalize, mean_pool, require, setting


@dataclass(frozen=True, kw_only=True)
class CLASSConfig:
    """Settings: method.lr=1e-4 sets one, and `ctvr methods NAME:CLASS` prints its doc."""

    lr: float = setting(1e-4, doc="learning rate of the map; optim.lr_scale of the stream multiplies it")
    dropout: float = setting(0.1, doc="dropout rate of the inputs of the map")

    def __post_init__(self) -> None:
        require(self, ">= 0", "lr", hint="Use 1e-4.")
        require(self, "in [0, 1)", "dropout", hint="Use 0 for none.")


class CLASS(Method):
    """A linear map of caption features on frozen towers, so that features of stored videos never change."""

    Config = CLASSConfig
    PRESETS = {"plain": {"method.dropout": 0.0}}  # `--preset plain`
    ON_FEATURES = {"method.lr": 1e-3}  # the default on imported features; a search covers a tenth to ten times it

    @classmethod
    def capabilities(cls, config: CLASSConfig) -> Capabilities:
        return Capabilities(backbone_agnostic=True, uses_all_parameters=True, videos_are_frozen=True)

    def __init__(self, config: CLASSConfig, backbone: Clip) -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.frozen_blocks = len(backbone.vision.blocks)  # features of frames are computed once and stored
        self.map = nn.Parameter(torch.zeros(backbone.embed_dim, backbone.embed_dim))

    def param_groups(self) -> list[ParamGroup]:
        return [{"name": "map", "params": [self.map], "lr": self.config.lr}]

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode videos (B, T, 3, H, W), or features of frames -> (B, d)."""
        return mean_pool(self.backbone.vision(frames), "none")

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        """(B, L) -> (B, d)."""
        x = self.backbone.text(tokens).float()
        return l2_normalize(x + F.linear(F.dropout(x, self.config.dropout, self.training), self.map))
'''

SPACE = '''\
"""Search space of `ctvr sweep --method NAME`."""

from ray import tune

SPACE = {
    RANGES
}
'''

LR, WEIGHT = '"method.lr": tune.loguniform(1e-5, 1e-4),', '"method.weight": tune.choice([0.0, 1e-3, 1e-2]),'
KINDS = {
    "retriever": Template(MODULE, (LR, WEIGHT), TEST),
    "strategy": Template(STRATEGY, ('"method.weight": tune.loguniform(0.1, 1000.0),',), STRATEGY_TEST),
    "analytic": Template(
        ANALYTIC,
        ('"method.ridge": tune.loguniform(0.1, 100.0),', '"method.strength": tune.choice([0.1, 0.25, 0.5, 1.0]),'),
        TEST,
    ),
    "features": Template(FEATURES, (LR, '"method.dropout": tune.choice([0.0, 0.1, 0.3]),'), TEST),
}
