"""Maps between two embedders: a known relation is recovered, and numpy applies the written map alike."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from ctvr.methods.layers.feature_maps import procrustes
from ctvr.orchestrator.migration.maps import KINDS, FeatureMap, fit_maps, transposed
from tests.orchestrator.migration.pairs import make_pair, unit


def cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x * y).sum(dim=1).mean())


def fitted(pair, to_old: bool = False, count: int = 1000) -> dict[str, FeatureMap]:
    x, y = (torch.from_numpy(each[:count]) for each in (pair.old, pair.new))
    return fit_maps(y, x) if to_old else fit_maps(x, y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to_old", [True, False])
def test_a_rotation_is_recovered_on_items_that_were_not_fitted(kind, to_old):
    pair = make_pair(0, noise=0)
    x, y = (torch.from_numpy(each[1000:]) for each in (pair.old, pair.new))
    found = fitted(pair, to_old)[kind].apply(y if to_old else x)
    assert cosine(found, x if to_old else y) > 0.999


def test_offsets_of_both_embedders_are_removed():
    draw = np.random.default_rng(0)
    items = draw.standard_normal((600, 16))
    turn = np.linalg.qr(draw.standard_normal((16, 16)))[0]
    x, y = (torch.from_numpy(unit(each)) for each in (items + 3, items @ turn - 2))
    found = {kind: cosine(each.apply(x[400:]), y[400:]) for kind, each in fit_maps(x[:400], y[:400]).items()}
    without = cosine(x[400:] @ procrustes(x[:400], y[:400]).float(), y[400:])
    assert min(found.values()) > without + 0.003, (found, without)


def test_a_linear_relation_needs_the_residual_of_low_rank_and_a_curve_that_of_the_mlp():
    draw = np.random.default_rng(0)
    x = unit(draw.standard_normal((3000, 16)))
    linear = unit(x @ (draw.standard_normal((16, 16)) * np.geomspace(0.1, 3, 16)))
    curved = unit(np.abs(x) @ draw.standard_normal((16, 16)))
    found = {}
    for name, y in (("linear", linear), ("curved", curved)):
        maps = fit_maps(*(torch.from_numpy(each[:2500]) for each in (x, y)))
        apart = [torch.from_numpy(each[2500:]) for each in (x, y)]
        found[name] = {kind: cosine(each.apply(apart[0]), apart[1]) for kind, each in maps.items()}
    assert found["linear"]["low_rank"] > found["linear"]["orthogonal"] + 0.02
    assert found["curved"]["mlp"] > found["curved"]["low_rank"] + 0.02


def test_residuals_that_do_not_help_are_small():
    pair = make_pair(0, noise=0.3)
    x, y = (torch.from_numpy(each[1000:]) for each in (pair.old, pair.new))
    found = {kind: cosine(each.apply(x), y) for kind, each in fitted(pair, count=100).items()}
    assert min(found["low_rank"], found["mlp"]) > found["orthogonal"] - 0.005, found


def test_a_transposed_map_orders_items_as_their_linear_images_do():
    pair = make_pair(0, old=48, new=32)
    index_map = fitted(pair)["low_rank"]
    queries, items = torch.from_numpy(pair.new_texts[:9]), torch.from_numpy(pair.old)
    images = items @ index_map.weights["matrix"] + index_map.weights["shift"]
    expected = (queries @ images.mT).argsort(dim=1)[:, -5:]
    assert torch.equal((transposed(index_map).apply(queries) @ items.mT).argsort(dim=1)[:, -5:], expected)


@pytest.mark.parametrize("kind", [*KINDS, "transposed"])
def test_the_script_applies_the_map_as_we_do_in_a_process_with_numpy_and_safetensors(tmp_path, kind):
    pair = make_pair(0, old=48, new=32, share=0.9)
    maps = fitted(pair)
    made = transposed(maps["low_rank"]) if kind == "transposed" else maps[kind]
    if kind == "mlp":  # a network that does something
        made.weights["outer"] += 0.1 * torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
    script = made.write(tmp_path / "a map.safetensors", {"kind": kind})
    given = pair.new_texts if kind == "transposed" else pair.old
    np.save(tmp_path / "in.npy", 7 * given[:50])
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(script)!r}, {str(tmp_path / 'in.npy')!r}, {str(tmp_path / 'out.npy')!r}]\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "assert not {'torch', 'ctvr'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    expected = made.apply(torch.from_numpy(given[:50])).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6, rtol=0)
    assert len(Path(script).read_text().splitlines()) <= 22
    with safe_open(tmp_path / "a map.safetensors", "np") as file:
        assert file.metadata() == {"kind": kind}
