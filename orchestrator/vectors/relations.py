"""Relations between two sets of vectors of the same inputs: scale, permutation, offset, diagonal, rotation, low rank.

Shapes: n inputs, d dimensions of a vector. `old` and `new` are finite float64 without rows of zeros. Every residual is
relative to the vectors: 0 means an exact relation, about 1 means no relation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
K = 5  # nearest inputs that are compared


def unit(vectors: Matrix) -> Matrix:
    """Scale the rows (n, d) to length 1."""
    made: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return made


def turns(old: Matrix, new: Matrix) -> Matrix:
    """Return the distance (n,), 0 to 2, between the old and the new direction of each row; 0.1 is a cosine of 0.995."""
    made: Matrix = np.linalg.norm(unit(old) - unit(new), axis=1)
    return made


def factors(old: Matrix, new: Matrix) -> Matrix:
    """Return the ratio (n,) of each row's length in `new` to its length in `old`."""
    made: Matrix = np.linalg.norm(new, axis=1) / np.linalg.norm(old, axis=1)
    return made


def spread(values: Matrix) -> float:
    """Return the coefficient of variation: the standard deviation of values divided by their mean."""
    return float(values.std() / max(abs(values.mean()), 1e-300))


def sources(old: Matrix, new: Matrix) -> tuple[NDArray[np.intp], Matrix]:
    """Return the row of `old` that is closest in direction to each row of `new`, (n,), and their distance, (n,)."""
    distances = np.linalg.norm(unit(new)[:, None] - unit(old)[None], axis=2)
    nearest = distances.argmin(1)
    return nearest, distances[np.arange(len(new)), nearest]


def gram_difference(old: Matrix, new: Matrix) -> float:
    """Return the largest change of a cosine of two inputs; 0 if an orthogonal map and scales lead from old to new."""
    first, second = unit(old), unit(new)
    return float(np.abs(first @ first.T - second @ second.T).max())


def gram_correlation(old: Matrix, new: Matrix) -> float:
    """Return the correlation of the cosines of all pairs of inputs in the old and in the new space."""
    above = np.triu_indices(len(old), 1)
    first, second = ((unit(each) @ unit(each).T)[above] for each in (old, new))
    return float(np.corrcoef(first, second)[0, 1]) if first.std() > 0 < second.std() else 0.0


def offset_residual(old: Matrix, new: Matrix) -> float:
    """Return the residual of `new_i ~ old_i - c`: one offset c for all rows, up to a scale of each row.

    Least squares fit the row scales a and b and the offset c to `a_i new_i = b_i old_i - c`. The residual
    is 1 if a scale is not positive, for example if a row is unchanged.
    """
    first, second, count = unit(old), unit(new), len(old)
    rows = np.concatenate([second, -first])  # (2n, d)
    centring = np.eye(count) - 1 / count
    form = (rows @ rows.T) * np.block([[centring, centring], [centring, centring]])
    scales = np.linalg.eigh(form)[1][:, 0]
    scales = scales * np.sign(scales.sum())
    ours, theirs = scales[:count, None], scales[count:, None]
    if scales.min() < 0.02 * scales.max():
        return 1.0
    offset = (theirs * first - ours * second).mean(0)
    if np.linalg.norm(offset) < 1e-3 * np.linalg.norm(theirs * first, axis=1).mean():
        return 1.0
    return float(turns(theirs * first - offset, ours * second).max())


def diagonal_residual(old: Matrix, new: Matrix) -> float:
    """Return the residual of `new_ij ~ r_i s_j old_ij`: a factor for each dimension, and one for each row.

    The residual is the median difference of the logarithms of both sides. It is 1 if more than 2 % of the signs differ
    within their dimension, or if most values are about 0.
    """
    tiny = 1e-6 * np.abs(old).max()
    is_used = (np.abs(old) > tiny) & (np.abs(new) > 1e-6 * np.abs(new).max())
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(is_used, np.log(np.abs(new) / np.abs(old)), np.nan)
    signs = np.where(is_used, np.sign(new) * np.sign(old), 0).sum(0)
    flipped = 1 - np.abs(signs).sum() / max(is_used.sum(), 1)
    if flipped > 0.02 or is_used.mean() < 0.5:
        return 1.0
    for _ in range(10):
        logs = logs - np.nanmedian(logs, axis=0)
        logs = logs - np.nanmedian(logs, axis=1, keepdims=True)
    return float(np.nanmedian(np.abs(logs)))


def affine_residual(old: Matrix, new: Matrix) -> float:
    """Return the residual of `old_ij ~ (g_j new_ij + b_j) / a_i`: a factor and an offset for each dimension.

    Given the scales a, least squares fit g and b; the scales minimize the error of that fit (smallest eigenvector). The
    residual is 1 if a scale is not positive. Few rows fit by chance: unrelated rows have about sqrt(1 - 2 / n).
    """
    count = len(old)
    form = np.zeros((count, count))
    inverses = []
    for column, target in zip(new.T, old.T):
        basis = np.linalg.qr(np.stack([column, np.ones(count)], axis=1))[0]
        form += (np.eye(count) - basis @ basis.T) * np.outer(target, target)
        inverses.append(basis)
    scales = np.linalg.eigh(form)[1][:, 0]
    scales = scales * np.sign(scales.sum())
    if scales.min() < 0.05 * scales.max():
        return 1.0
    fitted = np.stack([basis @ (basis.T @ (scales * target)) for basis, target in zip(inverses, old.T)], axis=1)
    return float(turns(old, fitted).max()) if np.linalg.norm(fitted, axis=1).all() else 1.0


def standardised(vectors: Matrix) -> Matrix:
    """Scale each row to mean 0 and standard deviation 1, as LayerNorm without gain and bias."""
    centred = vectors - vectors.mean(1, keepdims=True)
    made: Matrix = centred / np.maximum(centred.std(1, keepdims=True), 1e-300)
    return made


def low_rank_share(old: Matrix, new: Matrix, rank: int = 2) -> float:
    """Return the share, 0 to 1, of the rows' changes of direction that lies in their `rank` main directions."""
    first, second = unit(old), unit(new)
    change = second - (second * first).sum(1, keepdims=True) * first
    energy = np.linalg.svd(change, compute_uv=False) ** 2
    return float(energy[:rank].sum() / max(energy.sum(), 1e-300))


def mixture(target: Matrix, first: Matrix, second: Matrix) -> tuple[Matrix, float]:
    """Fit a vector (d,) by a weighted sum of two others; return the weights of the directions (2,) and the residual."""
    basis = unit(np.stack([first, second])).T
    direction = target / np.linalg.norm(target)
    weights = np.asarray(np.linalg.lstsq(basis, direction, rcond=None)[0], np.float64)
    return weights, float(np.linalg.norm(direction - basis @ weights))


def neighbour_overlap(old: Matrix, new: Matrix) -> float:
    """Return the mean overlap, 0 to 1, of each input's K nearest other inputs (by cosine) in the two sets."""
    return _overlap(_cosines_of_others(old, old), _cosines_of_others(new, new))


def mixed_overlap(old: Matrix, new: Matrix) -> float:
    """Return the overlap of the K nearest inputs among the old vectors, searched by old and by new vectors."""
    return _overlap(_cosines_of_others(old, old), _cosines_of_others(new, old))


def _cosines_of_others(vectors: Matrix, gallery: Matrix) -> Matrix:
    scores = unit(vectors) @ unit(gallery).T
    np.fill_diagonal(scores, -np.inf)
    return scores


def search_overlap(old: tuple[Matrix, Matrix], new: tuple[Matrix, Matrix]) -> float:
    """Return the overlap of the K nearest gallery vectors of each query; `old` and `new` are queries and a gallery."""
    first, second = (unit(queries) @ unit(gallery).T for queries, gallery in (old, new))
    return _overlap(first, second)


def _overlap(first: Matrix, second: Matrix) -> float:
    """Return the mean overlap of the K largest scores per row; a score that ties with the K-th counts as among them."""
    shares = []
    for ours, theirs in zip(first, second):
        top = np.argsort(-theirs, kind="stable")[:K]
        bound = np.sort(ours)[-K] - 2e-3  # canaries with almost equal scores may swap ranks
        shares.append((ours[top] >= bound).mean())
    return float(np.mean(shares))


def is_bfloat16(vectors: np.ndarray) -> bool:
    """Return whether bfloat16 represents every value exactly: the lower half of its float32 is zero."""
    if vectors.dtype == np.float16:
        return False
    single = np.ascontiguousarray(vectors, np.float32)
    return bool((single == vectors).all() and not (single.view(np.uint32) & 0xFFFF).any())


def saturated(vectors: np.ndarray) -> int:
    """Count infinite values in distinct rows; without any, count values that tie for the largest absolute value."""
    rows = np.unique(vectors.astype(np.float64), axis=0)
    infinite = int(np.isinf(rows).sum())
    if infinite:
        return infinite
    sizes = np.abs(rows)
    ties = int((sizes == sizes.max()).sum())
    per_row = (sizes == sizes.max(1, keepdims=True)).sum(1)
    return max(ties if ties > 1 else 0, int((per_row[per_row > 1]).sum()))
