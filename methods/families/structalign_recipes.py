"""Recipes of StructAlign: its paper's, its released code's, that of the embedded streams, and the ablations."""

from __future__ import annotations

from typing import Any

from ctvr.methods.base import Override

RELEASED: dict[str, Any] = {
    "method.tau": 0.010051835744633586,  # exp(-4.6)
    "method.tau2": 2.0,
    "method.adapters": "task_aware",
    "method.etf_frame": "gaussian",
    "method.heads": "frozen_linear",
    "method.pseudo": "clip",
    "method.swap_heads": True,
    "method.lambda1_is": "share",
    "method.pair_weight": 0.5,
    "method.loss_reduction": "sum",
    "method.divide_by_batch": True,
    "method.teacher": "initial",
    "method.crp_on": "logits",
    "method.pads_are_words": True,
    "method.score": "fused",
    "optim.name": "adamw_hf",
    "optim.weight_decay": 0.5,
    "optim.decay_parameters": "all",
    "optim.warmup_tasks": "first",
    "optim.warmup_from": "zero",
    "optim.num_cycles": 1.0,
    "optim.epochs": 20,
    "data.batch_size": 32,
    "data.augment": "crop_flip",
    "evaluation.select": "best",
    "evaluation.patience": 5,  # from epoch 11 on
    "evaluation.patience_start": 10,
    "evaluation.own_gallery": "cut",  # z-scores over all stored videos, in a task's own gallery too
}
ACTNET: dict[str, Any] = {"method.lr": 6e-6, "method.num_experts": 5, "method.fusion_layers": 12, "data.num_frames": 24}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"optim.epochs": 20, "data.batch_size": 32},
    "paper-actnet": {"optim.epochs": 20, "data.batch_size": 32, **ACTNET},
    "released": RELEASED,
    "released-actnet": {**RELEASED, **ACTNET},
    # For the embedded streams, with optim.lr_scale=50: chosen on validation videos before pseudo features had a
    # gradient, and not chosen again. Words alone stay below zero-shot CLIP there: the text tower never aligned them.
    "shapes": {"method.score": "fused", "method.lr_first": 1e-5, "method.lr": 4e-6},
    "framework": Override({"method.lambda1": 0.0, "method.lambda2": 0.0}),  # table 3
    "no-cetf": Override({"method.lambda1": 0.0}),  # "Framework + L_CRP"
    "no-crp": Override({"method.lambda2": 0.0}),  # "Framework + CETF"
}
