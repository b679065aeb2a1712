"""Streams of precomputed features: each video is an array that another program computed, not a video file.

An array is (T, d), one vector per frame, or (d,) for the whole clip; a method gets `data.num_frames` of the vectors. If
the captions also have features, both towers come from `methods/backbone/vectors.py`. Otherwise the vectors are outputs
of CLIP's vision tower, which must be completely frozen, and CLIP's text tower encodes the captions.

Shapes: T stored vectors, d dimensions of a vector, N captions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.vectors import CaptionTable, Vectors
from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.layers.feature_maps import ridge_map
from ctvr.orchestrator.data.array_files import read_npz
from ctvr.orchestrator.data.arrays import read_features, validate_features
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import DEFAULT_RESIZE, ArraySource, FrameSource
from ctvr.orchestrator.data.images import ImageSource
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream

MEMORY = 256 * 2**20  # bytes of video features that a run keeps in memory
START_NOISE = (
    0.1  # `noise` of `ridge_map`: a ridge of 1 % of the number of pairs, since unit vectors have few large directions
)


def frame_source(
    stream: Stream, store: Store, config: DataConfig, image_size: int, resize: tuple[str, str] = DEFAULT_RESIZE
) -> FrameSource:
    """Return the source of a stream's items: decoded frames, arrays of features, or arrays of images."""
    check_center(config, bool(stream.text_features), stream.name)
    if stream.domain == "images":
        return ImageSource(stream, store, config)
    if stream.has_features:
        return FeatureSource(stream, store, config)
    return FrameSource(store, config, image_size, resize)


def check_center(config: DataConfig, has_texts: bool, stream: str) -> None:
    """Check that `data.center` is set only for a stream with caption features.

    Raises:
        ConfigError: if it is set for another stream.
    """
    if config.center and not has_texts:
        fault = f"requires features of captions, which stream {stream} lacks"
        raise ConfigError(fault, "data.center", write=("data.center=false",))


class FeatureSource(ArraySource):
    """Source of feature arrays, which are read from the items' files.

    Raises:
        ConfigError: for settings that apply to frames only.
    """

    def __init__(self, stream: Stream, store: Store, config: DataConfig) -> None:
        plain = {"augment": "none", "sampling": "segments", "jpeg_quality": None}
        super().__init__(stream, store, config, "features", plain)
        self.num_frames = config.num_frames
        self._texts = digest_file(stream.text_features) if stream.text_features else ""
        self._mean = first_videos(stream).mean(dim=0).numpy() if config.center else None
        self._kept: dict[str, np.ndarray] = {}
        self._left = MEMORY

    def _key(self, item: Item, file: Any) -> str:
        mean = {} if self._mean is None else {"mean": self._mean.tobytes().hex()}
        return digest_of({"features": file, "texts": self._texts, "num_frames": self.num_frames, **mean})

    def load(self, item: Item) -> np.ndarray:
        """Return the stored vectors in the middle of `num_frames` equal parts, (num_frames, 1, d) float32, read-only.

        Each epoch reads all training videos, so the first `MEMORY` bytes of features are kept in memory.
        """
        if item.path in self._kept:
            return self._kept[item.path]
        found = read_features(item.path)
        found = found if self._mean is None else found - self._mean
        chosen = ((np.arange(self.num_frames) + 0.5) * len(found) / self.num_frames).astype(int)
        vectors = found[chosen][:, None]
        vectors.flags.writeable = False
        if vectors.nbytes <= self._left:
            self._kept[item.path] = vectors
            self._left -= vectors.nbytes
        return vectors


class CaptionLookup:
    """Tokenizer of a stream with caption features, which maps texts to (N, 1) row indices of its `CaptionTable`.

    Attributes:
        encode: function that returns vectors (N, d') of texts that are not captions; if None, such texts are refused.
    """

    def __init__(self, texts: Iterable[str], table: CaptionTable, name: str) -> None:
        self.rows = {text: row for row, text in enumerate(texts)}
        self.table, self.name = table, name
        self.encode: Callable[[list[str]], Tensor] | None = None

    def __call__(self, texts: list[str]) -> Tensor:
        others = [text for text in dict.fromkeys(texts) if text not in self.rows]
        rows = self.rows
        if others and self.encode is None:
            raise ConfigError(
                f"{self.name}: has no features of the text {others[0][:60]!r}, and no text tower to compute them. Add "
                "it to the stream's text features."
            )
        if others and self.encode is not None:
            numbers = dict(zip(others, self.table.hold(self.encode(others)).tolist()))
            rows = {text: self.rows.get(text, numbers.get(text, 0)) for text in texts}
        return torch.tensor([[rows[text]] for text in texts], dtype=torch.int64)


def attach_features(clip: Clip, stream: Stream) -> Clip:
    """Set CLIP's vision tower to take the video features of a stream, and return CLIP.

    Raises:
        ConfigError: if the width of the tower's output differs from the width of the features.
    """
    width = read_features(stream.tasks[0].train[0].path).shape[1]
    clip.vision.takes_features, clip.vision.entry = True, len(clip.vision.blocks)
    if clip.embed_dim != width:
        raise ConfigError(
            f"its video features have width {width}, its text features {clip.embed_dim}",
            f"stream {stream.name}",
            remedy="Use the backbone.name that computed them, or also import features of the captions with text=.",
        )
    return clip


def load_vectors(stream: Stream, is_centered: bool = False) -> Vectors:
    """Build towers over the features of a stream's videos and captions.

    If captions and videos differ in width, the text tower starts with a ridge map from caption to video features. The
    map is fitted to the training pairs of the first task that is learned (after an upgrade, of `upgrade.task`).

    Args:
        stream: stream with video and caption features.
        is_centered: `data.center`; the source of the video features subtracts their mean.

    Raises:
        ConfigError: if the file of the caption features is damaged.
    """
    assert stream.text_features is not None
    texts, table = caption_features(Path(stream.text_features))
    lookup = CaptionLookup(texts, table, features_name(stream))
    first = _first_items(stream)
    rows = lookup([caption for item in first for caption in item.captions])
    if is_centered:
        vectors, counts = table(rows[:, 0])
        table.subtract(vectors.sum(dim=(0, 1)) / counts.sum())
    videos = first_videos(stream)
    towers = Vectors(videos.shape[1], table, lookup)
    if towers.vision.width != towers.text.width:
        videos = l2_normalize(videos - videos.mean(dim=0) if is_centered else videos)
        y = videos.repeat_interleave(torch.tensor([len(item.captions) for item in first]), dim=0)
        x = l2_normalize(towers.text.vectors(rows))
        towers.text.start_from(ridge_map(x - x.mean(dim=0), y - y.mean(dim=0), START_NOISE).float(), x.mean(dim=0))
    return towers


def saved_vectors(weights: Mapping[str, Tensor], name: str, prefix: str = "") -> Vectors:
    """Return towers of the widths of a saved model's weights, without the captions of its stream.

    Args:
        weights: weights of the whole method.
        name: name of the model, for the error about a text without features.
        prefix: prefix of one model's weights; after an upgrade there are two models.
    """
    own = {f".{key}": value for key, value in weights.items() if key.startswith(prefix)}
    text, video = (
        next(value for key, value in own.items() if key.endswith(f".{tower}.proj")) for tower in ("text", "vision")
    )
    center = next((value for key, value in own.items() if key.endswith("text.table.center")), None)
    table = CaptionTable(torch.zeros(1, text.shape[0]), torch.arange(2), center)
    return Vectors(video.shape[0], table, CaptionLookup([], table, name))


def first_videos(stream: Stream) -> Tensor:
    """Return the mean vector of each training video of the first task that is learned, (V, d)."""
    return torch.stack([torch.from_numpy(read_features(item.path)).mean(dim=0) for item in _first_items(stream)])


def _first_items(stream: Stream) -> tuple[Item, ...]:
    return next(task.train for index, task in enumerate(stream.tasks) if stream.method_task(index) >= 0)


def features_name(stream: Stream) -> str:
    """Return the name of the stream that was imported with the features (after an upgrade, of the newer stream)."""
    return stream.newer.name if stream.newer is not None and stream.learned else stream.name


def caption_features(path: Path) -> tuple[list[str], CaptionTable]:
    """Read captions and the table of their vectors from a file that an import wrote.

    Raises:
        ConfigError: if it is damaged.
    """
    found = read_npz(path)
    try:
        assert isinstance(found, dict)
        texts, rows = [str(text) for text in found["texts"]], validate_features(found["features"], str(path))
        starts = torch.from_numpy(found.get("starts", np.arange(len(texts) + 1)).astype(np.int64))
        if len(starts) != len(texts) + 1 or int(starts[-1]) != len(rows) or bool((starts[1:] <= starts[:-1]).any()):
            raise ValueError("the numbers of texts and vectors differ")
    except (AssertionError, KeyError, ValueError) as error:
        raise ConfigError("does not contain vectors for each text", path, remedy="Import the stream again.") from error
    return texts, CaptionTable(torch.from_numpy(rows), starts)


def refuse_unfrozen(name: str, method: Method, clip: Clip, stream: Stream) -> None:
    """Check that a method does not change a vision tower that a stream's features replace.

    Raises:
        ConfigError: if the method changes the tower; the message names the method.
    """
    if stream.has_features and not stream.text_features and method.frozen_blocks < len(clip.vision.blocks):
        raise ConfigError(
            f"{name} changes its vision tower, but stream {stream.name} has features instead of frames",
            "method",
            remedy="Also import features of the captions with text=, or choose a method that leaves it frozen: "
            "zero_shot, framefusion_moe with method.use_ffa=false.",
        )
