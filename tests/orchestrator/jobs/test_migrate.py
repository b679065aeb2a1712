"""`ctvr migrate`: what each way to switch embedders finds on items that no map was fitted to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.jobs.migrate import Migration, MigrationConfig, compare, migrate
from ctvr.orchestrator.migration.inputs import read_set
from ctvr.orchestrator.migration.sample import split_ids
from ctvr.orchestrator.migration.search import ALL, BOTH, STAY, Way
from ctvr.orchestrator.migration.verdict import make_rows
from tests.orchestrator.migration.pairs import Pair, make_pair, unit, write_sets, write_streams
from tests.refusing import refuses

SMALL = MigrationConfig(sample=500)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def value(result: Migration, way: Way) -> float:
    return float(result.found[way][:, -1].mean())


@pytest.mark.parametrize(("old", "new"), [(48, 48), (48, 64)])
def test_a_rotation_with_little_noise_is_mapped_and_loses_less_than_one_percent(old, new):
    result = compare(*make_pair(0, 2500, old, new).sets(), SMALL)
    assert result.verdict.word == "map queries"
    assert value(result, result.verdict.way) >= 0.99 * value(result, ALL) > 0.3
    assert value(result, ("map index", "orthogonal")) >= 0.99 * value(result, ALL)


@pytest.mark.parametrize("captions", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_an_independent_embedder_needs_every_item_encoded_again(seed, captions):
    result = compare(*make_pair(seed, 800, share=0.0).sets(captions), replace(SMALL, sample=None, seed=seed))
    assert result.verdict.way == ALL
    assert max(value(result, way) for way in result.selected) < 0.2 * value(result, ALL)


def test_a_worse_embedder_is_not_worth_it():
    result = compare(*make_pair(0, noise=0.8).sets(), SMALL)
    assert result.verdict.word == "stay"
    assert result.chosen in result.selected


def test_rows_are_those_of_the_documentation_and_shares_of_one_order_end_at_re_encoding_all():
    result = compare(*make_pair(0, share=0.5).sets(), SMALL)
    kinds = ("orthogonal", "low_rank", "mlp")
    maps = [(way, kind) for way in ("map queries", "map index") for kind in (*kinds, "transposed")][:-1]
    parts = [(order, str(share)) for share in (5, 10, 25, 50) for order in ("age", "predicted gain")]
    assert list(result.found) == [STAY, BOTH, *maps, *parts, ALL]
    by_age = [value(result, ("age", str(share))) for share in (5, 10, 25, 50)]
    assert value(result, result.selected[1]) < by_age[1] < by_age[3] < value(result, ALL)


def test_items_that_the_map_predicts_worst_are_encoded_first():
    """Half of the items, known by their old vectors, moved to unrelated places."""
    pair = make_pair(0, 3000, noise=0.02)
    moved = pair.old[:, 0] > 0
    other = unit(np.random.default_rng(1).standard_normal((3000, 48)))
    gap = unit(np.random.default_rng(2).standard_normal((3000, 48)))
    new, texts = pair.new.copy(), pair.new_texts.copy()
    new[moved], texts[moved] = other[moved], unit(other + 1.2 * gap)[moved]
    result = compare(*Pair(pair.old, new, pair.old_texts, texts).sets(), replace(SMALL, sample=1000))
    assert value(result, ("predicted gain", "50")) > value(result, ("age", "50")) + 0.05


def test_items_that_are_searched_often_are_encoded_first(tmp_path):
    pair = make_pair(0, 2000, share=0.4)
    asked = pair.new[np.random.default_rng(0).integers(1900, 2000, 600)]  # 100 new items
    asked = unit(asked + 0.8 * unit(np.random.default_rng(1).standard_normal(asked.shape)))
    np.save(tmp_path / "q.npy", asked)
    result = compare(*pair.sets(captions=False), replace(SMALL, queries=tmp_path / "q.npy"))
    assert len(result.group) == 300
    assert not {STAY, BOTH} & set(result.found)
    assert value(result, ("traffic", "25")) > value(result, ("age", "25")) + 0.02


def test_captions_of_past_queries_are_not_measured(tmp_path):
    sets = make_pair(0, 1200).sets()
    everything = compare(*sets, SMALL)
    assert len(everything.group) == 700
    (tmp_path / "q.txt").write_text("\n".join(f"caption {row}" for row in range(1000)))
    result = compare(*sets, replace(SMALL, queries=tmp_path / "q.txt"))
    assert len(result.group) < 300
    assert ("traffic", "50") in result.found
    (tmp_path / "q.txt").write_text("\n".join(f"caption {row}" for row in range(1200)))
    with refuses(0, remedy=True):
        compare(*sets, replace(SMALL, queries=tmp_path / "q.txt"))


def test_fitted_items_are_not_measured_and_the_split_depends_on_the_seed():
    ids = [f"v{row}" for row in range(101)]
    sampled, measured = split_ids(ids, None, np.random.default_rng(0))
    assert (len(sampled), len(measured)) == (50, 51)
    assert sorted(sampled + measured) == sorted(ids)
    assert sampled != split_ids(ids, None, np.random.default_rng(1))[0]
    assert len(split_ids(ids * 100, None, np.random.default_rng(0))[0]) == 2000
    with refuses(51, 101, where="--sample", remedy=True):
        split_ids(ids, 51, np.random.default_rng(0))


def test_a_map_is_measured_on_items_whose_relation_it_does_not_know():
    """The sampled items have a relation of their own, which a measurement on them would find again."""
    pair = make_pair(0, 1000, share=0.0)
    sampled, _ = split_ids([f"v{row}" for row in range(1000)], 500, np.random.default_rng(0))
    rows = [int(key[1:]) for key in sampled]
    new = pair.new.copy()
    new[rows] = pair.old[rows]
    result = compare(*Pair(pair.old, new, pair.old_texts, pair.new_texts).sets(captions=False), SMALL)
    assert max(value(result, way) for way in result.selected) < 0.2


def test_results_do_not_depend_on_the_order_of_the_new_set(tmp_path):
    pair = make_pair(0, 600, noise=0.3)
    expected = compare(*pair.sets(captions=False), MigrationConfig())
    old, new = (read_set(name, tmp_path) for name in write_sets(tmp_path, pair))
    found = compare(old, new, MigrationConfig())
    for way, values in expected.found.items():
        torch.testing.assert_close(found.found[way], values, atol=0.002, rtol=0)


@pytest.mark.slow
def test_results_of_20_samples_agree_with_all_queries_of_the_same_maps():
    sets = make_pair(0, 4500, noise=0.2, share=0.95).sets()
    covered: dict[Way, int] = {}
    agrees = 0
    for seed in range(20):
        config = MigrationConfig(sample=500, seed=seed)
        result, complete = compare(*sets, config), compare(*sets, replace(config, measure=10**6))
        assert (len(result.group), len(complete.group)) == (1000, 4000)
        agrees += result.verdict.word == complete.verdict.word
        for row in result.rows:
            truth = value(complete, row.way)
            covered[row.way] = covered.get(row.way, 0) + (row.metrics[-1].low <= truth <= row.metrics[-1].high)
    # each row misses one of 20 on average, so the least of 18 rows may have less than 19
    assert sum(covered.values()) >= 0.95 * 20 * len(covered), covered
    assert min(covered.values()) >= 17, covered
    assert agrees >= 17, agrees


@pytest.mark.parametrize("captions", [True, False])
def test_intervals_of_500_draws_of_queries_cover_the_value_of_all_queries(captions):
    config = MigrationConfig(sample=500, measure=10**6)
    complete = compare(*make_pair(0, 3500, noise=0.2, share=0.95).sets(captions), config)
    draw = torch.Generator().manual_seed(0)
    covered = dict.fromkeys(complete.found, 0)
    for _ in range(500):
        chosen = torch.randperm(3000, generator=draw)[:200]
        part = {way: values[chosen] for way, values in complete.found.items()}
        for row in make_rows(part, complete.group[chosen], 1):
            covered[row.way] += row.metrics[-1].low <= value(complete, row.way) <= row.metrics[-1].high
    assert min(covered.values()) >= 0.93 * 500, covered


def test_the_command_prints_the_table_and_the_verdict_and_writes_the_map(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    old, new = write_streams(Path("runs"), make_pair(0, 1200))
    assert main(["migrate", old, new, "--rate", "2"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "common ids: 1200; only in old: 0; only in new: 0" in lines
    head = next(line for line in lines if line.startswith("way"))
    assert all(name in head for name in ("R@1 (%)", "R@5 (%)", "R@10 (%)", "kept (%)", "items to encode", "time"))
    cells = [line.split() for line in lines if line.startswith("re-encode all")]
    assert cells[0][-3:] == ["1200", "10", "min"]
    assert any(line.startswith("verdict: map queries: map queries, ") for line in lines)
    written = sorted(path.name for path in Path("runs/migrate").iterdir())
    assert written == ["one--two.py", "one--two.safetensors"]
    assert str(Path("runs/migrate/one--two.safetensors")) in said.err


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"sample": 5}, "--sample"),
        ({"measure": 3}, "--measure"),
        ({"seed": -1}, "--seed"),
        ({"tolerance": 0}, "--tolerance"),
        ({"tolerance": float("nan")}, "--tolerance"),
        ({"rate": 0}, "--rate"),
        ({"rate": float("inf")}, "--rate"),
        ({"out": Path("map.npz")}, "--out"),
        ({"out": Path("none/map.safetensors")}, "--out"),
        ({"sample": 90}, "--sample"),
    ],
)
def test_an_option_out_of_range_is_refused_and_nothing_is_written(tmp_path, monkeypatch, changed, where):
    monkeypatch.chdir(tmp_path)
    names = write_sets(tmp_path, make_pair(0, 100))
    with refuses(where=where, remedy=True):
        migrate(*names, replace(MigrationConfig(), **changed))
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", "b.npz"}


def test_a_script_of_the_user_is_not_replaced(tmp_path):
    names = write_sets(tmp_path, make_pair(0, 120))
    (tmp_path / "model.py").write_text("mine = 1\n")
    with refuses("model.py", where="--out"):
        migrate(*names, MigrationConfig(out=tmp_path / "model.safetensors", runs=tmp_path))
    assert (tmp_path / "model.py").read_text() == "mine = 1\n"
    (tmp_path / "model.py").unlink()
    for _ in range(2):  # our own script is replaced
        migrate(*names, MigrationConfig(out=tmp_path / "model.safetensors", runs=tmp_path))


def test_too_few_queries_are_refused(tmp_path):
    np.save(tmp_path / "q.npy", np.ones((30, 48)))
    with refuses(30, 20, where="--queries", remedy=True):
        compare(*make_pair(0, 100).sets(captions=False), MigrationConfig(queries=tmp_path / "q.npy"))
