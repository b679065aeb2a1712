"""Streams whose videos are features that another program has computed: an array for each video in the place of a file.

An array is (T, d), a vector for each frame, or (d,) for the whole clip; a method gets `data.num_frames` of them as what
its vision tower would say of as many frames. So the tower must be frozen, all of it. With features of captions, too,
the text tower is replaced by a table; without, the tower of the backbone that made them reads the captions.

Shapes: T stored vectors, d joint embedding, N captions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip, Seams, TextTower
from ctvr.methods.base import Method
from ctvr.orchestrator.data.arrays import read_arrays, read_features, validate_features
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import Broken, FrameSource
from ctvr.orchestrator.data.images import ImageSource
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream


def frame_source(stream: Stream, store: Store, config: DataConfig, image_size: int) -> FrameSource:
    """Where the items of a stream come from: decoded frames, arrays of features, or arrays of images."""
    if stream.domain == "images":
        return ImageSource(stream, store, config)
    return FeatureSource(stream, store, config) if stream.has_features else FrameSource(store, config, image_size)


class FeatureSource(FrameSource):
    """Arrays of features by way of their files; nothing is decoded and nothing is stored.

    Raises:
        ConfigError: for settings that only frames can follow.
    """

    def __init__(self, stream: Stream, store: Store, config: DataConfig) -> None:
        for name, has in (("augment", "none"), ("sampling", "segments")):
            if getattr(config, name) != has:
                raise ConfigError(
                    f"data.{name}: {getattr(config, name)} is for frames, and stream {stream.name} has features. "
                    f"Write data.{name}={has}."
                )
        self.store, self.num_frames, self.candidates = store, config.num_frames, None
        self._texts = digest_file(stream.text_features) if stream.text_features else ""
        self._keys: dict[Item, str] = {}

    def _key(self, item: Item, file: Any) -> str:
        return digest_of({"features": file, "texts": self._texts, "num_frames": self.num_frames})

    def load(self, item: Item) -> np.ndarray:
        """`num_frames` of the stored vectors, the middles of equal parts: (num_frames, 1, d) float32."""
        found = read_features(item.path)
        chosen = ((np.arange(self.num_frames) + 0.5) * len(found) / self.num_frames).astype(int)
        return found[chosen][:, None]

    def decode_missing(
        self,
        items: Sequence[Item],
        workers: int = 2,
        progress: Callable[[int], object] | None = None,
        pool: object = None,
    ) -> tuple[int, Broken]:
        """Nothing is to be decoded; the items whose array is none, with the reason."""
        broken: Broken = []
        for item in items:
            try:
                read_features(item.path)
            except VideoError as error:
                broken.append((item, error))
        return 0, broken


class CaptionTable(TextTower):
    """Stands for a frozen text tower: row `tokens[:, 0]` of a table of features (N, d)."""

    def __init__(self, table: Tensor) -> None:
        nn.Module.__init__(self)
        self.register_buffer("table", table, persistent=False)
        self.blocks = nn.ModuleList()
        self.width, self.heads, self.context_length = int(table.shape[1]), 1, 1

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        found: Tensor = self.get_buffer("table")[tokens[:, 0]]
        return found


class CaptionLookup:
    """A tokenizer: captions -> (N, 1) rows of the table."""

    def __init__(self, texts: Iterable[str], name: str) -> None:
        self.rows = {text: row for row, text in enumerate(texts)}
        self.name = name

    def __call__(self, texts: list[str]) -> Tensor:
        for text in texts:
            if text not in self.rows:
                raise ConfigError(
                    f"{self.name}: has no features of the text {text[:60]!r}, and there is no text tower to make them. "
                    "Add it to the stream's text features."
                )
        return torch.tensor([[self.rows[text]] for text in texts], dtype=torch.int64)


def attach_features(clip: Clip, stream: Stream) -> Clip:
    """A backbone that takes the features of a stream in the place of frames; as it is, if the stream has frames.

    Raises:
        ConfigError: if its text tower makes vectors of another length.
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
        remedy = "Import features of one model" if stream.text_features else "Name the backbone.name that made them"
        numbers = f"its videos have features of {width} numbers, its texts of {clip.embed_dim}"
        raise ConfigError(f"stream {stream.name}: {numbers}. {remedy}.")
    return clip


def _caption_features(path: Path) -> tuple[list[str], np.ndarray]:
    """Read N captions and their features (N, d) from the file that an import has written."""
    found = read_arrays(path)
    texts, features = (found.get(name) if isinstance(found, dict) else None for name in ("texts", "features"))
    if texts is None or features is None or texts.dtype.kind != "U" or texts.ndim != 1:
        raise ConfigError(f"{path}: does not hold texts and features. Import the stream again.")
    vectors = validate_features(features, str(path))
    if len(vectors) != len(texts):
        raise ConfigError(f"{path}: has {len(vectors)} features of {len(texts)} texts. Import the stream again.")
    return texts.tolist(), vectors


def refuse_unfrozen(name: str, method: Method, clip: Clip, stream: Stream) -> None:
    """Refuse a method that would change a tower in whose place the stream has features.

    Raises:
        ConfigError: naming the method.
    """
    if not stream.has_features:
        return
    depth = len(clip.vision.blocks)
    if method.frozen_blocks < depth:
        raise ConfigError(
            f"method: {name} changes its vision tower, and stream {stream.name} has features in the place of frames. "
            "Choose one that leaves it frozen: zero_shot, framefusion_moe with method.use_ffa=false."
        )
    if stream.text_features and not method.text_is_frozen:
        raise ConfigError(
            f"method: {name} changes its text tower, and stream {stream.name} has features in the place of captions. "
            "Choose one that leaves it frozen, such as zero_shot, or import the stream without text=."
        )
