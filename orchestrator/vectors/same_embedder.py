"""Comparison of two sets of canary vectors: whether one embedder computed both, and the likely cause if not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ctvr.orchestrator.vectors import relations
from ctvr.orchestrator.vectors.canary_vectors import CanaryVectors
from ctvr.orchestrator.vectors.card import Card
from ctvr.orchestrator.vectors.causes import SMALL, UNCHANGED, WORDS, Cause, explain
from ctvr.orchestrator.vectors.relations import Matrix

# Verdict -> its meaning, from the closest relation to the most distant
VERDICTS = {
    "equal": "every number is equal",
    "rounding": "the same vectors except for rounding",
    "same order": "other numbers, but the canaries find the same neighbors among the stored vectors",
    "a fixed map away": "another basis of the same space; map the vectors, or embed one part again",
    "another space": "vectors of the two sets cannot be compared",
}
MIXABLE = ("equal", "rounding", "same order")
_MAPS = ("rotated", "centred", "basis")
ARITHMETIC = 0.05  # largest median turn (cosine 0.9988) that different dtypes on the cards explain
_KEPT = 0.9  # smallest overlap of neighbors at which the order counts as preserved


@dataclass(frozen=True)
class Comparison:
    """Outcome of a comparison.

    Attributes:
        verdict: a key of VERDICTS.
        cause: the likely cause, a key of WORDS with its evidence.
        sides: the cause of each side.
        ranks: lines about the change of rank.
        cards: lines about what the cards state differently.
    """

    verdict: str
    cause: Cause
    sides: Mapping[str, Cause]
    ranks: tuple[str, ...]
    cards: tuple[str, ...] = ()

    @property
    def is_mixable(self) -> bool:
        """Return whether vectors of both sets may be in one index."""
        return self.verdict in MIXABLE

    @property
    def described(self) -> str:
        """Return the likely cause with its evidence, as a phrase."""
        return f"{WORDS[self.cause.key]}; {self.cause.evidence}"

    def lines(self) -> list[str]:
        """Return the report: the verdict, the likely cause with its evidence, ranks and cards."""
        found = [f"{self.verdict}: {VERDICTS[self.verdict]}"]
        if self.cause.key not in UNCHANGED:
            found.append(f"likely cause: {WORDS[self.cause.key]}")
        found += [f"{side}: {WORDS[each.key]}; {each.evidence}" for side, each in self.sides.items()]
        return [*found, *self.ranks, *self.cards]


def compare(old: CanaryVectors, new: CanaryVectors, cards: tuple[Card, Card] | None = None) -> Comparison:
    """Compare the vectors of the sides that both sets have.

    Args:
        cards: the cards of both sets; they decide only between causes that the vectors leave open.
    """
    both = {side: (old.sides[side], new.sides[side]) for side in old.sides if side in new.sides}
    sides = {side: explain(side, *pair) for side, pair in both.items()}
    differences = cards[0].differences(cards[1]) if cards else {}
    sides = _settle(sides, both, differences)
    cause = _joint(sides)
    ranks = tuple(_ranks(both))
    said = tuple(f"cards: {key} was {was}, and is {now}" for key, (was, now) in differences.items())
    return Comparison(_verdict(cause, sides, both), cause, sides, ranks, said)


def _settle(
    sides: Mapping[str, Cause], both: Mapping[str, tuple[np.ndarray, np.ndarray]], differences: Collection[str]
) -> dict[str, Cause]:
    """Choose between causes that one side leaves open, by the other side, the size of the change, and the cards."""
    pairs = {
        side: (first.astype(np.float64), second.astype(np.float64))
        for side, (first, second) in both.items()
        if sides[side].key in ("layer?", "revision", "model") and first.shape == second.shape
    }
    is_alone = len(pairs) == 1 < len(sides) and all(sides[other].key in UNCHANGED for other in set(sides) - set(pairs))
    names_weights = not {"revision", "weights", "embedder"}.isdisjoint(differences)
    is_low_rank = all(relations.low_rank_share(*pair) > 0.7 for pair in pairs.values())
    found = dict(sides)
    for side, pair in pairs.items():
        key, middle = sides[side].key, float(np.median(relations.turns(*pair)))
        inputs = ("prompt",) if side == "texts" else ("pooling", "frames")
        stated = next((name for name in inputs if name in differences), "")
        if is_alone and not names_weights and (stated or middle > SMALL):  # the other tower did not change at all
            key = stated or ("prompt" if side == "texts" else "crop")
        elif key == "layer?":
            key = "layer" if is_low_rank and not is_alone else "revision"
        elif key == "revision" and "dtype" in differences and not names_weights and middle < ARITHMETIC:
            key = "bf16"
        found[side] = Cause(key, sides[side].evidence)
    return found


def _joint(sides: Mapping[str, Cause]) -> Cause:
    """Return the joint cause: the cause of the only changed side, otherwise the more serious one of the two."""
    order = list(WORDS)
    changed = {side: each for side, each in sides.items() if each.key not in UNCHANGED}
    if not changed:
        return max(sides.values(), key=lambda each: order.index(each.key))
    first = max(changed.values(), key=lambda each: order.index(each.key))
    only = next(iter(changed)) if len(changed) < len(sides) else ""
    return Cause(first.key, f"{only} only: {first.evidence}" if only else first.evidence)


def _verdict(cause: Cause, sides: Mapping[str, Cause], both: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    keys = {each.key for each in sides.values()}
    if keys == {"equal"}:
        return "equal"
    if keys <= {*UNCHANGED, "bf16"}:
        return "rounding"
    if cause.key in ("overflow", "permuted", "truncated", "model") or any(a.shape != b.shape for a, b in both.values()):
        return "another space"
    if keys & {*_MAPS} and keys <= {*UNCHANGED, *_MAPS, "scale", "normalisation"}:
        return "a fixed map away"
    return "same order" if _keeps_order(both) else "another space"


def _keeps_order(both: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> bool:
    """Return whether new vectors find the same neighbors among the stored vectors, within a side and across sides."""
    pairs = {side: (first.astype(np.float64), second.astype(np.float64)) for side, (first, second) in both.items()}
    overlaps = [relations.mixed_overlap(*pair) for pair in pairs.values()]
    if len(pairs) == 2 and pairs["videos"][0].shape == pairs["texts"][0].shape:
        (old_videos, new_videos), (old_texts, new_texts) = pairs["videos"], pairs["texts"]
        before = (old_texts, old_videos)
        overlaps += [
            relations.search_overlap(before, after) for after in ((new_texts, old_videos), (old_texts, new_videos))
        ]
    return min(overlaps) >= _KEPT


def _ranks(both: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    """Report how ranks change: neighbors within each side, and the first clip of each sentence."""
    pairs: dict[str, tuple[Matrix, Matrix]] = {
        side: (pair[0].astype(np.float64), np.nan_to_num(pair[1].astype(np.float64), posinf=65504, neginf=-65504))
        for side, pair in both.items()
    }
    for side, (old, new) in pairs.items():
        text = f"ranks: {side} keep {relations.neighbour_overlap(old, new):.0%} of their 5 nearest among themselves"
        if old.shape == new.shape:
            text += f", new ones find {relations.mixed_overlap(old, new):.0%} of them among the old"
        yield text
    if len(pairs) == 2 and len({each.shape[1] for pair in pairs.values() for each in pair}) == 1:
        videos, texts = pairs["videos"], pairs["texts"]
        before = _rank_clips(texts[0], videos[0])
        for name, after in (
            ("new texts on old videos", _rank_clips(texts[1], videos[0])),
            ("new texts on new videos", _rank_clips(texts[1], videos[1])),
        ):
            moved = np.abs(after - before)
            yield (
                f"ranks: {name}: the first clip of {int((moved[before == 0] > 0).sum())} of {len(before)} sentences "
                f"changes, and a clip moves by {moved.mean():.1f} ranks on average"
            )


def _rank_clips(texts: Matrix, videos: Matrix) -> np.ndarray:
    """Return the rank (n, n) of each clip for each sentence, by rounded cosine, so that ties are preserved."""
    scores = np.round(relations.unit(texts) @ relations.unit(videos).T, 4)
    ranks: np.ndarray = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return ranks
