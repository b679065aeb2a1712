"""Lambda-orthogonality: a toy example computed from eqs. 2 to 6, and the invariants of its maps."""

import json

import numpy as np
import pytest
import torch

from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.families.compensation import MapLink
from ctvr.methods.lambda_orthogonality import (
    LambdaOrthogonality,
    LambdaOrthogonalityConfig,
    RelaxedConfig,
    StrictConfig,
)
from ctvr.methods.layers.feature_maps import orthogonality_penalty, rotation
from tests.methods.tables import learned_tables

LAMBDAS, ALPHAS = ("0.0", "0.5", "1.0", "2.0"), ("1.0", "10.0")


def skew(upper: torch.Tensor, width: int) -> torch.Tensor:
    rows, columns = torch.triu_indices(width, width, offset=1)
    found = torch.zeros(width, width, dtype=upper.dtype)
    found[rows, columns] = upper
    return found - found.mT


def unit(n=40, d=6, seed=0):
    torch.manual_seed(seed)
    return l2_normalize(torch.randn(n, d))


def turn(d=6, seed=1, scale=1.0):
    torch.manual_seed(seed)
    return rotation(scale * torch.randn(d * (d - 1) // 2), d)


def fitted(kind, new, old, pairs=4096) -> MapLink:
    made = MapLink(kind, new.shape[1], 1, pairs)
    made.fit(0, new, old)
    return made


def error(made: MapLink, new, old) -> float:
    return float((made(new, 0) - old).square().sum(dim=1).mean())


@pytest.fixture(scope="module")
def toy(shared):
    folder = shared / "reference" / "lambda_orthogonality"
    arrays = np.load(folder / "toy.npz")
    tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return tensors, json.loads((folder / "toy.json").read_text())


def test_penalty_and_rotation_equal_the_toy(toy):
    arrays, numbers = toy
    for at in LAMBDAS:
        for slope in ALPHAS:
            w = arrays["W"].clone().requires_grad_()
            found = orthogonality_penalty(w, float(at), float(slope))
            found.backward()
            assert float(found.detach()) == pytest.approx(numbers[f"penalty lambda={at} alpha={slope}"], abs=1e-8)
            torch.testing.assert_close(found.detach(), arrays[f"penalty/{at}/{slope}"], rtol=0, atol=1e-8)
            torch.testing.assert_close(w.grad, arrays[f"grad/{at}/{slope}"], rtol=0, atol=1e-8)
    width = len(arrays["P"])
    upper = arrays["P"][tuple(torch.triu_indices(width, width, offset=1))]
    torch.testing.assert_close(skew(upper, width), arrays["P"])
    torch.testing.assert_close(rotation(upper, width), arrays["expP"], rtol=0, atol=1e-12)
    kept = {name: kind.start(512) for name, kind in (("strict", StrictConfig()), ("affine", RelaxedConfig()))}
    counts = {name: sum(value.numel() for value in weights.values()) for name, weights in kept.items()}
    assert counts["strict"] == numbers["parameters d=512"]["strict (upper triangle)"]
    assert counts["affine"] == numbers["parameters d=512"]["affine"]


def test_a_rotation_is_orthogonal_whatever_its_numbers():
    for scale in (0.0, 0.1, 3.0):
        matrix = turn(8, scale=scale).double()
        torch.testing.assert_close(matrix.mT @ matrix, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-5)
        assert float(torch.linalg.det(matrix)) == pytest.approx(1.0, abs=1e-4)


def test_penalty_grows_with_distance_and_lambda():
    sizes = [0.0, 0.1, 0.5, 1.0, 2.0]
    for threshold in (0.0, 1.0, 12.0):
        found = [float(orthogonality_penalty((1 + s) * torch.eye(4), threshold, 2.0)) for s in sizes]
        assert found == sorted(found)
        assert min(found) >= 0
    w = 1.5 * torch.eye(4)
    assert float(orthogonality_penalty(w, 1e6, 10.0)) == 0.0
    assert float(orthogonality_penalty(w, 0.0, 1e6)) == pytest.approx(float((w @ w.T - torch.eye(4)).norm()))


def test_at_an_orthogonal_matrix_the_penalty_has_a_finite_gradient():
    w = torch.eye(5, requires_grad=True)
    orthogonality_penalty(w, 0.0, 10.0).backward()
    assert torch.equal(w.grad, torch.zeros(5, 5))


def test_a_strict_map_recovers_a_rotation_and_keeps_every_product():
    new = unit(100)
    old = new @ turn(scale=0.3)
    made = fitted(StrictConfig(lr=0.02, steps=400), new, old)
    assert error(made, new, old) < 1e-4
    mapped = made(new, 0)
    torch.testing.assert_close(mapped @ mapped.mT, new @ new.mT, rtol=0, atol=1e-5)
    videos = unit(30, seed=5)
    assert torch.equal((new @ videos.mT).argsort(dim=1)[:, -1], (mapped @ made(videos, 0).mT).argsort(dim=1)[:, -1])


def test_a_smaller_lambda_is_more_orthogonal_and_fits_worse():
    new = unit(200)
    old = new @ (turn(scale=0.3) * torch.linspace(0.4, 1.6, 6))
    near = [fitted(RelaxedConfig(relative_threshold=at, lr=0.02), new, old) for at in (0.0, 1e3)]
    gaps = [float((m.matrix[0] @ m.matrix[0].mT - torch.eye(6)).norm()) for m in near]
    errors = [error(m, new, old) for m in near]
    assert gaps[0] < 0.3 * gaps[1]
    assert errors[1] < errors[0]


def test_lambda_is_relative_to_the_root_of_the_width():
    """The paper's 12 is for 512 numbers; a map at the threshold has half of its distance as penalty at any width."""
    kind = RelaxedConfig()
    assert kind.relative_threshold * 512**0.5 == pytest.approx(12, abs=0.01)
    for width in (4, 64, 512):
        at = kind.relative_threshold * width**0.5
        matrix = (1 + kind.relative_threshold) ** 0.5 * torch.eye(width, dtype=torch.float64)
        assert float(kind.penalty({"matrix": matrix})) == pytest.approx(at / 2, rel=1e-6)


def test_a_fit_reports_its_distance_and_whether_the_penalty_acted():
    first = unit(30)
    tables = [first, first @ (turn(seed=1, scale=0.2) * torch.linspace(0.5, 1.5, 6))]
    for threshold, acts in ((0.0, True), (10.0, False)):
        config = LambdaOrthogonalityConfig(map=RelaxedConfig(lr=0.02, relative_threshold=threshold))
        method = learned_tables(LambdaOrthogonality(config, Method()), tables)
        found, matrix = method.task_metrics(), method.links[-1].matrix[0]
        gap = float((matrix @ matrix.mT - torch.eye(6)).norm())
        assert found["orthogonality_gap"] == pytest.approx(gap, rel=1e-4, abs=1e-6)
        assert (found["orthogonality_penalty"] > 1e-6) == acts
    rigid = learned_tables(LambdaOrthogonality(LambdaOrthogonalityConfig(map=StrictConfig(steps=5)), Method()), tables)
    assert rigid.task_metrics() == {}


def test_each_loss_term_works_alone():
    new = unit(60)
    old = l2_normalize(new @ turn(scale=0.8))
    apart = lambda made: float((l2_normalize(made(new, 0)) * old).sum(dim=1).mean())
    start = float((new * old).sum(dim=1).mean())
    alone = fitted(RelaxedConfig(distance_weight=0.0, contrastive_weight=1.0, lr=0.02), new, old)
    assert apart(alone) > start + 0.2
    kind = RelaxedConfig(contrastive_weight=2.0)
    plain, weights = RelaxedConfig(), kind.start(6)
    added = kind.loss(weights, new, old) - plain.loss(weights, new, old)
    logits = new @ old.mT / 0.07
    target = torch.arange(60)
    both = [torch.nn.functional.cross_entropy(z, target) for z in (logits, logits.mT)]
    torch.testing.assert_close(added, sum(both))


def test_a_stream_turns_its_captions_back():
    first = unit(30)
    tables = [first, first @ turn(seed=1, scale=0.2), first @ turn(seed=1, scale=0.2) @ turn(seed=2, scale=0.2)]
    config = LambdaOrthogonalityConfig(map=StrictConfig(lr=0.02, steps=400))
    method = learned_tables(LambdaOrthogonality(config, Method()), tables)
    numbers = torch.arange(30)[:, None]
    torch.testing.assert_close(method.encode_text(numbers, 1), tables[1], rtol=0, atol=0.02)
    torch.testing.assert_close(method.encode_text(numbers, 0), first, rtol=0, atol=0.02)
