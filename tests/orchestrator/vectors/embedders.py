"""Two embedders of videos and texts, whose pipelines can be changed: a tiny CLIP, and random filters in numpy.

Shapes: V clips, T frames, S side of a resized frame, d = 96 numbers of a vector.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.orchestrator.vectors.canaries import TEXTS, clips
from tests.orchestrator.vectors.plantings import Pipeline

SIDE, WIDTH = 64, 96
REFERENCE = 40  # clips of the reference set for means and standard deviations


@dataclass(frozen=True)
class Vectors:
    """Vectors of the canaries, in the order of CLIPS and TEXTS."""

    videos: np.ndarray
    texts: np.ndarray


def embed(embedder: str, pipeline: Pipeline) -> Vectors:
    """Embed the canaries by a pipeline."""
    torch.set_num_threads(pipeline.threads)
    frames = [_prepare(clip, pipeline) for clip in clips().values()]
    texts = [f"{pipeline.prefix}{text}{pipeline.suffix}" for text in TEXTS.values()]
    tower = _Clip(pipeline) if embedder == "tiny-clip" else _Conv(pipeline)
    videos = np.stack([_pool(each, pipeline.pooling) for each in tower.videos(frames)])
    raw = [videos, tower.texts(texts)]
    if pipeline.centre or pipeline.whiten:
        raw = [_by_reference(each, pipeline) for each in raw]
    made = [_finish(each, pipeline) for each in raw]
    shifts = {"both": (True, True), "videos": (True, False), "texts": (False, True)}[pipeline.shifted]
    return Vectors(*(np.roll(each, pipeline.shift, 0) if moved else each for each, moved in zip(made, shifts)))


def _prepare(clip: np.ndarray, pipeline: Pipeline) -> np.ndarray:
    """Sample, resize, crop and scale a clip (24, H, W, 3) to (T, 3, S, S) float32."""
    if pipeline.sampling == "head":
        chosen = np.arange(pipeline.frames)
    else:
        chosen = ((np.arange(pipeline.frames) + 0.5) * len(clip) / pipeline.frames).astype(int)
    frames = torch.from_numpy(clip[chosen].astype(np.float32)).permute(0, 3, 1, 2)
    high, wide = (round(size * pipeline.crop) for size in frames.shape[2:])
    top, left = (frames.shape[2] - high) // 2, (frames.shape[3] - wide) // 2
    frames = frames[:, :, top : top + high, left : left + wide]
    if pipeline.channels == "bgr":
        frames = frames.flip(1)
    how: dict[str, Any] = {
        "area": {"mode": "bilinear", "antialias": True, "align_corners": False},
        "bilinear": {"mode": "bilinear", "align_corners": False},
        "nearest": {"mode": "nearest"},
    }[pipeline.resize]
    resized = torch.nn.functional.interpolate(frames, size=(SIDE, SIDE), **how) / 255
    return (resized if pipeline.pixels == "plain" else (resized - 0.5) / 0.25).numpy()


def _pool(frames: np.ndarray, pooling: str) -> np.ndarray:
    if pooling == "mean":
        return frames.mean(0)
    return frames.max(0) if pooling == "max" else frames[0 if pooling == "first" else -1]


def _by_reference(vectors: np.ndarray, pipeline: Pipeline) -> np.ndarray:
    """Subtract the mean of a set, and divide by its standard deviation: here the set is these vectors and noise."""
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.3 * vectors.std(), (REFERENCE, vectors.shape[1]))
    others = vectors[rng.integers(len(vectors), size=REFERENCE)] + noise
    centred = vectors - pipeline.centre * others.mean(0)
    return (centred / others.std(0) if pipeline.whiten else centred).astype(vectors.dtype)


def _finish(vectors: np.ndarray, pipeline: Pipeline) -> np.ndarray:
    made = vectors.astype(np.float32)
    if pipeline.keep:
        made = made[:, : pipeline.keep]
    if pipeline.norm == "unit":
        made = made / np.linalg.norm(made, axis=1, keepdims=True)
    made = made * np.float32(pipeline.scale)
    if pipeline.clip:
        made = np.clip(made, -pipeline.clip, pipeline.clip)
    if pipeline.store == "bfloat16":
        return torch.from_numpy(made).bfloat16().float().numpy()
    with np.errstate(over="ignore"):
        return made.astype(pipeline.store)


def _rotation(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0].astype(np.float32)


@cache
def _shipped() -> Any:
    return load_backbone("tiny-clip", "shipped")


class _Clip:
    """The tiny CLIP that is shipped, with its tokenizer."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        clip = load_backbone("tiny-clip", "random", seed=pipeline.seed) if pipeline.replaced else _shipped()
        self.clip = copy.deepcopy(clip).eval()
        self.dtype = getattr(torch, pipeline.compute)
        with torch.no_grad():
            self._change()
        self.clip.to(self.dtype)

    def _change(self) -> None:
        chance = torch.Generator().manual_seed(self.pipeline.seed)
        for name, tower in (("videos", self.clip.vision), ("texts", self.clip.text)):
            for weight in tower.parameters():
                if self.pipeline.noisy in ("both", name) and self.pipeline.noise:
                    spread = weight.std() if weight.numel() > 1 else 0.0
                    weight.add_(torch.randn(weight.shape, generator=chance) * spread * self.pipeline.noise)
            if self.pipeline.rotation:
                tower.proj.copy_(tower.proj @ torch.from_numpy(_rotation(self.pipeline.rotation)))
        if self.pipeline.layer == "before":
            self.clip.vision.ln_post = self.clip.text.ln_final = torch.nn.Identity()

    @torch.no_grad()
    def videos(self, frames: list[np.ndarray]) -> list[np.ndarray]:
        size, found = self.pipeline.batch, []
        for start in range(0, len(frames), size):
            batch = torch.from_numpy(np.stack(frames[start : start + size])).to(self.dtype)
            found += list(self.clip.vision(batch).float().numpy())
        return found

    @torch.no_grad()
    def texts(self, texts: list[str]) -> np.ndarray:
        size = self.pipeline.batch
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        return np.concatenate([self.clip.text(self.clip.tokenize(part)).float().numpy() for part in parts])


class _Conv:
    """Random filters over frames, random vectors of words; each ends in a LayerNorm with gain and bias."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.rng = np.random.default_rng(100 + pipeline.seed if pipeline.replaced else 7)
        self.noise = np.random.default_rng(pipeline.seed)
        self.filters = self._weight("videos", 48, 3 * 8 * 8)
        self.mix = self._weight("videos", 48 * 16, WIDTH)
        self.words = self._weight("texts", 512, WIDTH)
        self.hidden = self._weight("texts", WIDTH, WIDTH)
        self.gain = {name: 1 + 0.3 * self.rng.normal(size=WIDTH) for name in ("videos", "texts")}
        self.bias = {name: 0.3 * self.rng.normal(size=WIDTH) for name in ("videos", "texts")}

    def _weight(self, name: str, rows: int, columns: int) -> np.ndarray:
        made = self.rng.normal(size=(rows, columns)) / np.sqrt(rows)
        if self.pipeline.noisy in ("both", name):
            made += self.noise.normal(size=made.shape) * self.pipeline.noise / np.sqrt(rows)
        return self._round(made.astype(np.float32))

    def _round(self, values: np.ndarray) -> np.ndarray:
        if self.pipeline.compute != "bfloat16":
            return values
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).bfloat16().float().numpy()

    def _product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Multiply in blocks of `batch` inner terms, so that another size is another order of sums."""
        size = 8 * self.pipeline.batch
        parts = [left[:, at : at + size] @ right[at : at + size] for at in range(0, left.shape[1], size)]
        return self._round(np.sum(parts, axis=0, dtype=np.float32))

    def _end(self, name: str, values: np.ndarray) -> np.ndarray:
        if self.pipeline.layer != "before":
            values = (values - values.mean(1, keepdims=True)) / (values.std(1, keepdims=True) + 1e-5)
            values = self._round(values * self.gain[name] + self.bias[name])
        if self.pipeline.rotation:
            values = values @ _rotation(self.pipeline.rotation)
        return values.astype(np.float32)

    def videos(self, frames: list[np.ndarray]) -> list[np.ndarray]:
        return [self._end("videos", self._frames(self._round(clip))) for clip in frames]

    def _frames(self, clip: np.ndarray) -> np.ndarray:
        patches = clip.reshape(len(clip), 3, 8, 8, 8, 8).transpose(0, 2, 4, 1, 3, 5).reshape(len(clip) * 64, -1)
        found = np.maximum(self._product(patches, self.filters.T), 0).reshape(len(clip), 4, 2, 4, 2, -1).mean((2, 4))
        return self._product(found.reshape(len(clip), -1), self.mix)

    def texts(self, texts: list[str]) -> np.ndarray:
        sums = [
            sum(
                self.words[zlib.crc32(word.encode()) % 512] / (1 + 0.1 * place)
                for place, word in enumerate(text.split()[:32])
            )
            for text in texts
        ]
        hidden = np.tanh(self._product(self._round(np.stack(sums).astype(np.float32)), self.hidden))
        return self._end("texts", self._product(hidden, self.hidden.T))
