"""Ages of a gallery: the worked example of the definitions, their invariants, and runs that must be bit-identical."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ctvr.methods import find_method
from ctvr.methods.base import Capabilities, Method
from ctvr.methods.qdc import QDC, QDCConfig
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.learning.evaluation.evaluate import rank_features
from ctvr.orchestrator.learning.evaluation.index_age import (
    _counts,
    _gaps,
    _update,
    mix_galleries,
    rank_aged,
    transfer_metrics,
)
from ctvr.orchestrator.learning.evaluation.metrics import recall
from ctvr.orchestrator.learning.evaluation.tiled_scorer import offsets
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.tables import learned_tables

CPU = torch.device("cpu")
CONFIG = EvaluationConfig()


class Plain(Method):
    """Retriever whose scores are dot products."""

    declared = Capabilities()

    def score(self, text, video):
        return text @ video.T


def searched(text, galleries):
    sizes = offsets(map(len, galleries))
    queries = [
        Queries(torch.zeros(n, 1, dtype=torch.int64), torch.arange(n), torch.full((n,), -1))
        for n in map(len, galleries)
    ]
    assert len(text) == sizes[-1]
    return rank_features(Plain(), [text], queries, galleries, CONFIG, CPU, as_matrix=False)


# --- the worked example of the definitions


@pytest.fixture(scope="module")
def example(shared):
    folder = shared / "reference" / "index_age"
    arrays = np.load(folder / "example.npz")
    text, video = (torch.from_numpy(arrays[name]) for name in ("text", "video"))
    return text, video, json.loads((folder / "example.json").read_text())


@pytest.mark.parametrize("done", [1, 2, 3])
def test_the_example_has_the_gaps_and_the_curve_of_its_sheet(example, done):
    text, video, expected = example
    parts = [slice(10 * k, 10 * k + 10) for k in range(done)]
    stored = [video[k + 1, part] for k, part in enumerate(parts)]
    fresh = [video[done, part] for part in parts]
    asked = text[done, : 10 * done]
    before, after = (searched(asked, galleries) for galleries in (stored, fresh))
    found = _gaps(before, after, offsets([10] * done))
    assert found["stream/index/gap"] == pytest.approx(expected["gap overall"][done - 1])
    assert found["stream/index/gap"] == pytest.approx(found["stream/index/gained"] - found["stream/index/lost"])
    assert found[f"task_{done:02d}/index/gap_own"] == 0.0
    if done == 3:
        for name in ("gap", "gap_own"):
            per_task = [found[f"task_{k:02d}/index/{name}"] for k in (1, 2, 3)]
            assert per_task == pytest.approx(expected[f"{name.replace('_', ' ')} per task t=3"])
        curve = expected["partial, % of the 20 older videos, oldest first"]
        for share, r1 in curve.items():
            galleries = mix_galleries(stored, fresh, int(share))
            assert recall(searched(asked, galleries).to_videos, 1) == pytest.approx(r1)
    encoded = expected["cost"]["encoded again for a fresh gallery after each task"]
    assert sum(_counts([10] * done, 100)) == encoded[done - 1]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (1, 3), (2, 3)])
def test_the_example_has_the_compatibility_of_its_sheet(old, new, example):
    text, video, expected = example
    stored = [video[k + 1, 10 * k : 10 * k + 10] for k in range(old)]
    before, after = (searched(text[model, : 10 * old], stored).to_videos for model in (old, new))
    again = [video[new, 10 * k : 10 * k + 10] for k in range(old)]
    afresh = searched(text[new, : 10 * old], again).to_videos
    found, row = _update(before, after, afresh), expected["BCT"][f"{old}->{new}"]
    assert found["stream/index/update_gain"] == pytest.approx(
        (row["new_old"] - row["old_old"]) / (row["new_new"] - row["old_old"])
    )
    assert "stream/index/update_gain" not in {*_update(before, after), *_update(before, after, before)}
    assert found["stream/index/update"] == pytest.approx(row["new_old"] - row["old_old"])
    assert (found["stream/index/update"] > 0) == row["holds"]
    assert found["stream/index/update_gained"] == pytest.approx(row["PFR"])
    assert found["stream/index/update_lost"] == pytest.approx(row["NFR"])


def test_the_example_has_the_transfer_of_its_sheet(example):
    *_, expected = example
    untrained, *rows = expected["stored own (with upper triangle and row 0)"]
    former = [{f"task_{k + 1:02d}/t2v/r1_unlearned": row[k] for k in range(t, 3)} for t, row in enumerate(rows[:2], 1)]
    former[0] |= {f"task_{k + 1:02d}/t2v/r1_untrained": value for k, value in enumerate(untrained)}
    found = transfer_metrics([row[: t + 1] for t, row in enumerate(rows)], former)
    names = {"fwt": "FWT own, b=row 0", "transfer": "Transfer", "average": "Avg", "last": "Last"}
    assert found == pytest.approx({f"stream/transfer/{name}": expected[key] for name, key in names.items()})


# --- invariants


@pytest.mark.parametrize("sizes", [(4,), (4, 3), (5, 1, 7, 2)])
def test_shares_take_the_oldest_videos_and_their_ends_are_stored_and_fresh(sizes):
    stored = [torch.full((size, 2), -1.0) for size in sizes]
    fresh = [torch.arange(2.0 * size).view(size, 2) for size in sizes]
    assert all(torch.equal(a, b) for a, b in zip(mix_galleries(stored, fresh, 0), stored))
    assert all(torch.equal(a, b) for a, b in zip(mix_galleries(stored, fresh, 100), [*fresh[:-1], stored[-1]]))
    for share in (1, 33, 50, 99):
        taken = torch.cat([gallery[:, 0] >= 0 for gallery in mix_galleries(stored, fresh, share)])
        count = sum(sizes[:-1]) * share // 100
        assert taken.tolist() == [place < count for place in range(sum(sizes))]


def test_the_gap_is_gained_minus_lost():
    torch.manual_seed(0)
    stored = [F.normalize(torch.randn(9, 6), dim=-1) for _ in range(3)]
    fresh = [F.normalize(gallery + 0.4 * torch.randn(9, 6), dim=-1) for gallery in stored]
    text = torch.cat(stored) + 0.9 * torch.randn(27, 6)
    found = _gaps(searched(text, stored), searched(text, mix_galleries(stored, fresh, 100)), offsets([9] * 3))
    assert found["stream/index/gained"] > 0 < found["stream/index/lost"]
    assert found["stream/index/gap"] == pytest.approx(found["stream/index/gained"] - found["stream/index/lost"])
    assert found["stream/index/gap"] == pytest.approx(sum(found[f"task_{k:02d}/index/gap"] for k in (1, 2, 3)) / 3)


def test_one_task_has_no_transfer():
    assert transfer_metrics([[40.0]], []) == {"stream/transfer/last": 40.0, "stream/transfer/average": 40.0}


# --- runs

AGES = {"evaluation.reencode": (50, 100), "evaluation.reencode_after": "all", "evaluation.unlearned_tasks": True}


def last(small_stream, manifest, runs, method, **settings):
    plain = {"method": method, "stream": manifest, "optim.epochs": 1}
    return execute(resolve({**plain, **settings}, small_stream.settings), RunPaths(runs), reuse=False).record.metrics


def test_an_untrained_model_has_no_gap_and_no_transfer(small_stream, manifest, runs):
    for found in last(small_stream, manifest, runs, "zero_shot", **AGES):
        assert [value for name, value in found.items() if "/index/gap" in name and value] == []
        assert found["stream/index/r1_100"] == found["stream/index/r1_50"] == found["stream/t2v/r1"]
    assert found["stream/transfer/fwt"] == 0.0


@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe"])
def test_ages_add_numbers_and_change_none(small_stream, manifest, runs, method):
    plain, aged = (last(small_stream, manifest, runs, method, **more) for more in ({}, AGES))
    for without, found in zip(plain, aged, strict=True):
        assert {name: found[name] for name in without} == without
        added = {name for name in found if name not in without}
        assert {"stream/index/gap", "stream/index/r1_50", "stream/index/bytes"} <= added
        assert found["stream/index/r1_0"] == found["stream/t2v/r1"]
    videos = [found["stream/index/videos"] for found in aged]
    sizes = [len(small_stream.items(task, "test")) for task in range(len(aged))]
    assert videos == [sum(sizes[:task]) for task in range(len(aged))]
    assert sum("r1_unlearned" in name for name in aged[0]) == len(aged) - 1


@pytest.mark.slow
def test_a_fresh_gallery_is_that_of_a_method_which_reencodes(small_stream, manifest, runs, monkeypatch):
    searched_galleries = []
    kept = lambda *given: searched_galleries.append(mix_galleries(*given)) or searched_galleries[-1]
    monkeypatch.setattr("ctvr.orchestrator.learning.evaluation.index_age.mix_galleries", kept)
    aged = last(small_stream, manifest, runs, "clip4clip", **AGES)
    stored, _, fresh = (torch.cat(galleries) for galleries in searched_galleries[-3:])  # 0, 50 and 100 %
    assert not torch.equal(stored, fresh)
    cls = find_method("clip4clip")
    usual = cls.capabilities
    monkeypatch.setattr(
        cls, "capabilities", classmethod(lambda cls, config: replace(usual(config), reencodes_gallery=True))
    )
    other = last(small_stream, manifest, Path(runs) / "other", "clip4clip", **AGES)
    for found, fresh in zip(aged, other, strict=True):
        assert found["stream/index/r1_100"] == fresh["stream/t2v/r1"]
        assert fresh["stream/index/gap"] == fresh["stream/index/videos"] == 0.0


# --- captions that are moved back to the model of a stored video


def drift_compensated(example, **settings):
    """Return R@1 of the example after task 3: of each task in its own gallery, and of all captions in all videos."""
    text, video, _ = example
    parts = [(10 * task, 10 * task + 10) for task in range(3)]
    method = learned_tables(QDC(QDCConfig(**settings), Method()), [text[task + 1] for task in range(3)], parts)
    moved = [method.encode_text(torch.arange(30)[:, None], task) for task in range(3)]
    galleries = [video[task + 1, first:last] for task, (first, last) in enumerate(parts)]
    sizes = [10, 10, 10]
    queries = [Queries(torch.zeros(n, 1, dtype=torch.int64), torch.arange(n), torch.full((n,), -1)) for n in sizes]
    found = rank_features(Plain(), moved, queries, galleries, CONFIG, CPU, as_matrix=False)
    return [recall(found.own[first:last], 1) for first, last in parts], recall(found.to_videos, 1)


def test_query_drift_example_has_the_expected_numbers(example):
    own, _ = drift_compensated(example)
    assert own == pytest.approx(example[2]["QDC own at t=3"])


def test_the_released_compensation_is_worse_on_the_example(example):
    """The numbers are those of methods/qdc.py: every drift is subtracted from every query, which shortens old tasks'
    queries.
    """
    released = {"subtract": "all", "renormalize": False}
    assert drift_compensated(example, **released) == ([60.0, 60.0, 50.0], pytest.approx(100 * 8 / 30))
    assert drift_compensated(example)[1] == pytest.approx(100 * 11 / 30)
    assert drift_compensated(example, renormalize=False)[1] == pytest.approx(100 * 9 / 30)


def test_galleries_of_two_ages_are_searched_by_matching_caption_features(monkeypatch):
    """It is compared with a loop over captions and videos, at every share; scores are computed by tiles or as a
    matrix.
    """
    torch.manual_seed(0)
    sizes, rows = (4, 3, 2), 9
    old, new = (F.normalize(torch.randn(3, rows, 5), dim=-1) for _ in range(2))  # of captions, for each task
    new[2] = old[2]  # of the newest task
    stored, fresh = ([F.normalize(torch.randn(size, 5), dim=-1) for size in sizes] for _ in range(2))
    queries = [Queries(torch.zeros(n, 1, dtype=torch.int64), torch.arange(n), torch.full((n,), -1)) for n in sizes]
    for share in (0, 30, 50, 100):
        counts, galleries = _counts(sizes, share), mix_galleries(stored, fresh, share)
        columns = [
            (new if place < counts[task] else old)[task] @ gallery[place]
            for task, gallery in enumerate(galleries)
            for place in range(len(gallery))
        ]
        scores = torch.stack(columns, dim=1)
        expected = 1 + (scores > scores.diagonal()[:, None]).sum(dim=1)
        for as_matrix in (False, True):
            found = rank_aged(Plain(), list(old), list(new), counts, queries, galleries, CONFIG, CPU, as_matrix)
            assert found.to_videos.rank.tolist() == expected.tolist()


def test_a_fresh_gallery_needs_no_compensation(small_stream, manifest, runs):
    """With all videos re-encoded, the captions of a run with compensation are those of the same run without."""
    free = {"method.query_weight": 0.0, "method.video_weight": 0.0}
    aged = last(small_stream, manifest, runs, "qdc", **AGES, **free)
    plain = last(small_stream, manifest, runs, "clip4clip", **AGES)
    for found, other in zip(aged, plain, strict=True):
        assert found["stream/index/r1_100"] == other["stream/index/r1_100"]
        assert found["stream/index/r1_0"] == found["stream/t2v/r1"]
        newest = max(name for name in found if name.endswith("index/gap_own"))
        assert found[newest] == 0.0


@pytest.mark.slow
def test_nothing_is_compensated_where_every_gallery_is_encoded_again(small_stream, manifest, runs):
    settings = {"method.query_weight": 0.0, "method.video_weight": 0.0, "optim.lr_scale": 100.0}
    both = []
    for method, more in (("qdc", settings), ("clip4clip", {"optim.lr_scale": 100.0})):
        made = resolve({"method": method, "stream": manifest, "optim.epochs": 1, **more}, small_stream.settings)
        stream = replace(small_stream, protocol="cvlm")
        both.append(execute(made, RunPaths(Path(runs) / method), reuse=False, stream=stream).record)
    assert both[0].own == both[1].own
