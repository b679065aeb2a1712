"""`tasks=` divides a table's videos by time, by category or into equal parts."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.importers.benchmark_files import write_rows
from tests.refusing import refuses

HEADER = ("video", "caption", "split", "time", "category")
TIMES = ("2026-02-01", "2025-12-29T10:00:00Z", "2026-01-01 01:30+02:00", "1767225600", "2026-02-01T00:00:00.5")
TIMES = (*TIMES, "2026-03-01")


def written(folder: Path, times=TIMES, header=HEADER) -> Path:
    """Write a table of a training and a test video of each time."""
    rows = [
        (f"{split}{n}", f"caption {split} {n}", split, time, f"c{n % 2}")
        for n, time in enumerate(times)
        for split in ("train", "test")
    ]
    places = [HEADER.index(name) for name in header]
    return write_rows(folder / "t.csv", header, *([row[place] for place in places] for row in rows))


def tasks(table: Path, rule: str) -> list[str]:
    """Return the numbers of the training videos of each task."""
    manifest, _ = import_csv(table, table.parent, None, "made", rule)
    return ["".join(item["video"].removeprefix("train") for item in task["train"]) for task in manifest["tasks"]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("year", ["12", "0345"]),
        ("month", ["12", "3", "04", "5"]),
        ("week", ["123", "04", "5"]),
        ("day", ["1", "2", "3", "04", "5"]),
        ("category", ["024", "135"]),
        ("1", ["012345"]),
        ("3", ["12", "03", "45"]),
        ("2", ["123", "045"]),
    ],
)
def test_a_rule_divides_videos_in_the_order_of_time(rule: str, expected: list[str], tmp_path: Path) -> None:
    found = tasks(written(tmp_path), rule)
    assert ["".join(sorted(task)) for task in found] == expected


def test_names_of_tasks_are_reported_and_a_rule_wins_over_the_column(tmp_path: Path) -> None:
    table = written(tmp_path)
    lines = table.read_text().splitlines()
    table.write_text("\n".join([f"{lines[0]},task", *(f"{line},9" for line in lines[1:])]))
    _, report = import_csv(table, tmp_path, None, "made", "month")
    assert "task_01 is '2025-12', task_02 is '2026-01'" in report
    assert tasks(table, "") == ["012345"]


@pytest.mark.parametrize("rule", ["month", "2"])
@pytest.mark.parametrize(
    "time", ["", "soon", "2026-02-30", "01/02/2026", "nan", "2026", "2026-01-01T25:00", "-5", "0000-01-01"]
)
def test_a_time_that_is_no_date_is_refused_with_its_line(time: str, rule: str, tmp_path: Path) -> None:
    with refuses("line 4", where=str(tmp_path / "t.csv"), remedy=True):
        import_csv(written(tmp_path, (TIMES[0], time)), tmp_path, None, "made", rule)


@pytest.mark.parametrize(
    "rule", ["months", "0", "-1", "1.5", "clusters:3", "clusters:0", "clusters:", "²", "99999999999"]
)
def test_an_unknown_rule_is_refused_with_the_known_ones(rule: str, tmp_path: Path) -> None:
    with refuses("month", "category", where=f"tasks={rule}", remedy=True):
        import_csv(written(tmp_path), tmp_path, None, "made", rule)


def test_a_rule_needs_its_column_and_enough_videos(tmp_path: Path) -> None:
    for rule in ("month", "2"):
        with refuses("time", rule, remedy=True):
            import_csv(written(tmp_path, header=("video", "caption", "split")), tmp_path, None, "made", rule)
    with refuses("category", remedy=True):
        import_csv(written(tmp_path, header=("video", "caption", "split", "time")), tmp_path, None, "made", "category")
    with refuses("12", "tasks=13", remedy=True):
        import_csv(written(tmp_path), tmp_path, None, "made", "13")


def test_a_table_without_tasks_is_refused_with_the_rules(tmp_path: Path) -> None:
    with refuses("'task'", "month", "category", where="t.csv", remedy=True):
        import_csv(written(tmp_path), tmp_path, None, "made")


@pytest.mark.parametrize("rule", ["month", "2"])
def test_captions_of_a_video_have_one_time(rule: str, tmp_path: Path) -> None:
    table = written(tmp_path)
    with table.open("a") as file:
        file.write("train0,another,train,2026-03-01,c0\n")
    with refuses("line 14", "'train0'", where="t.csv", remedy=True):
        import_csv(table, tmp_path, None, "made", rule)


def test_streams_of_videos_and_of_features_take_the_same_rule(tmp_path: Path) -> None:
    table, root = written(tmp_path, header=("video", "caption", "split", "time")), tmp_path / "runs"
    names = [f"{split}{n}" for n in range(len(TIMES)) for split in ("train", "test")]
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "train0.mp4").touch()
    np.save(tmp_path / "f.npy", np.arange(12.0)[:, None])
    np.save(tmp_path / "texts.npy", np.arange(12.0)[:, None])
    import_stream("csv", {"table": str(table), "tasks": "month"}, tmp_path / "videos", root, "plain")
    words = {"table": str(table), "features": str(tmp_path / "f.npy"), "text": str(tmp_path / "texts.npy")}
    import_stream("features", words | {"tasks": "month"}, None, root, "vectors")
    plain, vectors = load_stream("plain", root), load_stream("vectors", root)
    for one, other in zip(plain.tasks, vectors.tasks, strict=True):
        assert [item.video for item in one.train] == [item.video for item in other.train]
        for item in other.train:
            assert float(np.load(item.path)[0, 0]) == names.index(item.video)
