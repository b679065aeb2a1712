"""Metrics of other packages get the scores that are ranked, and only new names with finite values are recorded."""

import math
import sys
from pathlib import Path

import pytest
import torch

from ctvr import methods
from ctvr.orchestrator.learning.evaluation.evaluate import Scores
from ctvr.orchestrator.learning.evaluation.own_metrics import own_metrics, try_metrics
from ctvr.orchestrator.learning.run.execute import RunPaths, check_streams, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.metric_names import OF_QUERIES
from ctvr.orchestrator.streams.stream import Item
from tests.refusing import refuses

SOURCE = """
import torch
seen = []
def first(scores, queries, items):
    seen.append((scores, queries, items))
    targets = torch.tensor([query.target for query in queries])
    own = scores.gather(1, targets[:, None])
    better, equal = (scores > own).sum(1), (scores == own).sum(1)
    scores.zero_()  # a metric may change its scores
    return {"found_first": (100 * (better == 0) / equal).mean()}
def relevant(scores, queries, items):
    return {"num_relevant": sum(len(query.relevant) for query in queries)}
def result(scores, queries, items):
    return RESULT(items)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Import a file of metrics, as a user does; return the module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_metrics_file.py").write_text(SOURCE)
    monkeypatch.delitem(sys.modules, "own_metrics_file", raising=False)
    methods.trust(f"own_metrics_file:{name}" for name in ("first", "relevant", "result"))
    try_metrics(["own_metrics_file:relevant"], item("a"))
    return sys.modules["own_metrics_file"]


def item(*videos: str, **more) -> tuple[Item, ...]:
    return tuple(Item(video, "", None, "c", (f"a {video}", f"one {video}"), **more) for video in videos)


def in_run(method: str, manifest: str, runs, **more) -> list[dict[str, float]]:
    stream = load_stream(manifest, runs)
    settings = {"method": method, "stream": manifest, **more}
    experiment = resolve(settings, stream.settings)
    check_streams(experiment, stream, RunPaths(runs))
    return execute(experiment, RunPaths(runs)).record.metrics


@pytest.mark.parametrize("protocol", ["ctvr", "cvlm"])
def test_a_metric_gets_the_scores_that_are_ranked(protocol, own, manifest, runs):
    file = Path(manifest)
    file.write_text(file.read_text().replace('"protocol": "ctvr"', f'"protocol": "{protocol}"'))
    plain = in_run("clip4clip", manifest, runs, **{"optim.epochs": 1})
    found = in_run("clip4clip", manifest, runs, **{"optim.epochs": 1, "evaluation.metrics": "own_metrics_file:first"})
    expected = "stream/t2v/r1" if protocol == "ctvr" else "stream/t2v/r1_mean"
    for before, after in zip(plain, found, strict=True):
        assert after["stream/t2v/found_first"] == pytest.approx(before[expected], abs=1e-4)
        assert {name: value for name, value in after.items() if "found_first" not in name} == before
    names = {name.removeprefix("stream/t2v/") for row in plain for name in row if name.startswith("stream/t2v/")}
    assert names <= OF_QUERIES
    scores, queries, items = own.seen[-1]
    assert scores.shape == (len(queries), len(items))
    assert [(query.caption, query.relevant) for query in queries] == [
        (caption, (column,)) for column, each in enumerate(items) for caption in each.captions
    ]


def test_relevant_videos_are_those_of_the_gallery(own):
    first, second = item("a", "b"), item("c")
    first = (first[0], Item("b", "", None, "c", ("x", "y"), relevant=(("b", "c", "gone"), ("a", "b"))))
    scores = torch.zeros(4, 2), torch.zeros(6, 3)
    for whole, items, expected in ((scores[0], [first], 2 + 1 + 2), (scores[1], [first, second], 2 + 2 + 2 + 2)):
        found = own_metrics(["own_metrics_file:relevant"], Scores(whole, whole, (), ()), items, "ctvr")
        assert found == {"stream/t2v/num_relevant": expected}


def test_a_score_that_is_not_a_number_is_the_worst(own):
    scores = torch.tensor([[math.nan, 0.0], [1.0, math.nan], [0.0, 1.0], [0.0, 1.0]])
    found = own_metrics(["own_metrics_file:first"], Scores(scores, scores, (), ()), [item("a", "b")], "ctvr")
    assert found["stream/t2v/found_first"] == 75
    assert scores[0].isnan().any()  # the metric has changed its own copy


@pytest.mark.parametrize(
    ("result", "got"),
    [
        (3.0, "float"),
        ({}, "dict"),
        ({"x": math.nan}, "nan"),
        ({"x": math.inf}, "inf"),
        ({"x": "many"}, "many"),
        ({"r@1": 1.0}, "r@1"),
        ({"r1_gain": 1.0}, "r1_gain"),
        ({1: 1.0}, 1),
        ({"num_relevant": 1.0}, "num_relevant"),
    ],
)
def test_another_result_is_refused_before_training(result, got, own, manifest, runs):
    own.RESULT = lambda items: result
    more = {"evaluation.metrics": ("own_metrics_file:relevant", "own_metrics_file:result")}
    with refuses("own_metrics_file:result", got, where="evaluation.metrics", remedy=True):
        in_run("zero_shot", manifest, runs, **more)


def test_a_metric_of_a_task_needs_the_names_of_the_others(own):
    own.RESULT = lambda items: {f"of_{items[0].video}": 1.0}
    scores = torch.zeros(4, 2)
    parts = Scores(scores, scores, (scores[:2, :1], scores[2:, 1:]), ())
    with refuses("of_b", where="evaluation.metrics"):
        own_metrics(["own_metrics_file:result"], parts, [item("a"), item("b")], "cvlm")


def test_streams_without_searched_captions_have_no_such_metric(own, tmp_path):
    with refuses("ucl", where="evaluation.metrics"):
        in_run("image_finetune", "shapes-images", tmp_path, **{"evaluation.metrics": "own_metrics_file:first"})
