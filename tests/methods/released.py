"""Shared parts of comparisons with the authors' codes: tiny models with their weights, and a count of comparisons.

The weights of ZSCL's and MoE-Adapters' reference models are numbers of a recipe (`seeded`), so that no file holds them.
"""

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.huggingface import under_open_clip_names
from ctvr.methods.base import Batch

FIXTURES = Path(__file__).parent / "fixtures"
Weights = dict[str, Tensor]


class Compared:
    """Compares tensors with an authors' outputs, and counts the comparisons by method and kind.

    The tolerance is absolute, and relative for values above 1: kernels of processors round such values differently.
    """

    def __init__(self) -> None:
        self.cases: Counter[tuple[str, str]] = Counter()
        self.worst: dict[tuple[str, str], float] = {}

    def __call__(self, method: str, what: str, ours: Any, theirs: Any, atol: float = 1e-5) -> None:
        ours, theirs = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (ours, theirs))
        scale = theirs.abs().clamp(min=1)
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=atol)
        self.cases[method, what] += 1
        self.worst[method, what] = max(atol, self.worst.get((method, what), 0.0))


def read(path: Path) -> Weights:
    """Read the tensors of a file; those of one kind may be concatenated (`packed/float16`), by a list of shapes."""
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    for kind in [name for name in found if name.startswith("packed/")]:
        numbers, at = found.pop(kind), 0
        for name, shape in json.loads(bytes(found.pop(kind.replace("packed", "shapes")))).items():
            size = int(np.prod(shape))
            found[name], at = numbers[at : at + size].reshape(shape), at + size
    return {name: torch.from_numpy(array) for name, array in found.items()}


def floats(tensors: Mapping[str, Tensor], prefix: str = "") -> Weights:
    """Return the tensors whose name begins with `prefix`, without it; weights are stored exactly as float16."""
    found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return {name: value.float() if value.is_floating_point() else value for name, value in found.items()}


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)


def seeded(name: str, shape: tuple[int, ...], moved: bool = False) -> Tensor:
    """Return a weight of the recipe, float16 as float32; `moved`: of the model at some distance from it."""
    is_norm, is_bias = "ln_" in name, name.endswith("bias")
    mean, scale, step = 0.0, 1 / np.sqrt(np.prod(shape[1:])), None
    if is_norm:
        mean, scale, step = (0.0, 0.1, 0.003) if is_bias else (1.0, 0.1, 0.03)
    elif is_bias:
        scale = 0.05
    elif "positional" in name:
        scale = 0.2
    elif name.endswith("class_embedding") or name.startswith("token_embedding"):
        scale = 0.5
    elif "router_list" in name or "noise_list" in name:
        scale = 0.3
    elif name == "text_projection":
        scale = 1 / np.sqrt(shape[1])
    elif name == "visual.proj":
        scale = 0.125
    made = (np.float32(mean) + np.float32(scale) * draw(name, shape)).astype(np.float16).astype(np.float32)
    if moved:
        step = 0.1 * scale if step is None else step
        made = (made + np.float32(step) * draw(f"next/{name}", shape)).astype(np.float16).astype(np.float32)
    return torch.from_numpy(made)


def shape_of(vision: tuple[int, int, int], text: tuple[int, int, int], **rest: int) -> dict[str, int]:
    """Return the shape of a CLIP: width, blocks and heads of each tower, and embed, image, patch, context, vocab."""
    what = ("width", "layers", "heads")
    towers = {f"{t}_{name}": n for t, of in (("vision", vision), ("text", text)) for name, n in zip(what, of)}
    return rest | towers


def tiny_source(shape: Mapping[str, int]) -> open_clip.CLIP:
    return open_clip.CLIP(
        embed_dim=shape["embed"],
        quick_gelu=True,
        vision_cfg={
            "layers": shape["vision_layers"],
            "width": shape["vision_width"],
            "head_width": shape["vision_width"] // shape["vision_heads"],
            "patch_size": shape["patch"],
            "image_size": shape["image"],
            "mlp_ratio": shape.get("mlp", 4.0),
        },
        text_cfg={
            "context_length": shape["context"],
            "vocab_size": shape["vocab"],
            "width": shape["text_width"],
            "heads": shape["text_heads"],
            "layers": shape["text_layers"],
            "mlp_ratio": shape.get("mlp", 4.0),
        },
    )


def tiny_clip(shape: Mapping[str, int], weights: Mapping[str, Tensor] | None = None) -> Clip:
    """Build a CLIP of such a shape; `weights` have open_clip's names, and may be incomplete."""
    source = tiny_source(shape)
    assert source.load_state_dict(dict(weights or {}), strict=False).unexpected_keys == []
    blank = torch.zeros(1, shape["context"], dtype=torch.int64)
    return Clip(source, lambda texts: blank.expand(len(texts), -1), (0.5,) * 3, (0.5,) * 3).eval()


def transformers_clip(shape: Mapping[str, int], state: Mapping[str, Tensor]) -> Clip:
    """Build a CLIP of such a shape from `state`, which has all its weights under transformers' names and may have
    others.
    """
    wanted = tiny_source(shape).state_dict()
    found = under_open_clip_names(state, wanted)
    return tiny_clip(shape, {name: found[name] for name in wanted})


CONTINUAL = shape_of((64, 2, 1), (64, 2, 1), embed=32, image=32, patch=8, context=77, vocab=512)


def continual_clip(moved: bool = False) -> Clip:
    """Build the model of ZSCL's and MoE-Adapters' references."""
    source = tiny_source(CONTINUAL)
    shapes = {name: tuple(parameter.shape) for name, parameter in source.named_parameters() if parameter.ndim}
    weights = {name: seeded(name, shape, moved) for name, shape in shapes.items()}
    return tiny_clip(CONTINUAL, {**weights, "logit_scale": torch.tensor(4.6).half().float()})


def pairs(frames: Tensor, tokens: Tensor) -> Batch:
    count = torch.arange(len(frames))
    return Batch(frames=frames, tokens=tokens, video_ids=count, categories=torch.zeros_like(count))
