"""Changes of an embedder that the diagnosis must find, listed before the diagnosis was written.

A planting is a change of the settings of a real pipeline (`embedders.py`), never of its vectors. Kinds in HELD_OUT were
not run while the diagnosis was written. The program draws 13 kinds of OPEN and 7 of HELD_OUT, with parameters and
embedder, from one seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

Settings = dict[str, Any]
EMBEDDERS = ("tiny-clip", "random-conv")
NUM_OPEN, NUM_HELD_OUT = 13, 7
FINAL_SEED = 20261129  # of the reported table; not drawn while the diagnosis was written


@dataclass(frozen=True)
class Pipeline:
    """Settings of an embedder's pipeline, from files to stored vectors; the defaults are those of the index."""

    frames: int = 12
    sampling: str = "uniform"  # uniform: middles of equal parts; head: the first frames
    channels: str = "rgb"  # rgb, bgr
    resize: str = "area"  # area, bilinear, nearest
    crop: float = 1.0  # share of each side that a center crop keeps
    pixels: str = "standard"  # standard: (x / 255 - mean) / std; plain: x / 255
    pooling: str = "mean"  # mean, max, first, last
    prefix: str = ""  # before each text
    suffix: str = ""  # after each text
    layer: str = "final"  # final: after the last LayerNorm; before: its input
    noise: float = 0.0  # standard deviation of a change of the weights, relative to each tensor's
    noisy: str = "both"  # both, videos, texts: towers whose weights change
    seed: int = 0  # of the weights (random-conv) or of the noise
    replaced: bool = False  # another model of the same size
    rotation: int = 0  # seed of an orthogonal matrix in the last projection; 0: none
    keep: int = 0  # leading dimensions that are kept; 0: all
    centre: float = 0.0  # share of the mean of a reference set that is subtracted before normalization
    whiten: bool = False  # divide by the standard deviation of a reference set, per dimension
    scale: float = 1.0  # factor of all vectors, after normalization
    norm: str = "unit"  # unit, none
    compute: str = "float32"  # float32, bfloat16: of the towers
    store: str = "float32"  # float32, float16, bfloat16
    clip: float = 0.0  # saturating cast: largest absolute value; 0: none
    shift: int = 0  # rows by which vectors are shifted against their ids
    shifted: str = "both"  # both, videos, texts
    batch: int = 16
    threads: int = 1


@dataclass(frozen=True)
class Kind:
    """A kind of planting: the causes that count as right, and its parameters drawn by a generator."""

    name: str
    causes: tuple[str, ...]
    draw: Callable[[Generator], Settings]
    base: Settings = field(default_factory=dict)  # settings of the index itself


def _one(rng: Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


OPEN = (
    Kind("missing norm", ("normalisation",), lambda rng: {"norm": "none"}),
    Kind("BGR for RGB", ("bgr",), lambda rng: {"channels": "bgr"}),
    Kind("other pooling", ("pooling",), lambda rng: {"pooling": _one(rng, "max", "first")}),
    Kind("prompt added", ("prompt",), lambda rng: {"prefix": _one(rng, "a video of ", "query: ", "a clip in which ")}),
    Kind("8 frames for 12", ("frames",), lambda rng: {"frames": _one(rng, 8, 6, 16)}),
    Kind("layer before the norm", ("layer",), lambda rng: {"layer": "before"}),
    Kind("permuted rows", ("permuted",), lambda rng: {"shift": _one(rng, 1, 2, -1)}),
    Kind(
        "float16 overflow",
        ("overflow",),
        lambda rng: {"store": "float16", "scale": float(_one(rng, 3e4, 5e4, 8e4))},
        {"norm": "none"},
    ),
    Kind("center crop", ("crop",), lambda rng: {"crop": float(rng.uniform(0.75, 0.9))}),
    Kind("bfloat16", ("bf16",), lambda rng: _one(rng, {"store": "bfloat16"}, {"compute": "bfloat16"})),
    Kind("other scale", ("scale",), lambda rng: {"scale": float(_one(rng, 0.01, 10.0, 100.0))}),
    Kind("rotated basis", ("rotated",), lambda rng: {"rotation": int(rng.integers(1, 1000))}),
    Kind("other revision", ("revision",), lambda rng: {"noise": float(rng.uniform(0.02, 0.1))}),
    Kind("other model", ("model",), lambda rng: {"replaced": True, "seed": int(rng.integers(1, 1000))}),
    Kind("truncated dimensions", ("truncated",), lambda rng: {"keep": _one(rng, 32, 48, 64)}),
    Kind("centred", ("centred",), lambda rng: {"centre": 1.0}),
)
HELD_OUT = (
    Kind("nearest resize", ("crop",), lambda rng: {"resize": "nearest"}),
    Kind("pixels not standardized", ("crop",), lambda rng: {"pixels": "plain"}),
    Kind("first frames only", ("frames",), lambda rng: {"sampling": "head", "frames": _one(rng, 8, 12)}),
    Kind("last frame", ("pooling", "frames"), lambda rng: {"pooling": "last"}),
    Kind("prompt after the text", ("prompt",), lambda rng: {"suffix": _one(rng, ", a video", " in a short clip")}),
    Kind("texts shifted", ("permuted",), lambda rng: {"shift": _one(rng, 1, 3), "shifted": "texts"}),
    Kind(
        "saturated cast",
        ("overflow",),
        lambda rng: {"store": "float16", "scale": float(_one(rng, 3e4, 6e4)), "clip": 65504.0},
        {"norm": "none"},
    ),
    Kind(
        "one tower of another revision",
        ("revision",),
        lambda rng: {"noise": float(rng.uniform(0.03, 0.1)), "noisy": _one(rng, "videos", "texts")},
    ),
    Kind("standardized dimensions", ("basis", "rotated"), lambda rng: {"whiten": True, "norm": "none"}),
)


@dataclass(frozen=True)
class Planting:
    """One drawn change of one embedder."""

    kind: Kind
    embedder: str
    changes: Settings
    is_held_out: bool


def draw(seed: int) -> list[Planting]:
    """Draw the plantings of a seed: NUM_OPEN distinct open kinds and NUM_HELD_OUT held-out ones."""
    rng = np.random.default_rng(seed)
    found = []
    for kinds, count in ((OPEN, NUM_OPEN), (HELD_OUT, NUM_HELD_OUT)):
        for place in sorted(rng.choice(len(kinds), count, replace=False)):
            kind = kinds[place]
            found.append(Planting(kind, _one(rng, *EMBEDDERS), kind.draw(rng), kinds is HELD_OUT))
    return found


def draw_rounding(seed: int, count: int) -> list[tuple[str, Settings]]:
    """Draw changes that differ by rounding only: batches or order of sums, threads, and storage in float16."""
    rng = np.random.default_rng(seed)
    return [
        (
            EMBEDDERS[number % 2],
            {
                "batch": int(rng.integers(1, 16)),
                "threads": int(rng.integers(1, 3)),
                "store": _one(rng, "float32", "float16"),
            },
        )
        for number in range(count)
    ]
