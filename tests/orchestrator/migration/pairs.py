"""Random vectors of the same items by two embedders, and captions of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.migration.inputs import VectorSet


def unit(x: np.ndarray) -> np.ndarray:
    made: np.ndarray = (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)
    return made


@dataclass(frozen=True)
class Pair:
    """Unit vectors of N items and of one caption for each: by the old embedder (N, d), by the new one (N, d')."""

    old: np.ndarray
    new: np.ndarray
    old_texts: np.ndarray
    new_texts: np.ndarray

    def sets(self, captions: bool = True) -> tuple[VectorSet, VectorSet]:
        count = len(self.old)
        ids = {f"v{row}": row for row in range(count)}
        said = {key: (f"caption {row}",) for key, row in ids.items()} if captions else {}
        texts = {f"caption {row}": row for row in range(count)} if captions else {}
        old = VectorSet("old", self.old, ids, said, texts, self.old_texts)
        return old, VectorSet("new", self.new, ids, said, texts, self.new_texts)


def make_pair(
    seed: int,
    count: int = 1500,
    old: int = 48,
    new: int = 48,
    noise: float = 0.05,
    share: float = 1.0,
    far: float = 1.2,
) -> Pair:
    """Draw a pair.

    Args:
        noise: length of the noise that the new embedder adds to a unit vector.
        share: cosine of the new vectors with the rotated old ones; the rest is independent of them.
        far: length of the difference between a caption and its item.
    """
    draw = np.random.default_rng(seed)

    def vectors(width: int) -> np.ndarray:
        return unit(draw.standard_normal((count, width)))

    turn = np.linalg.qr(draw.standard_normal((max(old, new), max(old, new))))[0][:old, :new]
    items, gap, other, other_gap = vectors(old), far * vectors(old), vectors(new), far * vectors(new)
    rest = (1 - share**2) ** 0.5
    by_new = unit(unit(share * items @ turn + rest * other) + noise * vectors(new))
    asked = share * (items + gap) @ turn + rest * (other + other_gap)
    return Pair(items, by_new, unit(items + gap), unit(unit(asked) + noise * vectors(new)))


def write_sets(folder: Path, pair: Pair) -> tuple[str, str]:
    """Write the items as two files of ids and vectors, in different orders; return their paths."""
    ids = np.array([f"v{row}" for row in range(len(pair.old))])
    np.savez(folder / "a.npz", ids=ids, features=pair.old)
    np.savez(folder / "b.npz", ids=ids[::-1], features=pair.new[::-1])
    return str(folder / "a.npz"), str(folder / "b.npz")


def write_streams(runs: Path, pair: Pair, texts: tuple[bool, bool] = (True, True)) -> tuple[str, str]:
    """Import a stream of features for each embedder; return their names."""
    (runs / "streams").mkdir(parents=True)
    table = runs / "table.csv"
    rows = [f"v{row},caption {row},c,{('train', 'test')[row % 2]},1" for row in range(len(pair.old))]
    table.write_text("\n".join(["video,caption,category,split,task", *rows]))
    for name, items, captions, has_texts in (
        ("one", pair.old, pair.old_texts, texts[0]),
        ("two", pair.new, pair.new_texts, texts[1]),
    ):
        np.savez(runs / f"{name}.npz", **{f"v{row}": vector for row, vector in enumerate(items)})
        np.save(runs / f"{name}-texts.npy", captions)
        file = runs / f"{name}-texts.npy" if has_texts else None
        import_features(table, runs / f"{name}.npz", file, runs / "streams" / f"{name}.json", name)
    return "one", "two"
