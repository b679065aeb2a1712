"""Vectors of the canary inputs: the reader of `canaries.npz`.

Shapes: n = 16 inputs of a side (videos or texts), d dimensions of a vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctvr.orchestrator.data.arrays import read_arrays
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.vectors.canaries import CLIPS, TEXTS

SIDES = {"videos": CLIPS, "texts": tuple(TEXTS)}
_SAVE = "Save it with np.savez(FILE, video_ids=IDS, videos=ARRAY, text_ids=IDS, texts=ARRAY)."


@dataclass(frozen=True)
class CanaryVectors:
    """Vectors (n, d) of each side, in the order of SIDES and in their stored type; a set without texts has videos only.

    All values are finite, unless the reader permits infinite ones.
    """

    path: Path
    sides: dict[str, np.ndarray]


def read_canaries(path: Path, permit_infinite: bool = False) -> CanaryVectors:
    """Read `canaries.npz`: arrays video_ids (n,), videos (n, d), text_ids (n,) and texts (n, d), rows in any order.

    Args:
        permit_infinite: whether to keep infinite values, which `causes.explain` diagnoses.

    Raises:
        ConfigError: for another form, ids that are missing, unknown or repeated, vectors of different widths, NaN,
            or vectors of zeros.
    """
    found = read_arrays(path, join_ids=False)
    if not isinstance(found, dict) or not {"videos", "texts"} & set(found):
        raise ConfigError("has no array called videos or texts", path, remedy=_SAVE)
    known = {name for side in SIDES for name in (side, _ids_of(side))}
    if unknown := [name for name in found if name not in known]:
        raise ConfigError("has an unknown array", path, unknown[0][:60], remedy=_SAVE)
    sides = {
        side: _side(path, side, names, found, permit_infinite)
        for side, names in SIDES.items()
        if side in found or _ids_of(side) in found
    }
    if "videos" not in sides:
        raise ConfigError("lacks the array videos", path, remedy=_SAVE)
    return CanaryVectors(path, sides)


def _ids_of(side: str) -> str:
    return f"{side[:-1]}_ids"


def _side(
    path: Path, side: str, names: Sequence[str], found: dict[str, np.ndarray], permit_infinite: bool
) -> np.ndarray:
    """Return the vectors of a side in the order of `names`."""
    ids, vectors = found.get(_ids_of(side)), found.get(side)
    if ids is None or vectors is None:
        raise ConfigError(f"has no array called {side if vectors is None else _ids_of(side)}", path, remedy=_SAVE)
    if ids.ndim != 1 or ids.dtype.kind not in "US":
        raise ConfigError(f"{_ids_of(side)} is not a list of names", path, str(ids.dtype), remedy=_SAVE)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
        got = f"{vectors.shape} of {vectors.dtype}"
        raise ConfigError(
            f"{side} is not an array (n, d) of numbers", path, got, remedy="Save one vector of numbers for each canary."
        )
    if len(ids) != len(vectors):
        raise ConfigError(f"{_ids_of(side)} has {len(ids)} names for {len(vectors)} {side}", path, remedy=_SAVE)
    given = [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in ids.tolist()]
    for name, count in Counter(given).items():
        if count > 1 or name not in names:
            fault = "occurs twice" if name in names else "is not the id of a canary"
            raise ConfigError(f"{side}: {name[:60]!r} {fault}", path, remedy="Keep the ids of `ctvr streams canaries`.")
    if missing := [name for name in names if name not in given]:
        fault = f"{side}: lacks {len(missing)} of {len(names)} canaries, for example {missing[0]}"
        raise ConfigError(fault, path, remedy="Embed them too.")
    ordered = vectors[[given.index(name) for name in names]]
    _check_numbers(path, side, names, ordered, permit_infinite)
    return ordered


def _check_numbers(path: Path, side: str, names: Sequence[str], vectors: np.ndarray, permit_infinite: bool) -> None:
    remedy = "Compute it in float32: float16 overflows to such values."
    for name, row in zip(names, vectors):
        if np.isnan(row).any() or (not permit_infinite and np.isinf(row).any()):
            raise ConfigError(f"{side}: the vector of {name!r} contains NaN or infinite values", path, remedy=remedy)
        if not row.any():
            raise ConfigError(f"{side}: the vector of {name!r} is zero", path, remedy=remedy)
        if np.abs(row[np.isfinite(row)].astype(np.float64)).max(initial=0) > np.finfo(np.float32).max:
            raise ConfigError(f"{side}: the vector of {name!r} exceeds float32", path, remedy="Scale the vectors.")
