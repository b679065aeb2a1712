"""Card and canary vectors of a feature set: found next to its arrays, compared, and stored with an imported stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctvr.orchestrator.data.array_files import CANARIES, Arrays
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.text_files import read_bytes
from ctvr.orchestrator.vectors.canary_vectors import CanaryVectors, read_canaries
from ctvr.orchestrator.vectors.card import CARD, Card, is_same_name, read_card
from ctvr.orchestrator.vectors.same_embedder import Comparison, compare

UNIT_ERROR = 1e-2  # tolerance of the length of vectors that a card declares as unit; bfloat16 storage causes 2e-3


@dataclass(frozen=True)
class FeatureSet:
    """A card and the canary vectors of its embedder, if the set has them."""

    card: Card
    canaries: CanaryVectors | None

    def describe(self) -> list[str]:
        """Return the lines of the card, and whether the set has canaries."""
        last = "stored" if self.canaries else "missing; see `ctvr streams canaries`"
        return [*(f"card: {line}" for line in self.card.lines()), f"canaries: {last}"]


def find_set(place: Path) -> FeatureSet | None:
    """Read the card and canaries in a folder of features, or next to a file of features; None without a card.

    Raises:
        ConfigError: for a card or canaries that cannot be read, or canaries without a card.
    """
    folder = place if place.is_dir() else place.parent
    if (folder / CARD).exists():
        return _read(folder / CARD, folder / CANARIES)
    if (folder / CANARIES).exists():
        raise ConfigError(f"has {CANARIES} without a card", folder, remedy=f"Add {CARD} with a line `embedder: NAME`.")
    return None


def _read(card: Path, vectors: Path, permit_infinite: bool = False) -> FeatureSet:
    read = read_card(card)
    canaries = read_canaries(vectors, permit_infinite) if vectors.exists() else None
    if canaries is not None and read.width not in (None, canaries.sides["videos"].shape[1]):
        raise ConfigError(
            f"its canaries have {canaries.sides['videos'].shape[1]} dimensions",
            card,
            f"width: {read.width}",
            remedy="Correct the card, or embed the canaries again.",
        )
    return FeatureSet(read, canaries)


def check_arrays(found: FeatureSet, source: Path, arrays: Arrays, side: str = "videos") -> None:
    """Check arrays (T, d) or (d,) of a side against the card and the canaries of their set.

    Args:
        source: the file or folder of the arrays, as errors name it.

    Raises:
        ConfigError: for another width, or vectors that are not normalized although the card states that they are.
    """
    card, width = found.card, next(iter(arrays.values())).shape[-1]
    expected = card.width if side == "videos" else None
    if found.canaries is not None and side in found.canaries.sides:
        expected = found.canaries.sides[side].shape[1]
    if expected not in (None, width):
        fault = f"{side} have {width} dimensions, but {card.path} describes {expected}"
        raise ConfigError(fault, source, remedy="Use the features of that card, or correct it.")
    if not card.is_unit:
        return
    for name, array in arrays.items():
        lengths = np.linalg.norm(np.atleast_2d(array).astype(np.float64), axis=1)
        wrong = lengths[(lengths > 0) & (np.abs(lengths - 1) > UNIT_ERROR)]  # frames of zeros are counted elsewhere
        if wrong.size:
            raise ConfigError(
                f"{name[:60]!r} has a vector of length {wrong[0]:.4g}, but {card.path} states normalisation: unit",
                source,
                remedy="Normalize the features, or set normalisation: none.",
            )


def refuse_mixture(ours: FeatureSet, theirs: FeatureSet, what: str) -> Comparison | None:
    """Compare the cards and canaries of two sets that would be used together; return None if canaries are missing.

    Args:
        what: the use, such as "captions of one and videos of the other".

    Raises:
        ConfigError: for two embedders, or canary vectors that cannot be compared.
    """
    first, second = ours.card, theirs.card
    if not is_same_name(first.embedder, second.embedder):
        raise ConfigError(
            f"its embedder is {second.embedder!r}, but that of {first.path} is {first.embedder!r}",
            second.path,
            remedy=f"Do not mix {what}: embed both with one model, or import them under another --name.",
        )
    if ours.canaries is None or theirs.canaries is None:
        return None
    result = compare(ours.canaries, theirs.canaries, (first, second))
    if not result.is_mixable:
        raise ConfigError(
            f"the canaries differ from those of {ours.canaries.path}: {result.verdict} ({result.described})",
            theirs.canaries.path,
            remedy=f"Do not mix {what}: embed both alike, or import them under another --name.",
        )
    return result


def store_set(found: FeatureSet | None, folder: Path) -> None:
    """Copy card and canaries to the folder of a stream's arrays, and remove files of an earlier import."""
    pairs = [(CARD, found.card.path if found else None)]
    pairs.append((CANARIES, found.canaries.path if found and found.canaries else None))
    for name, source in pairs:
        content = read_bytes(source) if source is not None else None
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            publish(folder / name, content)


def check_features(folder: Path, name: str, place: Path) -> Comparison:
    """Compare a serving stack's canaries with the canaries stored with a stream: `ctvr streams check NAME --features`.

    Args:
        folder: the folder of the stream's arrays, of which only card and canaries are read.
        name: the stream, as errors name it.
        place: a card, or a folder that contains one; the canaries are next to it.

    Raises:
        ConfigError: if either side lacks a card or canaries, or lacks a side that the other has.
    """
    stored = find_set(folder)
    if stored is None or stored.canaries is None:
        raise ConfigError(
            "was imported without a card and canaries",
            f"stream {name}",
            remedy=f"Add {CARD} and {CANARIES} and import again.",
        )
    card = place / CARD if place.is_dir() else place
    given = _read(card, card.parent / CANARIES, permit_infinite=True)
    if given.canaries is None:
        remedy = f"Embed the files that `ctvr streams canaries FOLDER` writes, and save the vectors as {CANARIES}."
        raise ConfigError(f"has no {CANARIES} next to it", card, remedy=remedy)
    for side in stored.canaries.sides:
        if side not in given.canaries.sides:
            raise ConfigError(f"lacks {side}, which {name} has", given.canaries.path, remedy="Embed them too.")
    return compare(stored.canaries, given.canaries, (stored.card, given.card))
