"""The settings `optim.*`."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, fields
from typing import Literal, get_args

from ctvr.methods.base import Decay
from ctvr.methods.settings import SettingError, require, setting
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.settings.plugins import Plugins

Optimizer = Literal["adamw", "adamw_hf", "bert_adam", "sgd"]
OPTIMIZERS = Plugins("optimizer", "optimizers", "optim.name", get_args(Optimizer))

# Setting -> the built-in optimizers that read it; one of another package reads it if its function names it
READ_BY: dict[str, tuple[Optimizer, ...]] = {
    **dict.fromkeys(("betas", "eps"), ("adamw", "adamw_hf", "bert_adam")),
    "momentum": ("sgd",),
}

# Factor of the peak learning rates at step k = 0, 1, ... of K, after W warm-up steps. docs/recipes.md lists the papers.
#   cosine           (1 + cos(pi (k - W) / (K - W))) / 2
#   cosine_uncorrected_warmup     (1 + cos(pi k / K)) / 2, below 1 after the warm-up; W is not rounded
#   cosine_offset1  formula of cosine with k + 1 instead of k
#   cosine_to_zero    (1 + cos(pi (k - W) / (K - 1 - W))) / 2, which is 0 at the last step
#   cosine_by_epoch  constant within an epoch, from 1 down to 1/1000; the warm-up begins at 1/50
#   cosine_epochs    formula of cosine with the first step of the epoch instead of k
#   linear           (K - k) / (K - W)
# A falling factor f becomes s + (1 - s) f, with s = `final_share`; `least` is applied last.
Schedule = Literal[
    "cosine",
    "cosine_uncorrected_warmup",
    "cosine_offset1",
    "cosine_to_zero",
    "cosine_by_epoch",
    "cosine_epochs",
    "linear",
    "constant",
    "first_epoch",
]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Settings of the optimization of each task. Defaults: CTVR (arXiv:2503.10111), section 5.1."""

    name: Optimizer | str = setting(
        "adamw",
        doc="optimizer. adamw: AdamW of torch; adamw_hf: AdamW of early versions of transformers; bert_adam: "
        "BertAdam of CLIP4Clip; sgd: SGD with `momentum`; or the name of another package's optimizer, or "
        "MODULE:FUNCTION (docs/metrics.md)",
    )
    epochs: int = setting(20, doc="number of epochs per task")
    lr_scale: float = setting(1.0, doc="factor that multiplies every learning rate of the method")
    weight_decay: float = setting(
        0.2,
        doc="weight decay of the tensors that `optim.decay_parameters` selects; each step multiplies it by the "
        "learning rate",
    )
    betas: tuple[float, float] = setting((0.9, 0.999), doc="decay rates of the two moment estimates of AdamW")
    eps: float = setting(1e-6, doc="constant that is added to AdamW's denominator")
    momentum: float = setting(0.0, doc="momentum of the optimizer sgd")
    carry_momentum: bool = setting(
        False,
        doc="whether the momentum of each weight is kept for the next task, with name=sgd (as in divyam3897/UCL)",
        exact=True,
    )
    decay_parameters: Decay = setting(
        "matrices",
        doc="tensors with weight decay. matrices: tensors of two or more dimensions; all: all tensors; no_bias: "
        'tensors whose names do not contain "bias", so also LayerNorm gains; no_bias_or_scale: as no_bias, but '
        "without logit_scale; no_vectors: all except one-dimensional tensors",
    )
    warmup: float = setting(
        0.1, doc="length of the warm-up as a fraction of a task's steps; a value above 1 is a number of steps"
    )
    warmup_tasks: Literal["first", "all"] = setting("all", doc="tasks whose learning rate has a warm-up")
    warmup_from: Literal["first", "zero"] = setting(
        "first",
        doc="factor of the learning rate at step i = 0, 1, .. of w warm-up steps. first: (i + 1) / w; zero: i / w",
        exact=True,
    )
    schedule: Schedule = setting("cosine", doc="learning-rate schedule after the warm-up; see docs/recipes.md")
    final_lr: float = setting(
        0.0, doc="learning rate of a step in which the schedule gives 0 (CLIP-ViP: 1e-8)", exact=True
    )
    least: float = setting(
        0.0, doc="minimum learning rate of any step, including the warm-up, as a share of the peak rate (UMT: 0.01)"
    )
    final_share: float = setting(
        0.0,
        doc="final learning rate of a cosine or linear schedule, as a share of the peak rate (CTP: 0.01)",
        exact=True,
    )
    num_cycles: float = setting(
        0.5,
        doc="number of cycles of a cosine schedule. 0.5: the rate falls to 0; 1.0 (CTVR's released code): the rate "
        "falls to 0 and rises again",
        exact=True,
    )
    first_epoch_scale: float = setting(
        0.1, doc="factor of the learning rate after the first epoch, with schedule=first_epoch (BMU-MoCo)", exact=True
    )
    grad_clip: float | None = setting(
        1.0, doc="maximum norm of the gradient of all trained parameters; none: no clipping"
    )
    accumulation_steps: int = setting(
        1, doc="number of batches per optimizer step; the gradient equals that of one batch with all their pairs"
    )
    activation_checkpointing: bool = setting(
        False,
        doc="whether to recompute activations in the backward pass, which needs less memory and gives bit-identical "
        "results",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "epochs", hint="Use 0 to skip training.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SettingError(f"<betas> must be in [0, 1), got {self.betas}", "Use 0.9,0.999.")
        require(self, "> 0", "eps", hint="Use 1e-6.")
        require(self, "in [0, inf)", "weight_decay", hint="Use 0 for none.")
        require(self, "in [0, inf)", "lr_scale", hint="Use 1 for the method's own rates.")
        require(self, "in [0, 1]", "least", "final_share", hint="Use 0 for none.")
        if self.final_share and self.schedule in {"constant", "first_epoch", "cosine_by_epoch"}:
            raise SettingError(
                f"<final_share> is not used by <schedule>={self.schedule}", "Use <schedule>=cosine or linear."
            )
        if not math.isfinite(self.num_cycles):
            raise SettingError(f"<num_cycles> must be finite, got {self.num_cycles}", "Use 0.5 to go down once.")
        require(self, "in [0, 1)", "momentum", hint="Use 0.")
        require(self, "in [0, inf)", "final_lr", hint="Use 0.")
        if self.carry_momentum and self.name != "sgd":
            raise SettingError(f"<carry_momentum> keeps the momentum of sgd, not of {self.name}", write="<name>=sgd")
        require(self, "in [0, inf)", "warmup", hint="Use 0.1 for 10 %, or 400 for 400 steps.")
        if self.warmup > 1 and self.warmup != int(self.warmup):
            raise SettingError(
                f"<warmup> must be at most 1 or a whole number of steps, got {self.warmup}", "Use 0.1 for 10 %."
            )
        require(self, "> 0", "grad_clip", hint="Use none to disable clipping.")
        require(self, ">= 1", "accumulation_steps")


def refuse_unread(config: OptimConfig, typed: Container[str]) -> None:
    """Refuse a setting that the user gave and that the chosen built-in optimizer does not read.

    Presets, streams and search spaces may contain such settings, because they apply to several optimizers. So may the
    record of a run, which has all settings.

    Args:
        config: the complete settings of the optimization.
        typed: names of the settings that the user gave, or of a record.

    Raises:
        ConfigError: for the first such setting.
    """
    if all(f"optim.{field.name}" in typed for field in fields(config)):
        return
    for name, readers in READ_BY.items():
        is_unread = config.name in OPTIMIZERS.built_in and config.name not in readers
        if is_unread and f"optim.{name}" in typed and getattr(config, name) != getattr(OptimConfig(), name):
            remedy = f"Omit it, or set optim.name={' or '.join(readers)}."
            raise ConfigError(f"is not read by optim.name={config.name}", f"optim.{name}", remedy=remedy)
