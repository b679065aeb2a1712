"""Shared parts of released training recipes: ZSCL's training script, and plain SGD of replay methods.

LwF, LwF-VR and MoE-Adapters were trained with ZSCL's script (mtil/src/models/finetune.py) or a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MTIL: Mapping[str, tuple[Any, str]] = {
    "optim.name": ("adamw", "mtil/src/models/finetune.py"),
    "optim.betas": ((0.9, 0.999), "mtil/src/args.py: --beta2"),
    "optim.eps": (1e-8, "mtil/src/models/finetune.py: torch's default"),
    "optim.weight_decay": (0.0, "mtil/src/args.py: --wd"),
    "optim.schedule": ("cosine_to_zero", "mtil/src/utils.py: step 1000 of 0..1000 has rate 0"),
    "optim.warmup": (0.1, "mtil/src/args.py: --warmup_length 100, of 1000 steps"),
    "optim.warmup_from": ("first", "mtil/src/utils.py: (i + 1) / 100"),
    "optim.grad_clip": (None, "mtil/src/models/finetune.py: there is none"),
    "data.batch_size": (64, "mtil/src/args.py: --batch-size"),
}
MTIL_LEFT_OUT = (
    'class texts ("a photo of a {c}."): here the captions of the batch',
    "label smoothing 0.2, and a loss from images to texts alone: the retriever's own loss has two directions",
    "1000 steps (+ 1) a task: optim.epochs counts passes over a task",
    "other rates for some data sets (5e-5, 5e-3, 1e-4)",
    "ViT-B/16: a row has the backbone of its table",
)
FIXED_SCALE = (False, "mtil/src/models/finetune.py: logit_scale is in no group")


def sgd(rate: float, epochs: int, batch: int, place: str, **others: tuple[Any, str]) -> dict[str, tuple[Any, str]]:
    """Return the values of a recipe: SGD at a constant learning rate, without warm-up or gradient clipping.

    Args:
        rate: learning rate.
        epochs: epochs per task.
        batch: pairs per batch.
        place: file or lines of the released code that define these values.
        others: additional settings of `optim`, without the prefix -> (value, place).
    """
    plain: dict[str, tuple[Any, str]] = {
        "base.lr": (rate, place),
        "base.train_scale": (False, "no counterpart: nothing there has a temperature that learns"),
        "optim.name": ("sgd", place),
        "optim.momentum": (0.0, place),
        "optim.weight_decay": (0.0, place),
        "optim.decay_parameters": ("all", place),
        "optim.schedule": ("constant", place),
        "optim.warmup": (0.0, place),
        "optim.grad_clip": (None, place),
        "optim.epochs": (epochs, place),
        "data.batch_size": (batch, place),
    }
    return {**plain, **{f"optim.{name}": found for name, found in others.items()}}


REPLAY_LEFT_OUT = (
    "its rate is of a ResNet that starts at random: it was not chosen for a pre-trained CLIP",
    "the memory is written after every step; here once, at a task's end",
    "memory images are augmented again at each use; here they are as they were stored",
)
