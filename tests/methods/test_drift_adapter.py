"""Drift-Adapter: a toy example computed from its definitions, and the invariants of its maps."""

import copy
import json

import numpy as np
import pytest
import torch

from ctvr.methods.base import Method, l2_normalize
from ctvr.methods.drift_adapter import MAPS, Adapter, DriftAdapter, DriftAdapterConfig
from ctvr.methods.layers.feature_maps import diagonal_scale, fit_by_gradient, procrustes
from tests.methods.conftest import make_batch
from tests.methods.steps import train_stream
from tests.methods.tables import learned_tables

KINDS = ["procrustes", "low_rank", "mlp"]
TOKENS = make_batch(4, 2, seed=9).tokens


def config(kind="procrustes", center=False, pairs=20_000, **of_map) -> DriftAdapterConfig:
    return DriftAdapterConfig(map=MAPS[kind](**of_map), center=center, pairs=pairs)


def link(new, old, **settings) -> Adapter:
    made = Adapter(config(**settings), new.shape[1], 1)
    made.fit(0, new, old)
    return made


def pairs(n=30, d=6, seed=0):
    torch.manual_seed(seed)
    return l2_normalize(torch.randn(n, d)), l2_normalize(torch.randn(n, d))


def rotation(d=6, seed=1):
    torch.manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0].float()


@pytest.fixture(scope="module")
def toy(shared):
    folder = shared / "reference" / "drift_adapter"
    arrays = np.load(folder / "toy.npz")
    return {name: torch.from_numpy(arrays[name]) for name in arrays.files}, json.loads(
        (folder / "toy.json").read_text()
    )


def test_procrustes_centring_and_diagonal_are_those_of_the_toy(toy):
    arrays, numbers = toy
    new, old = arrays["new"], arrays["old"]
    for settings, name, key in (
        ({"ridge": 0.0}, "R", "procrustes"),
        ({"ridge": 0.0, "center": True}, "R_centred", "centred procrustes"),
        ({"ridge": 0.0, "diagonal": True}, "R", "procrustes+diagonal"),
    ):
        made = link(new.float(), old.float(), **settings)
        torch.testing.assert_close(made.matrix[0].double(), arrays[name], rtol=0, atol=1e-5)
        mapped = made(new.float(), 0).double()
        assert float((mapped - old).square().sum(dim=1).mean()) == pytest.approx(numbers["mse"][key], abs=1e-5)
        cosine = torch.nn.functional.cosine_similarity(mapped, old).mean()
        assert float(cosine) == pytest.approx(numbers["cos"][key], abs=1e-5)
    found = procrustes(new, old)
    torch.testing.assert_close(found, arrays["R"], rtol=0, atol=1e-12)
    torch.testing.assert_close(diagonal_scale(new @ found, old), arrays["diagonal"], rtol=0, atol=1e-12)
    assert float(torch.linalg.det(found)) == pytest.approx(numbers["det R"])


def test_maps_of_512_numbers_keep_as_much_as_their_definitions_say(toy):
    counts = toy[1]["params d=512"]
    for kind, name in (
        ("procrustes", "orthogonal (stored)"),
        ("low_rank", "low rank affine r=64 (U,V,t)"),
        ("mlp", "mlp hidden 256 without linear skip"),
    ):
        made = Adapter(config(kind), 512, 1)
        assert sum(getattr(made, weight).numel() for weight in made.names) == counts[name]
        assert made.scale.numel() == counts["diagonal"]
        assert made.diagonal == (kind != "procrustes")


def test_procrustes_is_orthogonal_and_keeps_the_products_of_new_features():
    new, old = pairs(n=4)  # fewer pairs than numbers
    for ridge in (0.0, 1.0):
        matrix = procrustes(new, old, ridge)
        torch.testing.assert_close(matrix.mT @ matrix, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)
        mapped = new.double() @ matrix
        torch.testing.assert_close(mapped @ mapped.mT, (new @ new.mT).double(), rtol=0, atol=1e-6)


def test_procrustes_recovers_a_rotation_and_the_ranks_of_its_index():
    new, videos = pairs()
    turn = rotation()
    made = link(new, new @ turn, ridge=0.0)
    torch.testing.assert_close(made.matrix[0], turn, rtol=0, atol=1e-5)
    before = (new @ turn) @ videos.mT
    assert torch.equal((made(new, 0) @ videos.mT).argmax(dim=1), before.argmax(dim=1))


def test_a_ridge_leaves_alone_what_no_pair_determines():
    new, _ = pairs(n=1)
    made = procrustes(new, new, ridge=1.0)
    torch.testing.assert_close(made, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)
    assert not torch.allclose(procrustes(new, -new, ridge=0.1), torch.eye(6, dtype=torch.float64), atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_models_have_the_identity_for_a_map(kind):
    new, _ = pairs()
    made = link(new, new.clone(), kind=kind)
    assert bool(made.identity.all())
    torch.testing.assert_close(made(new, 0), new, rtol=0, atol=0 if kind != "mlp" else 1e-7)


@pytest.mark.parametrize("kind", ["low_rank", "mlp"])
def test_maps_of_gradients_begin_as_the_identity_and_end_closer(kind):
    """A map with many numbers comes closer to a small rotation than one with few, and that closer than none."""
    new, _ = pairs(n=200)
    old = l2_normalize(new @ rotation() * 0.3 + new)
    error = lambda made: float((made(new, 0) - old).square().sum(dim=1).mean())
    start = float((new - old).square().sum(dim=1).mean())
    large, small = ({"rank": 6}, {"rank": 1}) if kind == "low_rank" else ({"hidden": 32}, {"hidden": 1})
    fitted = link(new, old, kind=kind, lr=1e-2, **large)
    assert error(fitted) < 0.2 * start
    worse = link(new, old, kind=kind, lr=1e-2, **small)
    assert error(fitted) < error(worse) < start


def test_full_rank_fits_as_well_as_procrustes_and_a_diagonal_helps():
    new, _ = pairs(n=60)
    torch.manual_seed(3)
    old = l2_normalize(new @ rotation() + 0.3 * torch.randn(6))
    error = lambda made: float((made(new, 0) - old).square().sum(dim=1).mean())
    turned = error(link(new, old, ridge=0.0))
    assert error(link(new, old, ridge=0.0, diagonal=True)) <= turned + 1e-6
    full = link(new, old, kind="low_rank", rank=6, decay=0.0, lr=1e-2, steps=2000)
    assert error(full) <= turned


def test_a_fit_takes_the_step_that_is_best_on_held_out_pairs():
    """The fitted pairs pull to 1 and the held-out one to 0.5, where the weight that starts at 0 passes on the way."""
    x = torch.ones(10, 1)
    y = torch.tensor([[1.0]] * 9 + [[0.5]])
    error = lambda w, a, b: (w["w"] * a - b).square().mean()
    found = fit_by_gradient({"w": torch.zeros(1)}, error, x, y, lr=0.01, steps=400, decay=0.0)
    assert float(found["w"]) == pytest.approx(0.5, abs=0.06)
    few = fit_by_gradient({"w": torch.zeros(1)}, error, x[:9], y[:9], lr=0.01, steps=400, decay=0.0)
    assert float(few["w"]) == pytest.approx(1.0, abs=0.06)


def test_pairs_are_limited_and_taken_from_the_whole_task():
    new, old = pairs(n=30)
    few = link(new, old, pairs=10, ridge=0.0)
    torch.testing.assert_close(few.matrix, link(new[::3], old[::3], ridge=0.0).matrix)


def test_maps_of_two_tasks_are_applied_in_turn_and_turn_back():
    torch.manual_seed(0)
    first = l2_normalize(torch.randn(20, 6))
    tables = [first, first @ rotation(seed=1), first @ rotation(seed=1) @ rotation(seed=2)]
    method = learned_tables(DriftAdapter(config(ridge=0.0), Method()), tables)
    numbers = torch.arange(20)[:, None]
    torch.testing.assert_close(method.encode_text(numbers, 1), tables[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(method.encode_text(numbers, 0), first, rtol=0, atol=1e-5)
    both = method.links[1].matrix[0] @ method.links[0].matrix[0]
    torch.testing.assert_close(method.encode_text(numbers, 0), tables[2] @ both, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fit_leaves_the_retriever_and_the_random_numbers_alone(base, kind):
    within = DriftAdapter(config(kind, **({} if kind == "procrustes" else {"steps": 3})), copy.deepcopy(base))
    alone = copy.deepcopy(base)
    assert train_stream(within, tasks=3, steps=1) == train_stream(alone, tasks=3, steps=1)
    assert all(torch.equal(a, b) for a, b in zip(within.base.parameters(), alone.parameters(), strict=True))
    new, old = pairs()
    state = torch.get_rng_state()
    link(new, old, kind=kind)
    assert torch.equal(torch.get_rng_state(), state)
