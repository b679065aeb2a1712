"""`ctvr runs compare` pairs two results by query, of any author."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ctvr.orchestrator.bundles.bundle import to_bytes
from ctvr.orchestrator.bundles.check import seal
from ctvr.orchestrator.bundles.from_ranks import final_ranks
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs import compare as module
from ctvr.orchestrator.jobs.compare import compare, read_csv
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.tables.intervals import differences
from tests.orchestrator.bundles.plantings import plant
from tests.orchestrator.bundles.small_bundle import copy_of, make_bundle
from tests.refusing import missing_from, refuses


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with a bundle and with its first run as a CSV file."""
    monkeypatch.chdir(tmp_path)
    bundle = make_bundle()
    (tmp_path / "b.zip").write_bytes(to_bytes(bundle))
    (ranks, *_) = final_ranks(bundle).values()
    lines = [f"{query},{rank.mean}" for query, rank in ranks.of.items()]
    (tmp_path / "theirs.csv").write_text("\n".join(["query,rank", *lines]))
    return tmp_path


def test_rows_of_a_bundle_are_compared_by_the_test_of_tables(folder):
    text = compare("b.zip:clip4clip", "b.zip:lwf", ExecutionConfig())
    ranks = list(final_ranks(make_bundle()).values())
    rows = [np.array([[rank.first for rank in run.of.values()] for run in runs]) for runs in (ranks[1:3], ranks[3:5])]
    videos = [query.partition("#")[0] for query in ranks[0].of]
    assert str(differences(rows, 1, videos)[0]) in text
    assert not missing_from(text, "2 runs", "36 queries of 18 videos", "0 of A", "0 of B")
    assert f"{100 * rows[0].mean():.2f}" in text
    assert "over test videos and seeds" in text


def test_an_untrained_side_has_no_variance_over_seeds(folder):
    text = compare("b.zip:zero_shot", "b.zip:lwf", ExecutionConfig())
    ranks = list(final_ranks(make_bundle()).values())
    rows = [np.array([[rank.first for rank in run.of.values()] for run in runs]) for runs in (ranks[:1], ranks[3:5])]
    videos = [query.partition("#")[0] for query in ranks[0].of]
    expected = differences(rows, 1, videos, fixed=[True, False])[0]
    assert str(expected) != str(differences(rows, 1, videos)[0])
    assert str(expected) in text
    assert "over test videos and seeds" in text
    assert "neither side" in compare("b.zip:zero_shot", "b.zip:zero_shot", ExecutionConfig())


@pytest.fixture
def of_cvlm(folder):
    """Write a bundle of CVLM whose tasks have different numbers of queries; return its final ranks."""
    about, ranks = copy_of(make_bundle())
    about["orders"] = [[0] * 6 + [1] * 10 + [2] * 20]
    learned = np.array(about["orders"][0]) <= np.arange(3)[:, None]
    for run in about["runs"]:
        run["tags"]["ctvr.protocol"] = "cvlm"
    made = seal(about, {"own": ranks["own"] * learned.astype(np.uint8)})
    (folder / "cvlm.zip").write_bytes(to_bytes(made))
    return made


def test_r1_of_cvlm_is_the_mean_over_tasks_as_in_tables(of_cvlm):
    text = compare("cvlm.zip:clip4clip", "cvlm.zip:lwf", ExecutionConfig())
    ranks = list(final_ranks(of_cvlm).values())
    rows = [np.array([[rank.first for rank in run.of.values()] for run in runs]) for runs in (ranks[1:3], ranks[3:5])]
    videos = [query.partition("#")[0] for query in ranks[0].of]
    expected = differences(rows, 1, videos, of_cvlm.about["orders"][0])[0]
    assert str(expected) != str(differences(rows, 1, videos)[0])
    assert str(expected) in text
    cells = {row["label"]: f"{row['cells']['r1'][0]:.2f}" for row in of_cvlm.about["table"]}
    for letter, label in (("A", "clip4clip"), ("B", "lwf")):
        assert any(line.split()[:2] == [letter, cells[label]] for line in text.splitlines())
    assert "mean over tasks" in text


def test_cvlm_against_a_csv_file_says_that_values_are_over_all_queries(folder, of_cvlm):
    text = compare("cvlm.zip:clip4clip", "theirs.csv", ExecutionConfig())
    assert "over all queries" in text
    assert "over all queries" not in compare("b.zip:clip4clip", "theirs.csv", ExecutionConfig())


def test_a_task_of_cvlm_with_one_common_video_is_refused(folder, of_cvlm):
    about, ranks = copy_of(of_cvlm)
    about["queries"] = [
        f"other{query}" if place in range(2, 6) else query for place, query in enumerate(about["queries"])
    ]
    (folder / "less.zip").write_bytes(to_bytes(seal(about, ranks)))
    with refuses("1 video", where="runs compare", remedy=True):
        compare("less.zip:lwf", "cvlm.zip:lwf", ExecutionConfig())


def test_a_label_of_two_rows_is_refused_and_the_id_of_a_run_is_accepted(folder):
    about, ranks = copy_of(make_bundle())
    for run in about["runs"][3:]:  # a row of its own, whose method and settings are those of another row
        run["tags"].update({"ctvr.method": "clip4clip", "ctvr.note": "again"})
        run["settings"]["method"] = "clip4clip"
    made = seal(about, ranks)
    assert [row["label"] for row in made.about["table"]].count("clip4clip") == 2
    (folder / "same.zip").write_bytes(to_bytes(made))
    with refuses("2 rows", f"{1:032x}", f"{3:032x}", where="same.zip", remedy=True):
        compare("same.zip:clip4clip", "theirs.csv", ExecutionConfig())
    assert "A minus B" in compare(f"same.zip:{3:032x}", "theirs.csv", ExecutionConfig())


def test_a_csv_file_of_the_same_ranks_does_not_differ(folder):
    text = compare("theirs.csv", "b.zip:zero_shot", ExecutionConfig())
    assert "A minus B: 0.00 [0.00, 0.00]" in text
    assert "over test videos only" in text
    cells = [line.split()[1:] for line in text.splitlines() if line[:3] in ("A  ", "B  ") and ":" not in line]
    assert cells[0] == cells[1]


def test_queries_of_one_side_are_dropped_and_counted(folder):
    lines = (folder / "theirs.csv").read_text().splitlines()
    (folder / "less.csv").write_text("\n".join([*lines[:31], "other#0,1"]))
    text = compare("less.csv", "b.zip:zero_shot", ExecutionConfig())
    assert not missing_from(text, "30 queries of 15 videos", "1 of A", "6 of B", "gallery")


def test_names_without_a_common_query_are_refused(folder):
    (folder / "other.csv").write_text("query,rank\na#0,1\nb#0,2\n")
    with refuses("a#0", where="runs compare", remedy=True):
        compare("other.csv", "b.zip:lwf", ExecutionConfig())


def test_a_missing_file_and_a_damaged_bundle_are_called_that(folder):
    for name in ("gone.csv", "gone.zip", "./gone"):
        with refuses("file", where=name, remedy=True):
            compare("b.zip:clip4clip", name, ExecutionConfig())
    (folder / "cut.zip").write_bytes((folder / "b.zip").read_bytes()[:100])
    with refuses("bundle", where="cut.zip"):
        compare("cut.zip:clip4clip", "b.zip:clip4clip", ExecutionConfig())


def test_a_row_that_a_bundle_lacks_is_refused_with_its_rows(folder):
    with refuses("lwf", "clip4clip", where="b.zip", remedy=True):
        compare("b.zip:lfw", "theirs.csv", ExecutionConfig())
    about, ranks = copy_of(make_bundle())
    for run in about["runs"]:
        run["tags"]["ctvr.method"] = f"my_method:{run['tags']['ctvr.method']}"
    (folder / "c.zip").write_bytes(to_bytes(seal(about, ranks)))
    assert "A minus B: 0.00" in compare("c.zip:my_method:zero_shot", "theirs.csv", ExecutionConfig())
    with refuses("3 rows", where="b.zip", remedy=True):
        compare("b.zip", "theirs.csv", ExecutionConfig())
    assert "A minus B: 0.00" in compare(f"b.zip:{0:032x}", "theirs.csv", ExecutionConfig())


def test_an_inconsistent_bundle_is_not_compared(folder):
    (folder / "bad.zip").write_bytes(to_bytes(plant(make_bundle(), "a cell")))
    with refuses(where="bad.zip", remedy=True):
        compare("bad.zip:lwf", "theirs.csv", ExecutionConfig())


def test_ranks_of_a_csv_file_may_be_ties(tmp_path):
    (tmp_path / "r.csv").write_text("\ufeffQuery, Rank ,note\na#0,1,x\nb#0,2.5,\n\n")
    assert read_csv(tmp_path / "r.csv") == {"a#0": Rank(0, 0), "b#0": Rank(1, 1)}


@pytest.mark.parametrize(
    "line", ["a#0,0", "a#0,nan", "a#0,1.25", "a#0,-3", "a#0,first", "a#0,1,2", "x#0,1", "a#0,1e99"]
)
def test_a_wrong_line_of_a_csv_file_is_named(tmp_path, line):
    (tmp_path / "r.csv").write_text(f"query,rank\nx#0,1\n{line}\n")
    with refuses("line 3", where="r.csv: line 3", remedy=True):
        read_csv(tmp_path / "r.csv")


def test_a_csv_file_without_the_columns_is_refused(tmp_path):
    (tmp_path / "r.csv").write_text("video,position\na,1\n")
    with refuses(where="r.csv", remedy=True):
        read_csv(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("query;rank\na#0;1\n", "semicolons"),
        ("query\trank\na#0\t1\n", "tabs"),
        ("", "empty"),
        ("query,rank\n", "queries"),
    ],
)
def test_a_csv_file_of_another_form_is_one_clear_line(tmp_path, text, said):
    (tmp_path / "r.csv").write_text(text)
    with refuses(said, where="r.csv", remedy=True):
        read_csv(tmp_path / "r.csv")


def test_a_rank_beyond_the_videos_of_a_side_is_noted(folder):
    queries = [line.partition(",")[0] for line in (folder / "theirs.csv").read_text().splitlines()[1:]]
    (folder / "far.csv").write_text("\n".join(["query,rank", *(f"{query},1000" for query in queries)]))
    assert not missing_from(compare("theirs.csv", "far.csv", ExecutionConfig()), "B has rank 1000", "18 videos")
    (folder / "near.csv").write_text("\n".join(["query,rank", *(f"{query},18" for query in queries)]))
    assert "has rank" not in compare("near.csv", "near.csv", ExecutionConfig())


@pytest.mark.parametrize(
    ("settings", "digests", "differs"),
    [
        ({"seed": "1"}, {}, None),
        ({"seed": "1", "new.setting": "2", "stream": "/elsewhere/m.json"}, {}, None),  # a setting of a newer version
        ({"seed": "1", "optim.epochs": "9"}, {}, "optim.epochs"),
        ({"seed": "1"}, {"weights": "other"}, "the weights"),
        ({"seed": "1"}, {"stream": "other"}, "the stream"),
    ],
)
def test_seeds_are_runs_of_one_configuration_stream_and_weights(monkeypatch, settings, digests, differs):
    def record(name, own, of):
        tags = {"ctvr.provenance": json.dumps({"stream": "s", "weights": "w", "frames": name, **of})}
        return SimpleNamespace(run_id=name, name=name, settings={"optim.epochs": "8", "seed": "0", **own}, tags=tags)

    runs = {"a": record("a", {}, {}), "b": record("b", settings, digests)}
    monkeypatch.setattr(module, "find_record", lambda name, *_, **__: runs[name])
    monkeypatch.setattr(module, "_read_run", lambda run, tracker: run)
    monkeypatch.setattr(module, "_side", lambda name, runs: runs)
    tracker = SimpleNamespace(existing_tracker=lambda: None)
    if differs is None:
        assert len(module._read_seeds("a,b", tracker)) == 2
    else:
        with refuses(where="a,b") as caught:
            module._read_seeds("a,b", tracker)
        assert f"different values of {differs}," in str(caught.value)
