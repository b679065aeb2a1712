"""Template for `ctvr new method`: a package with a new method that runs and passes the contract checks."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import nearest_name, new_folder

MODULE = '''\
"""CLASS: CLIP with only its LayerNorms trained. Replace this method and this line with yours.

loss = contrastive + weight * |p - p0|^2   (L2-SP, arXiv:1802.01483; p0: the pre-trained values)

`methods/base.py` of ctvr defines the contract; `ctvr check-method NAME:CLASS` checks it.
Shapes: B pairs, T frames, L text length, d joint embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr import Batch, Method, setting
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Capabilities, ParamGroup, l2_normalize
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.settings import require


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
    start: Tensor  # (P,) pre-trained values of the P trained numbers

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

SPACE = '''\
"""Search space of `ctvr sweep --method NAME`."""

from ray import tune

SPACE = {
    "method.lr": tune.loguniform(1e-5, 1e-4),
    "method.weight": tune.choice([0.0, 1e-3, 1e-2]),
}
'''

TEST = '''\
"""Contract checks of NAME, and its own invariants."""

import torch

import ctvr
from ctvr.methods.base import l2_normalize
from NAME import CLASS, CLASSConfig
from ctvr.orchestrator.method_checks.tiny_models import make_batch, make_small_clip


def test_it_conforms():
    ctvr.check_method("NAME:CLASS")


def test_the_untrained_method_is_zero_shot_clip():
    clip, batch = make_small_clip(), make_batch()
    made = CLASS(CLASSConfig(), clip)
    assert torch.equal(made.encode_text(batch.tokens), l2_normalize(clip.text(batch.tokens)))
'''

PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "ctvr-DASHED"
version = "0.1.0"
dependencies = ["ctvr"]

[project.entry-points."ctvr.methods"]
NAME = "NAME:CLASS"

[project.entry-points."ctvr.search_spaces"]
NAME = "NAME_space"

[tool.setuptools]
py-modules = ["NAME", "NAME_space"]
"""


def new_method(name: str, into: Path = Path()) -> str:
    """Write the package of a method called `name` to the new folder `into/name`; return the next commands.

    Raises:
        ConfigError: for a name that Python or ctvr cannot use, or a folder that already exists.
    """
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name != name.lower():
        close = re.sub("[^a-z0-9]+", "_", nearest_name(name).lower()).strip("_")
        meant = close if close.isidentifier() and not keyword.iskeyword(close) else f"my_{close}"
        raise ConfigError(
            f"new method {name!r:.80}: is not a module name. Use lower-case letters, digits and _, for example {meant}."
        )
    if name in EVERY_METHOD or name in CONFIGURATIONS or name in plugins() or name == "ctvr":
        raise ConfigError("a method of this name already exists", f"new method {name!r}", remedy="Choose another name.")
    folder = into / name
    if folder.exists():
        raise ConfigError(f"{folder} already exists", "new method", remedy="Choose another name or --into FOLDER.")
    if name in sys.stdlib_module_names or ((found := find_spec(name)) and found.origin):
        raise ConfigError(f"new method {name!r}: would shadow an installed module of this name. Choose another name.")
    if not into.is_dir():
        raise ConfigError("is not a folder", f"--into {into}", remedy="Create it first, or omit --into.")
    cls = "".join(part.capitalize() for part in name.split("_")) or "Method"
    files = {"pyproject.toml": PROJECT, f"{name}.py": MODULE, f"{name}_space.py": SPACE, f"test_{name}.py": TEST}
    with new_folder(folder) as new:
        for file, text in files.items():
            made = text.replace("NAME", name).replace("CLASS", cls).replace("DASHED", name.replace("_", "-"))
            (new / file).write_text(made, encoding="utf-8")
    place = f"{name}:{cls}"
    return "\n".join(
        [
            f"written: {', '.join(str(folder / file) for file in files)}",
            f"next: cd {folder}",
            f"      ctvr check-method {place}",
            f"      ctvr run {place} shapes-5",
            f"      pip install --no-deps -e .      # then `ctvr run {name} shapes-5`, also in sweeps",
        ]
    )
