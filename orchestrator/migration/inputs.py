"""Vectors of two embedders for the same items, read from files or from streams of imported features.

Shapes: N items, d dimensions of a vector, C captions, T vectors of an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctvr.orchestrator.data.arrays import Arrays, read_arrays, read_features
from ctvr.orchestrator.data.imported_features import caption_features
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import iter_items
from ctvr.orchestrator.text_files import lines_of, read_text

LEAST = 50  # smallest number of common items


@dataclass(frozen=True)
class VectorSet:
    """The vectors of one embedder.

    Attributes:
        name: the file or stream, as the user named it.
        vectors: (N, d) float32, unit, in the order of the file or stream.
        places: row of each id.
        captions: captions of each id; empty if the set has no vectors of captions.
        texts: row of each caption in `text_vectors`.
        text_vectors: (C, d) float32, unit.
    """

    name: str
    vectors: np.ndarray
    places: dict[str, int]
    captions: dict[str, tuple[str, ...]]
    texts: dict[str, int]
    text_vectors: np.ndarray


def read_set(text: str, runs: Path) -> VectorSet:
    """Read a set of vectors; several vectors of an item are averaged.

    Args:
        text: a file or folder for `read_arrays`, whose arrays are (d,) or (T, d) each, or one array (N, d) or
            (N, T, d) whose ids are its row indices; or the name or manifest of a stream of features.
        runs: the runs folder, which has the imported streams.

    Raises:
        ConfigError: for an unreadable file, an unknown stream, a stream of videos, no vectors, vectors of several
            widths, or a vector with NaN or of length zero.
    """
    path = Path(text).expanduser()
    if path.exists() and path.suffix != ".json":
        found = _read_items(path)
        if isinstance(found, np.ndarray):
            return _make_set(text, list(map(str, range(len(found)))), found)
        return _make_set(text, list(found), _join_rows(list(found.values())))
    if not path.exists() and (path.suffix or len(path.parts) > 1) and path.suffix != ".json":
        raise ConfigError("does not exist", text, remedy="Pass a file or folder of vectors, or the name of a stream.")
    return _read_stream(text, runs)


def _read_items(path: Path) -> Arrays | np.ndarray:
    """Read a file or folder; an array without names has at least two dimensions."""
    found = read_arrays(path)
    if isinstance(found, np.ndarray) and found.ndim < 2:
        what = f"is one array of shape {found.shape}, not (items, d) or (items, frames, d)"
        raise ConfigError(what, path, remedy="Save one vector for each item.")
    return found


def _make_set(name: str, ids: list[str], arrays: list[np.ndarray] | np.ndarray) -> VectorSet:
    empty = np.zeros((0, 0), np.float32)
    return VectorSet(name, unit_rows(name, ids, arrays), {key: row for row, key in enumerate(ids)}, {}, {}, empty)


def _read_stream(name: str, runs: Path) -> VectorSet:
    stream = load_stream(name, runs.resolve(), render=False)
    if not stream.has_features:
        raise ConfigError(
            f"has {stream.domain}, not vectors",
            f"stream {name}",
            remedy="Use a stream of `ctvr streams import features`.",
        )
    items = [item for _, _, item in iter_items(stream)]
    try:
        arrays = [read_features(item.path) for item in items]
    except VideoError as error:
        raise ConfigError(error, f"stream {name}", remedy="Import it again.") from error
    made = _make_set(name, [item.video for item in items], arrays)
    if not stream.text_features:
        return made
    texts, table = caption_features(Path(stream.text_features))
    vectors = np.split(table.rows.numpy(), table.starts[1:-1].numpy())
    captions = {item.video: item.captions for item in items}
    rows = {text: row for row, text in enumerate(texts)}
    return VectorSet(name, made.vectors, made.places, captions, rows, unit_rows(f"{name}: captions", texts, vectors))


def unit_rows(name: str, ids: list[str], arrays: list[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return one unit vector for each array, (N, d) float32; an array (T, d) is averaged.

    Args:
        arrays: one array for each id. A float32 array (N, d) is changed in place, because a copy of 100,000 x 1,024
            values would take 400 MB.

    Raises:
        ConfigError: for other shapes, several widths, values that are not finite, or a vector of length zero.
    """
    if not len(arrays):
        raise ConfigError("contains no vectors", name, remedy="Use another file.")
    _check_shapes(name, ids, arrays)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        if isinstance(arrays, np.ndarray) and arrays.ndim == 2:
            made = np.require(arrays, np.float32, ["C", "W"])
        else:
            made = np.empty((len(arrays), arrays[0].shape[-1]), np.float32)
            for row, array in enumerate(arrays):
                made[row] = array if array.ndim == 1 else array.mean(axis=0, dtype=np.float64)
        lengths = np.sqrt(np.einsum("nd,nd->n", made, made))
    for is_bad, what in (
        (~np.isfinite(lengths), "has NaN or too large values"),
        (lengths == 0, "is a vector of zeros"),
    ):
        if is_bad.any():
            others = int(is_bad.sum()) - 1
            count = f", as {others} others" if others else ""
            what = f"{ids[int(is_bad.argmax())][:60]!r} {what}{count}"
            raise ConfigError(what, name, remedy="Compute it again, or omit the item.")
    made /= lengths[:, None]
    return made


def _check_shapes(name: str, ids: list[str], arrays: list[np.ndarray] | np.ndarray) -> None:
    first = arrays[0]
    for key, array in zip(ids, arrays):
        if array.ndim not in (1, 2) or not array.size or array.dtype.kind not in "fiu":
            what = f"{key[:60]!r} has shape {array.shape} of {array.dtype}, not (d,) or (frames, d) of numbers"
            raise ConfigError(what, name, remedy="Save one vector for each item.")
        if array.shape[-1] != first.shape[-1]:
            what = f"{ids[0][:60]!r} has {first.shape[-1]} dimensions, {key[:60]!r} has {array.shape[-1]}"
            raise ConfigError(what, name, remedy="Compute all vectors with one model.")


def _join_rows(arrays: list[np.ndarray]) -> list[np.ndarray] | np.ndarray:
    """Return the whole array if `arrays` are its rows, in order, as `read_arrays` splits it; otherwise the list."""
    base = arrays[0].base if arrays else None
    if base is None or base.size != len(arrays) * arrays[0].size or any(each.base is not base for each in arrays):
        return arrays
    start, step = base.ctypes.data, arrays[0].nbytes
    is_cut = all(each.ctypes.data == start + row * step for row, each in enumerate(arrays))
    return base.reshape(len(arrays), *arrays[0].shape) if is_cut else arrays


def common_ids(old: VectorSet, new: VectorSet) -> list[str]:
    """Return the ids that both sets have, in the order of the old set.

    Raises:
        ConfigError: if they are fewer than LEAST, or if only one set has vectors of captions.
    """
    if bool(old.captions) != bool(new.captions):
        with_captions, without = (old, new) if old.captions else (new, old)
        raise ConfigError(
            f"has vectors of captions, but {without.name} does not",
            with_captions.name,
            remedy="Import both streams with text=, or pass both as files without captions.",
        )
    found = [key for key in old.places if key in new.places]
    if len(found) < LEAST:
        examples = f"{next(iter(old.places))[:60]!r} and {next(iter(new.places))[:60]!r}"
        what = f"has {len(found)} ids in common with {old.name}, which is less than {LEAST} (first ids: {examples})"
        raise ConfigError(what, new.name, remedy="Use two files with the same ids.")
    return found


@dataclass(frozen=True)
class Queries:
    """Past queries: their vectors by the new model (P, d') and, if they are captions, by the old model (P, d)."""

    new: np.ndarray
    old: np.ndarray | None
    texts: frozenset[str]


def read_queries(path: Path, old: VectorSet, new: VectorSet) -> Queries:
    """Read a file of query vectors by the new model for `read_arrays`, or a .txt file of captions, one per line.

    Raises:
        ConfigError: for vectors of another width than the new set, or a caption that the sets do not have.
    """
    if path.suffix.lower() == ".txt":
        lines = [line.strip() for line in lines_of(read_text(path)) if line.strip()]
        if not lines:
            raise ConfigError("contains no query", path, remedy="Add one caption per line.")
        for line in lines:
            if line not in old.texts or line not in new.texts:
                remedy = "Use captions of both streams, or vectors of the queries by the new model."
                raise ConfigError(f"no vectors of the query {line[:60]!r} are known", path, remedy=remedy)
        rows = [[each.texts[line] for line in lines] for each in (new, old)]
        return Queries(new.text_vectors[rows[0]], old.text_vectors[rows[1]], frozenset(lines))
    found = _read_items(path)
    ids = list(found) if isinstance(found, dict) else list(map(str, range(len(found))))
    vectors = unit_rows(str(path), ids, list(found.values()) if isinstance(found, dict) else found)
    if vectors.shape[1] != (width := new.vectors.shape[1]):
        what = f"queries have {vectors.shape[1]} dimensions, vectors of {new.name} have {width}"
        raise ConfigError(what, path, remedy="Encode the queries by the new model.")
    return Queries(vectors, None, frozenset())
