"""The package in examples/plug_ins: its metrics equal a loop, and a run uses all three kinds by their entry points."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import ctvr
from tests.entry_points import install
from tests.small_stream import write_stream

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "plug_ins"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    """Install the example as an installer does: its modules, with its entry points next to them."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    groups = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]["entry-points"]
    install(tmp_path / "site", "ctvr_plug_ins", groups, **{file.stem: file.read_text() for file in FILES})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for file in FILES:
        monkeypatch.delitem(sys.modules, file.stem, raising=False)


class Query:
    def __init__(self, target, relevant):
        self.target, self.relevant = target, relevant


class Item:
    def __init__(self, category):
        self.category = category


@pytest.mark.usefixtures("_installed")
def test_the_metrics_equal_their_definition_in_a_loop():
    graded = __import__("graded")
    torch.manual_seed(0)
    scores, items = torch.randn(20, 15), [Item("abc"[column % 3]) for column in range(15)]
    queries = [Query(q % 15, (q % 15, *{(3 * q + 1) % 15, (q + 7) % 15} - {q % 15})) for q in range(20)]
    ndcg, precision = [], []
    for row, query in zip(scores.tolist(), queries):
        order = sorted(range(15), key=lambda column: -row[column])
        same = [items[column].category == items[query.target].category for column in range(15)]
        gains = [2 ** (2 if column in query.relevant else same[column]) - 1 for column in range(15)]
        got, best = (
            sum(gain / math.log2(place + 2) for place, gain in enumerate(listed[:10]))
            for listed in ([gains[column] for column in order], sorted(gains, reverse=True))
        )
        ndcg.append(got / best)
        places = [place for place, column in enumerate(order, start=1) if column in query.relevant]
        precision.append(sum(number / place for number, place in enumerate(places, start=1)) / len(places))
    assert graded.ndcg(scores, queries, items)["ndcg10"] == pytest.approx(5 * sum(ndcg))
    assert graded.mean_average_precision(scores, queries, items)["map"] == pytest.approx(5 * sum(precision))


@pytest.mark.usefixtures("_installed")
def test_lion_follows_its_formula():
    lion = __import__("lion")
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = lion.Lion([{"params": [p], "weight_decay": 0.5}], lr=0.1, betas=(0.9, 0.8))
    value, m = 1.0, 0.0
    for grad in (0.3, -2.0, 0.1):
        p.grad = torch.tensor([grad])
        optimizer.step()
        c = 0.9 * m + 0.1 * grad
        value -= 0.1 * (math.copysign(1, c) + 0.5 * value)
        m = 0.8 * m + 0.2 * grad
        assert p.item() == pytest.approx(value)


@pytest.mark.slow
@pytest.mark.usefixtures("_installed")
def test_a_run_uses_the_package_and_its_metrics_are_columns(tmp_path):
    manifest = write_stream(tmp_path / "small", num_tasks=2, has_val=False)
    text = json.loads(manifest.read_text())
    (first, second, *_) = (item for item in text["tasks"][0]["test"])
    first["relevant"] = [[first["video"], second["video"]] for _ in first["captions"]]
    manifest.write_text(json.dumps(text))
    names = {"evaluation.metrics": "ndcg,map", "optim.name": "lion", "tracking.mirror": "json_lines"}
    for seed in (0, 1):
        run = ctvr.run("clip4clip", manifest, settings={"optim.epochs": 1, "seed": seed, **names}, runs=tmp_path)
    assert run.settings["evaluation.metrics"] == ["ndcg", "map"]
    recorded = [row["stream/t2v/map"] for row in run.history]
    frame = ctvr.table(stream="small", columns="stream/t2v/ndcg10,stream/t2v/map", runs=tmp_path)
    (row,) = frame if isinstance(frame, list) else frame.to_dict("records")
    assert row["seeds"] == 2
    assert row["t2v/map std"] >= 0
    (_, file) = sorted((tmp_path / "mirror").glob("*.jsonl"), key=lambda each: "seed1" in each.name)
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [line["stream/t2v/map"] for line in lines if line["task"]] == recorded
    muon = {"optim.name": "muon", "optim.momentum": 0.9, "optim.epochs": 1}
    assert len(ctvr.run("lora", manifest, settings=muon, runs=tmp_path).history) == 2
