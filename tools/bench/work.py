"""Work that benchmarks measure: a method in its second task, a batch, a training step, an encoding, a few videos."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.merged_weights import MergeCache, merged_weights
from ctvr.methods.base import Batch, Method, Task
from ctvr.orchestrator.config import build, select_prefix
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer
from ctvr.orchestrator.learning.training.unique_videos import Losses
from ctvr.orchestrator.settings.optim_config import OptimConfig

VIT = "ViT-B-32-quickgelu"
Work = Callable[[], object]


def second_task(name: str, backbone: Clip, settings: dict[str, Any] | None = None) -> Method:
    """Build a method with the paper's settings on a copy of a backbone, and begin the second of ten tasks.

    If the method stores features of earlier videos, it has those of 32 videos, as many as a task of MSRVTT-10 has.
    """
    cls = find_method(name)
    values = {**select_prefix(cls.PRESETS.get("paper", {}), "method"), **(settings or {})}
    torch.manual_seed(0)
    method: Method = cls(build(cls.Config, values, "method"), copy.deepcopy(backbone))
    tasks = [Task(index, f"task_{index + 1:02d}", 10, (index,), 10) for index in range(2)]
    for task in tasks[:-1]:
        method.begin_task(task)
        method.end_task(task, [])
        method.on_gallery_stored(task, torch.nn.functional.normalize(torch.randn(32, backbone.embed_dim), dim=-1))
    method.begin_task(tasks[-1])
    return method


def random_batch(backbone: Clip, pairs: int, frames: int) -> Batch:
    """Return a batch of `pairs` random videos, each with a different caption."""
    generator = torch.Generator().manual_seed(0)
    size = backbone.image_size
    return Batch(
        frames=torch.randn(pairs, frames, 3, size, size, generator=generator),
        tokens=backbone.tokenize([f"a red square moves left of {number} blue circles" for number in range(pairs)]),
        video_ids=torch.arange(pairs),
        categories=torch.ones(pairs, dtype=torch.int64),
    )


def training_step(method: Method, batch: Batch) -> Work:
    """Return a function that takes one training step as the loop does.

    The step encodes equal videos once, computes losses and gradients, clips the gradients and updates the parameters.
    """
    groups, optim = method.param_groups(), OptimConfig()
    parameters = freeze_except(method, groups)
    optimizer, losses = make_optimizer(groups, optim, method), Losses(method)
    method.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses(batch).values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, math.inf if optim.grad_clip is None else optim.grad_clip)
        optimizer.step()
        method.after_step()

    return step


def encoding(method: Method, frames: Tensor) -> Work:
    """Return a function that encodes videos `frames` (B, T, 3, H, W) as one batch of a gallery.

    Only the first call merges the weights of adapters into the tower; later calls use the merged weights.
    """
    method.eval()
    kept: MergeCache = {}

    @torch.no_grad()
    @merged_weights(kept)
    def encode() -> Tensor:
        return method.encode_video(frames)

    return encode


def render_few(root: Path, per_split: int) -> Path:
    """Render a stream of two tasks with `per_split` videos in each split of a task; return its manifest."""
    from ctvr.orchestrator.importers.builder import write_manifest
    from ctvr.orchestrator.synthetic.scenes import CATEGORIES, draw_scene
    from ctvr.orchestrator.synthetic.video_files import Clip, render_files

    clips, tasks = [], []
    for index in range(2):
        name = CATEGORIES[index].name
        task: dict[str, Any] = {"name": f"task_{index + 1:02d}", "categories": [name], "train": [], "val": []}
        task["test"] = []
        for number in range(2 * per_split):
            split = "train" if number < per_split else "test"
            scene = draw_scene(index, np.random.default_rng([index, number]))
            clip = Clip(f"{split}/{name}_{number}.mp4", scene, False)
            clips.append(clip)
            item = {"video": f"{name}_{number}", "path": clip.path, "category": name}
            task[split].append({**item, "captions": [f"{scene.captions[False]} {number}"]})
        tasks.append(task)
    render_files(root, clips, 1, False)
    out = root / "few.json"
    write_manifest({"format": 1, "name": "few", "protocol": "ctvr", "settings": {}, "tasks": tasks}, out)
    return out
