"""Vectors of queries for a model over imported features: from the user, or from the text encoder that the card names.

Shapes: N queries, d' dimensions of a caption's vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctvr.methods.backbone.architectures import SHIPPED
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import check_backbone, is_path
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.methods.backbone.vectors import CaptionTable
from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.families.upgrade import Upgraded
from ctvr.orchestrator.data.arrays import read_arrays, validate_features
from ctvr.orchestrator.data.imported_features import caption_features
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.settings.experiment import BackboneConfig
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.vectors.card import Card
from ctvr.orchestrator.vectors.feature_set import find_set

COMPARED = 8  # captions of the stream that a text encoder embeds again
TOLERANCE = 0.02  # distance of its vectors from the stored ones, relative to their length; half precision gives 0.001
UNIT = 1e-2  # largest distance of a unit vector's length from 1


def read_query_vectors(file: Path) -> np.ndarray:
    """Read query vectors (N, d') float32 from a file with one array (N, d') or (d',), such as .npy.

    Raises:
        ConfigError: for an unreadable file, another shape, NaN or infinite values, or a vector of zeros.
    """
    found = read_arrays(file)
    if not isinstance(found, np.ndarray):
        fault = f"has {len(found)} arrays with names, not one array (queries, d)"
        raise ConfigError(fault, f"--vectors {file}", remedy="Save one array with np.save.")
    return check_query_vectors(found, f"--vectors {file}")


def check_one_embedder(method: Method, model: str) -> None:
    """Refuse query vectors for an upgraded method that also needs vectors by the old embedder.

    Raises:
        ConfigError: if the method needs vectors by both embedders.
    """
    if isinstance(method, Upgraded) and method.queries == "both":
        fault = "needs vectors of a query by the old and the new embedder"
        raise ConfigError(fault, f"model {model}", remedy="Use captions of the stream, or use upgrade.queries=map.")


def check_query_vectors(found: Any, where: str = "search", width: int = 0) -> np.ndarray:
    """Return query vectors (N, d') float32.

    Args:
        found: an array or tensor (N, d') or (d',).
        where: their name in errors.
        width: d' of the model's captions; 0 accepts any width.

    Raises:
        ConfigError: for another shape or width, NaN or infinite values, or a vector of zeros.
    """
    given = found.detach().float().cpu() if isinstance(found, Tensor) else found
    try:
        vectors = validate_features(np.asarray(given), where)
    except VideoError as error:
        fault = error.reason.replace("features", "query vectors").replace("frames", "queries")
        raise ConfigError(fault, where, remedy="Pass an array (queries, d) or (d,).") from error
    if width and vectors.shape[1] != width:
        fault = f"query vectors have {vectors.shape[1]} dimensions, but the captions of the model have {width}"
        raise ConfigError(fault, where, remedy="Embed the queries as the captions were.")
    if not (lengths := vectors.any(axis=1)).all():
        row = int((~lengths).argmax())
        raise ConfigError(f"row {row} is a vector of zeros", where, remedy="Remove it, or embed that query again.")
    return vectors


@dataclass
class QueryEncoder:
    """Encoder of texts for a model over the features of a stream, loaded when it receives the first text.

    Attributes:
        stream: the model's stream; None if it is not available.
        model: name of the model, for errors.
        width: d' of its captions.
    """

    stream: Stream | None
    model: str
    width: int
    _encoder: _TextEncoder | None = None
    _captions: tuple[dict[str, int], CaptionTable] | None = None

    def __call__(self, texts: list[str]) -> Tensor:
        """Return vectors (N, d') of texts: imported vectors for captions of the stream, and encoded for other texts."""
        if self.stream is None or not self.stream.text_features:
            raise self._refusal(texts[0], "its stream is not available")
        if self._captions is None:
            captions, table = caption_features(Path(self.stream.text_features))
            self._captions = {text: row for row, text in enumerate(captions)}, table
        rows, table = self._captions
        others = [text for text in texts if text not in rows]
        if others and self._encoder is None:
            self._encoder = self._load(others[0], rows, table)
        new = self._encoder.encode(others) if others and self._encoder is not None else table.rows[:0]
        made, left = [], iter(new)
        for text in texts:
            made.append(next(left) if text not in rows else _mean_vector(table, rows[text]))
        return torch.from_numpy(check_query_vectors(torch.stack(made), f"model {self.model}", self.width))

    def _load(self, text: str, rows: dict[str, int], table: CaptionTable) -> _TextEncoder:
        assert self.stream is not None
        assert self.stream.text_features is not None
        found = find_set(Path(self.stream.text_features).parent)
        if found is None:
            raise self._refusal(text, f"stream {self.stream.name} has no card")
        card = found.card
        try:
            clip = load_clip(_backbone_of(card))
        except ConfigError as error:
            reason = f"the card's embedder {card.embedder!r} cannot be loaded: {error.described.rstrip('.')}"
            raise self._refusal(text, reason) from error
        compared = list(rows)[:: max(1, len(rows) // COMPARED)][:COMPARED]
        stored = torch.stack([_mean_vector(table, rows[caption]) for caption in compared])
        are_unit = bool(((stored.norm(dim=1) - 1).abs() < UNIT).all())
        is_unit = card.is_unit or ("normalisation" not in card.values and are_unit)
        encoder = _TextEncoder(clip, card.values.get("prompt", "{}"), is_unit)
        made = encoder.encode(compared)
        if made.shape != stored.shape:
            fault = f"has vectors of {made.shape[1]} dimensions, the captions of {stored.shape[1]}"
            raise self._refusal(text, f"the card's embedder {card.embedder!r} {fault}")
        distance = float(((made - stored).norm(dim=1) / stored.norm(dim=1).clamp(min=1e-12)).max())
        if not distance <= TOLERANCE:
            fault = (
                f"gives other vectors for the stream's captions than the stored ones (relative distance {distance:.2g})"
            )
            raise self._refusal(text, f"the card's embedder {card.embedder!r} {fault}")
        return encoder

    def _refusal(self, text: str, reason: str) -> ConfigError:
        fault = f"has no vector of the text {text[:60]!r}: {reason}"
        command = f"ctvr search --vectors FILE.npy --model {self.model}"
        remedy = f"Embed the text as the captions were, and search by its vector: {command}"
        return ConfigError(fault, f"model {self.model}", remedy=remedy)


@dataclass(frozen=True)
class _TextEncoder:
    """The text tower of a CLIP, with the card's prompt and normalization."""

    clip: Clip
    prompt: str
    is_unit: bool

    @torch.no_grad()
    def encode(self, texts: list[str]) -> Tensor:
        prompt = self.prompt if "{}" in self.prompt else f"{self.prompt} {{}}"
        found = self.clip.text(self.clip.tokenize([prompt.replace("{}", text) for text in texts])).float()
        return l2_normalize(found) if self.is_unit else found


def _backbone_of(card: Card) -> BackboneConfig:
    """Return the settings `backbone.*` of a card: its embedder without an owner, and its revision as open_clip's tag.

    Raises:
        ConfigError: if open_clip has no model of this name, or the revision is not a tag.
    """
    name, tag = card.embedder.rpartition("/")[2], card.values.get("revision", "")
    if name in SHIPPED:
        return BackboneConfig(name=name, weights="shipped")
    try:
        if is_own(name):
            raise ValueError(f"{name} is a path")
        check_backbone(name, "random")
    except ValueError as error:
        raise ConfigError("open_clip has no such model", card.path) from error
    if not tag or is_path(tag) or tag == "random":  # a card must not name a file to open
        raise ConfigError("its revision is not a tag of open_clip, such as openai", card.path)
    return BackboneConfig(name=name, weights=tag)


def _mean_vector(table: CaptionTable, row: int) -> Tensor:
    vectors, counts = table(torch.tensor([row]))
    return vectors[0].sum(dim=0) / counts[0]
