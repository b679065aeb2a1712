"""Streams that are searched and never learned: retention, distractors, and the videos that they must not contain."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.jobs.finished import question_of
from ctvr.orchestrator.learning.evaluation.evaluate import rank_features
from ctvr.orchestrator.learning.evaluation.metrics import recall
from ctvr.orchestrator.learning.evaluation.unseen import _retention, with_distractors
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from tests.orchestrator.learning.evaluation.test_index_age import CONFIG, CPU, Plain, searched
from tests.refusing import refused
from tests.small_stream import write_stream

NAME = "also/other"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a stream whose six test videos are in no task of the small stream."""
    path = write_stream(tmp_path_factory.mktemp("other"), num_tasks=2, train=2, searched=6)
    data = json.loads(path.read_text())
    for task in data["tasks"]:
        task["test"] = task["test"][3:]
    path = path.with_name("other.json")
    path.write_text(json.dumps({**data, "name": "other"}))
    return str(path)


def run(small_stream, manifest, runs, method, **settings):
    given = {"method": method, "stream": manifest, "optim.epochs": 1, **settings}
    return execute(resolve(given, small_stream.settings), RunPaths(runs), reuse=False)


def with_others(other: str) -> dict[str, object]:
    return {"evaluation.also": (other,), "evaluation.distractors": (2, 6), "evaluation.distractors_from": other}


def test_an_untrained_model_retains_all_and_distractors_never_help(small_stream, manifest, runs, other):
    rows = run(small_stream, manifest, runs, "zero_shot", **with_others(other)).record.metrics
    for found in rows:
        assert found[f"stream/{NAME}/r1"] == found[f"stream/{NAME}/r1_untrained"] > 0
        assert (found[f"stream/{NAME}/retention"], found[f"stream/{NAME}/lost"]) == (100.0, 0.0)
    assert [name for name in rows[0] if "distractors" in name] == []
    curve = [found[f"stream/distractors/r1_{count}"] for count in (0, 2, 6)]
    assert curve[0] == found["stream/t2v/r1"]
    assert curve == sorted(curve, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe"])
def test_other_streams_add_numbers_and_change_none(small_stream, manifest, runs, other, method):
    plain = run(small_stream, manifest, runs, method)
    more = run(small_stream, manifest, runs, method, **with_others(other))
    assert more.key != plain.key
    for without, found in zip(plain.record.metrics, more.record.metrics, strict=True):
        assert {name: found[name] for name in without} == without
        assert found[f"stream/{NAME}/r1_untrained"] == more.record.metrics[0][f"stream/{NAME}/r1_untrained"]
        assert found[f"stream/{NAME}/lost"] == found[f"stream/{NAME}/r1_untrained"] - found[f"stream/{NAME}/r1"]
    assert found["stream/distractors/r1_0"] == found["stream/t2v/r1"]


def test_off_changes_no_key_and_captions_of_the_other_stream_do(small_stream, manifest, other):
    plain, off = (
        resolve({"method": "zero_shot", "stream": manifest, **more}, small_stream.settings)
        for more in ({}, {"evaluation.also": (), "evaluation.distractors": ()})
    )
    assert plain.key(small_stream) == off.key(small_stream)
    settings = {"method": "zero_shot", "stream": manifest}
    assert question_of({**settings, "evaluation.also": other}, (), small_stream) is None  # its files may change


def test_another_streams_captions_are_part_of_the_key(small_stream, manifest, runs, other):
    also = {"evaluation.also": (other,)}
    before = run(small_stream, manifest, runs, "zero_shot", **also).key
    file = Path(other)
    text = file.read_text()
    try:
        file.write_text(text.replace("a red", "one red"))
        assert run(small_stream, manifest, runs, "zero_shot", **also).key != before
    finally:
        file.write_text(text)


UNSEARCHABLE = {  # settings -> the one at fault, a part of what is said
    "evaluation.also={manifest}": ("evaluation.also", "9 of the 9 videos of small are videos of small"),
    "evaluation.distractors=7 evaluation.distractors_from={other}": (
        *("evaluation.distractors", "7 videos are needed, but the test split of other has 6. Use at most 6."),
    ),
    "evaluation.also=shapes-images": ("evaluation.also", "shapes-images has images"),
}


@pytest.mark.wording
@pytest.mark.parametrize("words", UNSEARCHABLE)
def test_streams_that_cannot_be_searched_are_refused(small_stream, manifest, runs, other, words):
    setting, said = UNSEARCHABLE[words]
    given = dict(word.format(manifest=manifest, other=other).split("=", 1) for word in words.split())
    refused(lambda: run(small_stream, manifest, runs, "zero_shot", **given), said, settings=(setting,))


def test_the_example_has_the_retention_and_the_distractors_of_its_sheet(shared):
    folder = shared / "reference" / "index_age"
    arrays, expected = np.load(folder / "example.npz"), json.loads((folder / "example.json").read_text())
    text, video, held_text, held_video, more = (
        torch.from_numpy(arrays[name]) for name in ("text", "video", "held_text", "held_video", "distractors")
    )
    first: dict[str, float] = {}
    for done, share in enumerate(expected["retention %"]):
        r1 = recall(searched(held_text[done], [held_video[done]]).own, 1)
        assert r1 == pytest.approx(expected["held-out"][done])
        found = _retention("n", r1, first)
        first = first or found
        assert found["n/retention"] == pytest.approx(share)
    stored = [video[task + 1, 10 * task : 10 * task + 10] for task in range(3)]
    curve = {}
    for count in map(int, expected["distractors at t=3, stored"]):
        galleries = with_distractors(stored, more[3], count)
        targets = [torch.arange(10)] * 3
        queries = [Queries(torch.zeros(10, 1, dtype=torch.int64), each, torch.full((10,), -1)) for each in targets]
        ranked = rank_features(Plain(), [text[3]], queries, galleries, CONFIG, CPU, as_matrix=False)
        curve[str(count)] = recall(ranked.to_videos, 1)
    assert curve == pytest.approx(expected["distractors at t=3, stored"])


def test_a_model_that_found_nothing_has_no_retention():
    assert "n/retention" not in _retention("n", 5.0, {"n/r1_untrained": 0.0})
