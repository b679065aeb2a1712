"""Likely cause of a difference between the vectors of two sets for one side, videos or texts.

A cause is determined from the two arrays alone. Unchanged canaries show which part of the input changed, exact
relations between all rows show how the space changed, and other changes are classified by their size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctvr.orchestrator.vectors import relations
from ctvr.orchestrator.vectors.canaries import CLIPS, PROMPTED, STATIC, TEXTS, TWINS
from ctvr.orchestrator.vectors.relations import Matrix

SAME, HALF, BRAIN = 1e-3, 1e-2, 8e-3  # largest turns of a row by fp16 rounding, bfloat16 storage, bfloat16 arithmetic
EXACT, LEFT = 6e-3, 0.1  # residual of a relation with rounding; largest share of a change that it leaves
SMALL, RELATED = 0.2, 0.75  # median turns: above it other inputs; up to it (cosine 0.72) a revision
WORDS = {
    "equal": "none",
    "rounding": "rounding",
    "bf16": "rounding of bfloat16, or of arithmetic in half precision",
    "normalisation": "normalization missing or added",
    "scale": "other scale",
    "overflow": "float16 overflow or saturation",
    "permuted": "permuted rows (ids are shifted)",
    "bgr": "BGR for RGB",
    "frames": "other number or choice of frames",
    "pooling": "other pooling",
    "crop": "other crop, resize or pixel scale",
    "prompt": "prompt added or missing",
    "tokens": "other preparation of texts (case, punctuation or longest text)",
    "truncated": "truncated dimensions",
    "centred": "mean subtracted or added",
    "basis": "other scale of each dimension",
    "rotated": "rotated or other basis",
    "layer": "layer before (or after) the norm",
    "revision": "other revision of the weights",
    "model": "other model",
}
UNCHANGED = ("equal", "rounding")


@dataclass(frozen=True)
class Cause:
    """Likely cause of a difference between two sets of vectors: its key in WORDS, and a phrase with the evidence."""

    key: str
    evidence: str = ""


def explain(side: str, stored_old: np.ndarray, stored_new: np.ndarray) -> Cause:
    """Explain the difference between two arrays (n, d) of the canaries of a side, "videos" or "texts"."""
    if stored_old.shape == stored_new.shape and np.array_equal(stored_old, stored_new):
        return Cause("equal", "every number is equal")
    if saturation := _saturation(stored_old, stored_new):
        return saturation
    old, new = stored_old.astype(np.float64), stored_new.astype(np.float64)
    if old.shape != new.shape:
        return _other_width(old, new)
    turned = relations.turns(old, new)
    if turned.max() <= SAME:
        return _same_directions(old, new)
    if relations.is_bfloat16(stored_new) != relations.is_bfloat16(stored_old) and turned.max() <= HALF:
        return Cause("bf16", "all numbers of one set are numbers of bfloat16, and directions turn by at most 1e-2")
    prepared = _shifted(side, old, new) or (_clips(old, new) if side == "videos" else _texts(old, new))
    return prepared or _space(old, new)


def _saturation(old: np.ndarray, new: np.ndarray) -> Cause | None:
    before, after = relations.saturated(old), relations.saturated(new)
    if after < 4 or after <= 3 * before:
        return None
    if np.isinf(new).any():
        return Cause("overflow", f"{int(np.isinf(new).sum())} numbers are infinite")
    return Cause("overflow", f"{after} numbers equal the largest one, {np.abs(new).max():.6g}")


def _other_width(old: Matrix, new: Matrix) -> Cause:
    width = min(old.shape[1], new.shape[1])
    numbers = f"{new.shape[1]} numbers a vector instead of {old.shape[1]}"
    if relations.turns(old[:, :width], new[:, :width]).max() <= EXACT:
        return Cause("truncated", f"{numbers}; those that both have are equal except for scale")
    if relations.gram_difference(old, new) <= EXACT:
        return Cause("rotated", f"{numbers}; all cosines are equal")
    return Cause("model", numbers)


def _same_directions(old: Matrix, new: Matrix) -> Cause:
    """Return the cause of a change in the lengths of rows whose directions are equal."""
    factor = relations.factors(old, new)
    if np.abs(factor - 1).max() <= 2 * SAME:
        return Cause("rounding", f"directions turn by at most {relations.turns(old, new).max():.1g}")
    lengths = [relations.spread(np.linalg.norm(each, axis=1)) <= 2 * SAME for each in (old, new)]
    if relations.spread(factor) <= 2 * SAME:
        return Cause("scale", f"all vectors are {factor.mean():.6g} times as long")
    words = (
        ("now of different lengths", "now of one length") if lengths[0] else ("of other lengths", "now of one length")
    )
    return Cause("normalisation", f"directions are equal, and vectors are {words[lengths[1]]}")


def _shifted(side: str, old: Matrix, new: Matrix) -> Cause | None:
    """Return the cause if vectors are stored under the wrong ids, otherwise None."""
    nearest, distance = relations.sources(old, new)
    moved = relations.turns(old, new) > HALF
    found = moved & (distance <= EXACT)
    is_twin = side == "videos" and np.isin(np.flatnonzero(found), _places([*TWINS, *TWINS.values()])).all()
    if moved.sum() < 6 or found.sum() < 0.8 * moved.sum() or is_twin or len(set(nearest[found])) < 0.6 * found.sum():
        return None
    names = CLIPS if side == "videos" else tuple(TEXTS)
    first = int(np.flatnonzero(found)[0])
    return Cause(
        "permuted",
        f"{int(found.sum())} of {len(new)} vectors are those of other ids: {names[first]} has that of "
        f"{names[nearest[first]]}",
    )


def _places(names: list[str]) -> list[int]:
    return [CLIPS.index(name) for name in names]


def _clips(old: Matrix, new: Matrix) -> Cause | None:
    """Recognize a change in the preparation of videos: `grey` is unchanged, and other clips are not."""
    turned = dict(zip(CLIPS, relations.turns(old, new)))
    limit = _limit(old, new)
    if turned["grey"] > limit:
        return None
    if max(turned[name] for name in STATIC) <= limit:
        return _temporal(old, new, turned)
    rows = {name: number for number, name in enumerate(CLIPS)}
    swapped = [
        relations.turns(old[[rows[first]]], new[[rows[second]]])[0]
        for pair in TWINS.items()
        for first, second in (pair, pair[::-1])
    ]
    if float(np.median(swapped)) <= limit and min(turned["red"], turned["blue"]) > limit:
        return Cause("bgr", "each clip has the vector of its twin with exchanged channels")
    if max(turned["red"], turned["blue"]) > limit:
        return Cause("crop", "gray is unchanged; single colors are not, and are not exchanged either")
    changes = []
    for first, second in (("scene_a", "border"), ("wide", "wide_border")):
        before, after = (float(relations.turns(x[[rows[first]]], x[[rows[second]]])[0]) for x in (old, new))
        changes.append(f"{first} and {second} are {after:.2f} apart instead of {before:.2f}")
    return Cause("crop", f"single colors are unchanged, patterns are not; {', '.join(changes)}")


def _temporal(old: Matrix, new: Matrix, turned: dict[str, float]) -> Cause:
    """Distinguish a change of pooling from a change of frames, if all clips without motion are unchanged."""
    before, after = _pooling(old), _pooling(new)
    if before != after and {before, after} != {"some frames", "mean"}:
        return Cause("pooling", f"clips without motion are unchanged; the pooling changed from {before} to {after}")
    worst = max(turned, key=lambda name: turned[name])
    where = f"from {before} to {after}" if before != after else f"the pooling is {after} in both"
    return Cause("frames", f"clips without motion are unchanged, {worst} is not; {where}")


def _pooling(vectors: Matrix) -> str:
    """Return the pooling that leads from scene_a and scene_b to the clips that contain both."""
    rows = dict(zip(CLIPS, vectors))
    parts = {
        name: relations.mixture(rows[name], rows["scene_a"], rows["scene_b"])
        for name in ("halves", "halves_back", "flicker")
    }
    if max(residual for _, residual in parts.values()) > 0.05:
        turned = float(relations.turns(rows["halves"][None], rows["halves_back"][None])[0])
        return "order-independent" if turned <= EXACT else "order-dependent"
    shares = {name: weights[0] / weights.sum() for name, (weights, _) in parts.items()}
    if abs(shares["halves"] - shares["halves_back"]) < 0.1:
        return "mean"
    if max(abs(share - round(share)) for share in shares.values()) < 0.05:
        return "first frame" if shares["halves"] > 0.5 else "last frame"
    is_part = max(abs(shares[name] - round(shares[name])) for name in ("halves", "halves_back")) < 0.05
    return "some frames" if is_part else "weighted mean"


def _texts(old: Matrix, new: Matrix) -> Cause | None:
    """Recognize a change in the preparation of texts: a known prompt, or a change of few sentences."""
    if prompt := _prompt(old, new):
        return prompt
    changed = [name for name, turn in zip(TEXTS, relations.turns(old, new)) if turn > _limit(old, new)]
    if len(changed) <= 6 and set(changed) <= {"capital", "stop", "accents", "query", "long_a", "long_b"}:
        return Cause("tokens", f"only {', '.join(changed)} changed")
    return None


def _prompt(old: Matrix, new: Matrix) -> Cause | None:
    """Recognize a prompt that a canary contains."""
    rows = {name: number for number, name in enumerate(TEXTS)}
    for first, second, word in ((old, new, "added"), (new, old, "missing")):
        for prompted, (plain, prompt) in PROMPTED.items():
            turned = relations.turns(first[[rows[prompted]]], second[[rows[plain]]])[0]
            if turned <= EXACT < relations.turns(old[[rows[plain]]], new[[rows[plain]]])[0]:
                return Cause("prompt", f"{plain!r} has the vector of the sentence with {prompt!r}, which is {word}")
    return None


def _space(old: Matrix, new: Matrix) -> Cause:
    """Recognize a map from the old to the new space, or measure how far the vectors turned."""
    turned = relations.turns(old, new)
    middle = f"the median direction turned by {np.median(turned):.2g}"
    limit = _limit(old, new)
    if relations.gram_difference(old, new) <= limit:
        return Cause("rotated", "all cosines among the canaries are equal, and directions are not")
    if relations.offset_residual(old, new) <= limit:
        return Cause("centred", "one offset leads from all old to all new vectors")
    if relations.diagonal_residual(old, new) <= limit:
        return Cause("basis", "one factor for each dimension leads from all old to all new vectors")
    standard = [relations.standardised(each) for each in (old, new)]
    if relations.affine_residual(old, standard[1]) <= 5 * limit:
        return Cause("layer", "a LayerNorm with one gain and bias leads from the new to the old vectors")
    if relations.affine_residual(new, standard[0]) <= 5 * limit:
        return Cause("layer", "a LayerNorm with one gain and bias leads from the old to the new vectors")
    if min(relations.affine_residual(old, new), relations.affine_residual(new, old)) <= 5 * limit:
        return Cause("basis", "one factor and offset for each dimension lead from all old to all new vectors")
    if np.median(turned) <= BRAIN and turned.max() <= 3 * BRAIN:
        return Cause("bf16", f"no common direction; {middle}")
    if np.median(turned) <= RELATED:
        share = relations.low_rank_share(old, new)
        return Cause("layer?" if share > 0.72 else "revision", f"{middle}; two directions hold {share:.0%} of it")
    return Cause("model", f"{middle}; cosines of pairs correlate by {relations.gram_correlation(old, new):.2f}")


def _limit(old: Matrix, new: Matrix) -> float:
    """Return the residual up to which a relation explains a change."""
    return max(SAME / 2, min(EXACT, LEFT * float(relations.turns(old, new).max())))
