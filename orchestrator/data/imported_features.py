"""Streams of precomputed features: each video is an array that another program computed, not a video file.

An array is (T, d), one vector per frame, or (d,) for the whole clip. A method gets `data.num_frames` of them as the
output of its vision tower, so the tower must be completely frozen. If the stream also has features of captions, a
lookup table replaces the text tower; otherwise the backbone's text tower, which must match the features, encodes the
captions.

Shapes: T stored vectors, d joint embedding, N captions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, Seams, TextTower
from ctvr.methods.base import Method
from ctvr.orchestrator.data.arrays import read_arrays, read_features, validate_features
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import DEFAULT_RESIZE, ArraySource, FrameSource
from ctvr.orchestrator.data.images import ImageSource
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream


def frame_source(
    stream: Stream, store: Store, config: DataConfig, image_size: int, resize: tuple[str, str] = DEFAULT_RESIZE
) -> FrameSource:
    """Return the source of a stream's items: decoded frames, arrays of features, or arrays of images."""
    if stream.domain == "images":
        return ImageSource(stream, store, config)
    if stream.has_features:
        return FeatureSource(stream, store, config)
    return FrameSource(store, config, image_size, resize)


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

    def _key(self, item: Item, file: Any) -> str:
        return digest_of({"features": file, "texts": self._texts, "num_frames": self.num_frames})

    def load(self, item: Item) -> np.ndarray:
        """Return the stored vectors in the middle of `num_frames` equal parts, (num_frames, 1, d) float32."""
        found = read_features(item.path)
        chosen = ((np.arange(self.num_frames) + 0.5) * len(found) / self.num_frames).astype(int)
        return found[chosen][:, None]


class CaptionTable(TextTower):
    """Replacement of a frozen text tower: looks up row `tokens[:, 0]` of a table of features (N, d)."""

    def __init__(self, table: Tensor) -> None:
        nn.Module.__init__(self)
        self.register_buffer("table", table, persistent=False)
        self.blocks = nn.ModuleList()
        self.width, self.heads, self.context_length = int(table.shape[1]), 1, 1

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        found: Tensor = self.get_buffer("table")[tokens[:, 0]]
        return found


class CaptionLookup:
    """Tokenizer for a `CaptionTable`: captions -> (N, 1) rows of the table."""

    def __init__(self, texts: Iterable[str], name: str) -> None:
        self.rows = {text: row for row, text in enumerate(texts)}
        self.name = name

    def __call__(self, texts: list[str]) -> Tensor:
        for text in texts:
            if text not in self.rows:
                raise ConfigError(
                    f"{self.name}: has no features of the text {text[:60]!r}, and no text tower to compute them. Add "
                    "it to the stream's text features."
                )
        return torch.tensor([[self.rows[text]] for text in texts], dtype=torch.int64)


def attach_features(clip: Clip, stream: Stream) -> Clip:
    """Return a backbone that takes the features of a stream instead of frames; unchanged if the stream has frames.

    Raises:
        ConfigError: if the text features have another dimension than the video features.
    """
    if not stream.has_features:
        return clip
    width = read_features(stream.tasks[0].train[0].path).shape[1]
    clip.vision.takes_features, clip.vision.entry = True, len(clip.vision.blocks)
    if stream.text_features:
        texts, vectors = _caption_features(Path(stream.text_features))
        table = torch.from_numpy(vectors)
        clip.text, clip.embed_dim = CaptionTable(table), int(table.shape[1])
        clip.tokenize = CaptionLookup(texts, stream.name)
    if clip.embed_dim != width:
        remedy = "Import features of one model" if stream.text_features else "Use the backbone.name that computed them"
        numbers = f"its videos have features of {width} numbers, but its texts of {clip.embed_dim}"
        raise ConfigError(f"{numbers}. {remedy}.", f"stream {stream.name}")
    return clip


def _caption_features(path: Path) -> tuple[list[str], np.ndarray]:
    """Read N captions and their features (N, d) from a file that an import wrote."""
    found = read_arrays(path)
    vectors = list(found.values()) if isinstance(found, dict) else []
    if not vectors or any(each.dtype.kind != "f" or each.shape != (vectors[0].size,) for each in vectors):
        raise ConfigError("does not hold one vector for each text", path, remedy="Import the stream again.")
    return list(found), validate_features(np.stack(vectors), str(path))


def refuse_unfrozen(name: str, method: Method, clip: Clip, stream: Stream) -> None:
    """Check that a method does not change a tower that the stream's features replace.

    Raises:
        ConfigError: if it does; the message names the method.
    """
    if not stream.has_features:
        return
    depth = len(clip.vision.blocks)
    if method.frozen_blocks < depth:
        raise ConfigError(
            f"{name} changes its vision tower, but stream {stream.name} has features instead of frames",
            "method",
            remedy="Choose one that leaves it frozen: zero_shot, framefusion_moe with method.use_ffa=false.",
        )
    if stream.text_features and not method.declared.text_is_frozen:
        raise ConfigError(
            f"{name} changes its text tower, but stream {stream.name} has features instead of captions",
            "method",
            remedy="Choose one that leaves it frozen, such as zero_shot, or import the stream without text=.",
        )
