"""Maps from the vectors of one embedder to those of another, fitted on vectors of the same items.

    g(x) = unit(x W + b + GELU(x U + c) V)        the last term for the residual MLP only

Drift-Adapter's three kinds (Vejendla, EMNLP 2025, arXiv:2509.23471) with centered vectors: `orthogonal` has an
orthogonal W (`procrustes`). `low_rank` adds a ridge regression of its residuals, truncated to a rank. `mlp` adds
a network, fitted by gradient descent. Ridge, rank and step are selected on every tenth pair, so a
residual that does not help there is zero. GELU is the tanh approximation, which numpy can compute.

Shapes: N pairs, d dimensions of the source, d' of the target, h hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from ctvr.methods.layers.feature_maps import HELD_OUT, Weights, fit_by_gradient, procrustes, start_weights
from ctvr.orchestrator.output_dir import publish

KINDS = ("orthogonal", "low_rank", "mlp")
RANKS = (16, 64, 256)
RIDGES = (0.01, 0.1, 1.0, 10.0)  # relative to the mean variance of a direction
HIDDEN, LR, STEPS, DECAY = 256, 1e-3, 100, 1e-4
SCRIPT = '''\
"""Map vectors of one embedder to another: python {name}.py IN.npy OUT.npy, or import `apply`."""
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

w = load_file(Path(__file__).with_suffix(".safetensors"))

def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)

def apply(x):  # (n, {source}) -> (n, {target}), unit length
    x = unit(np.asarray(x, dtype=np.float32))
    y = x @ w["matrix"] + w["shift"]
    if "inner" in w:
        h = x @ w["inner"] + w["inner_bias"]
        y += 0.5 * h * (1 + np.tanh(0.7978845608 * (h + 0.044715 * h**3))) @ w["outer"]
    return unit(y)

if __name__ == "__main__":
    np.save(sys.argv[2], apply(np.load(sys.argv[1])))
'''


@dataclass(frozen=True)
class FeatureMap:
    """A fitted map between the vectors of two embedders.

    Attributes:
        kind: one of KINDS.
        weights: matrix (d, d') and shift (d',); of an MLP also inner (d, h), inner_bias (h,), outer (h, d').
    """

    kind: str
    weights: Weights

    def apply(self, x: Tensor) -> Tensor:
        """Map unit vectors (N, d) to unit vectors (N, d')."""
        y = torch.addmm(self.weights["shift"], x, self.weights["matrix"])
        if "inner" in self.weights:
            y = torch.addmm(y, _hidden(self.weights, x), self.weights["outer"])
        return F.normalize(y, dim=-1)

    def write(self, path: Path, about: dict[str, str]) -> Path:
        """Write the weights as safetensors with `about` as metadata, and next to them a script that applies them.

        Returns the script. It needs numpy and safetensors.
        """
        publish(path, save({name: value.contiguous() for name, value in self.weights.items()}, about))
        source, target = self.weights["matrix"].shape
        text = SCRIPT.format(name=path.stem, source=source, target=target)
        return publish(path.with_suffix(".py"), text.encode())


def is_script(path: Path) -> bool:
    """Return whether a file is a script of `FeatureMap.write`, which may be replaced."""
    start = SCRIPT.partition(" {name}")[0].encode()
    return path.is_file() and path.read_bytes()[: len(start)] == start


def fit_maps(x: Tensor, y: Tensor) -> dict[str, FeatureMap]:
    """Fit a map of each kind to pairs of unit vectors x (N, d) and y (N, d')."""
    mean_x, mean_y = x.mean(dim=0), y.mean(dim=0)
    centred, target = x - mean_x, y - mean_y
    turn = procrustes(centred, target).float()
    residual = target - centred @ turn
    low_rank = turn + _low_rank(centred, residual)
    mlp = _mlp(centred, target - centred @ low_rank)

    def affine(matrix: Tensor) -> Weights:
        return {"matrix": matrix, "shift": mean_y - mean_x @ matrix}

    network = {name: mlp[name] for name in ("inner", "outer")}
    network["inner_bias"] = mlp["inner_bias"] - mean_x @ mlp["inner"]
    found = (affine(turn), affine(low_rank), affine(low_rank) | network)
    return {kind: FeatureMap(kind, weights) for kind, weights in zip(KINDS, found)}


def transposed(index_map: FeatureMap) -> FeatureMap:
    """Return the query map x -> x W' under which unmapped items y rank as mapped items y W + b, for a linear map.

    Unlike the map of items, it cannot normalize the mapped items.
    """
    matrix = index_map.weights["matrix"].mT
    return FeatureMap("transposed", {"matrix": matrix, "shift": torch.zeros(matrix.shape[1])})


def _low_rank(x: Tensor, residual: Tensor) -> Tensor:
    """Return the W (d, d') of reduced-rank ridge regression, or zeros if no W reduces the error of held-out pairs."""
    held = torch.arange(len(x)) % HELD_OUT == HELD_OUT - 1
    fitted, errors = x[~held].double(), residual[~held].double()
    values, vectors = torch.linalg.eigh(fitted.mT @ fitted)
    cross = vectors.mT @ (fitted.mT @ errors)
    unseen, wanted = x[held].double(), residual[held].double()
    unit = values.clamp_min(0).mean().clamp_min(1e-12)

    def error(w: Tensor) -> float:
        return float((unseen @ w - wanted).square().sum())

    ridged = (vectors @ (cross / (values.clamp_min(0) + ridge * unit)[:, None]) for ridge in RIDGES)
    full = min(ridged, key=error)
    guessed = fitted @ full
    _, main = torch.linalg.eigh(guessed.mT @ guessed)  # ascending
    kept = (main[:, -min(rank, full.shape[1]) :] for rank in RANKS)
    best = min((full @ each @ each.mT for each in kept), key=error)
    return best.float() if error(best) < float(wanted.square().sum()) else torch.zeros_like(best).float()


def _hidden(w: Weights, x: Tensor) -> Tensor:
    return F.gelu(torch.addmm(w["inner_bias"], x, w["inner"]), approximate="tanh")


def _mlp(x: Tensor, residual: Tensor) -> Weights:
    """Fit inner, inner_bias and outer to the residuals. `outer` starts at zero; `inner` at scale 1 for |x| <= 1."""
    shapes = (x.shape[1], HIDDEN), (HIDDEN, residual.shape[1])
    start = {
        "inner": start_weights("inner", shapes[0], 1.0),
        "inner_bias": torch.zeros(HIDDEN),
        "outer": torch.zeros(shapes[1]),
    }

    def error(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        return (_hidden(w, x) @ w["outer"] - y).square().sum(dim=-1).mean()

    return fit_by_gradient(start, error, x, residual, lr=LR, steps=STEPS, decay=DECAY)
