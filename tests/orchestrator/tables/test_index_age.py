"""Columns of the age of the index: the measured values, their intervals by ranks, and the curve over its cost."""

import csv
import io

import numpy as np
import pytest

from ctvr.orchestrator.pages.report import table_html
from ctvr.orchestrator.tables.build import tables
from ctvr.orchestrator.tables.formats import to_csv, to_latex, to_markdown
from ctvr.orchestrator.tables.index_age import NOTE, UNSEEN_NOTE, age_values
from ctvr.orchestrator.tables.intervals import paired_changes
from ctvr.orchestrator.tables.screen import to_text
from ctvr.orchestrator.tables.significance import Ranks
from ctvr.orchestrator.tables.table import Value
from ctvr.orchestrator.tables.table_figures import list_drawings
from tests.orchestrator.tables.test_build import run

QUERIES = [f"v{number}#0" for number in range(20)]  # 10 of each task


def aged(seed: int, after: list[float], method: str = "lwf"):
    """Return a run of two tasks whose stored index answers the first half of each task's captions, and its ranks."""
    before = [1.0 if number % 10 < 5 else 2.0 for number in range(20)]
    record = run(method, seed=seed, r1=50.0)
    hits = {share: 100 * np.mean(np.array(ranks) <= 1) for share, ranks in (("0", before), ("100", after))}
    gap = {
        f"task_{t + 1:02d}": 100
        * (np.mean(np.array(after[10 * t : 10 * t + 10]) <= 1) - np.mean(np.array(before[10 * t : 10 * t + 10]) <= 1))
        for t in (0, 1)
    }
    measured = {
        "stream/index/r1_0": hits["0"],
        "stream/index/r1_25": 40.0 + seed,
        "stream/index/r1_100": hits["100"],
        "stream/index/videos_0": 0.0,
        "stream/index/videos_25": 2.0,
        "stream/index/videos_100": 10.0,
        "stream/index/gap": hits["100"] - hits["0"],
        "stream/index/gained": 10.0,
        "stream/index/lost": 5.0,
        "cost/video_gmacs": 0.07,
        **{f"{task}/index/gap": value for task, value in gap.items()},
    }
    record.metrics.update({name: [(2, value)] for name, value in measured.items()})
    tasks = {query: number // 10 for number, query in enumerate(QUERIES)}
    by_age = {"0": dict(zip(QUERIES, before)), "100": dict(zip(QUERIES, after))}
    return record, Ranks(by_age["0"], tasks, by_age)


def made(*runs):
    (table,) = tables([record for record, _ in runs], {record.run_id: ranks for record, ranks in runs})
    return table


BETTER = [1.0] * 9 + [2.0] + [1.0] * 3 + [2.0] * 7  # task 1: 90 %, task 2: 30 %


def test_the_gap_has_an_interval_overall_and_for_each_task_in_every_format():
    table = made(aged(0, BETTER), aged(1, [1.0] * 10 + [1.0] * 4 + [2.0] * 6))
    keys = [column.key for column in table.columns]
    start = keys.index("index_fresh")
    assert keys[start:] == [
        *("index_fresh", "index_gap", "index_25", "backfilling", "gap_01", "gap_02", "index_gained", "index_lost"),
        "reencode_gmacs",
    ]
    (row,) = table.rows
    for key, value in (("index_gap", 15.0), ("gap_01", 45.0), ("gap_02", -15.0)):
        found = row.intervals[key]
        assert found.value == pytest.approx(row.values[key].mean) == pytest.approx(value)
        assert found.low < value < found.high
    assert row.intervals["gap_01"].low > 0 > row.intervals["gap_02"].value
    shown = row.intervals["gap_01"].with_bounds()
    assert shown.startswith("45.00 [")
    assert shown in to_text(table, 400)
    assert shown in table_html(table)
    assert shown.replace("[", r"\[").replace("]", r"\]") in to_markdown(table)
    assert shown in to_latex(table)
    assert row.intervals["gap_02"].with_bounds().replace("-", "$-$") in to_latex(table)
    (line,) = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(line["gap_01_low"]) == pytest.approx(row.intervals["gap_01"].low, abs=1e-3)
    assert NOTE in table.notes
    assert row.values["reencode_gmacs"].mean == pytest.approx(0.7)
    assert row.values["backfilling"].mean == pytest.approx(0.25 * (50 + 40.5) / 2 + 0.75 * (40.5 + 65) / 2)


def test_interval_of_no_change_is_zero_and_needs_ranks():
    same = [1.0 if number % 10 < 5 else 2.0 for number in range(20)]
    (row,) = made(aged(0, same)).rows
    for found in row.intervals.values():
        assert (found.low, found.value, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)
    record, ranks = aged(0, same)
    (table,) = tables([record], {record.run_id: Ranks(ranks.of, ranks.task)})
    assert table.rows[0].intervals == {}
    assert "index_gap" in [column.key for column in table.columns]


def test_an_untrained_row_has_no_forward_transfer():
    """Its prompts of a task are random, so the difference from the model before them is noise."""
    untrained = run("lpi", tags={"ctvr.recommended_epochs": "0"}, **{"optim.epochs": "0"})
    trained = run("lwf", tags={"ctvr.recommended_epochs": "4"}, **{"optim.epochs": "4"})
    for record in (untrained, trained):
        record.metrics["stream/transfer/fwt"] = [(2, 2.3)]
    (table,) = tables([untrained, trained])
    assert {row.method: "fwt" in row.values for row in table.rows} == {"lpi": False, "lwf": True}


def test_plain_runs_have_none_of_these_columns():
    (table,) = tables([run()])
    assert [column.key for column in table.columns if column.key.startswith(("index", "gap", "reencode"))] == []
    assert NOTE not in table.notes


def test_other_streams_have_columns_ordered_by_gallery_size():
    record = run()
    measured = {"also/worlds-5/retention": 90.0, "distractors/r1_0": 40.0, "distractors/r1_50": 30.0}
    record.metrics.update({f"stream/{name}": [(2, value)] for name, value in measured.items()})
    record.metrics["stream/distractors/r1_1000"] = [(2, 20.0)]
    (table,) = tables([record])
    titles = ["Retention, worlds-5 (%)", "R@1, + 50 videos", "R@1, + 1000 videos"]
    assert [column.title for column in table.columns[-3:]] == titles
    assert UNSEEN_NOTE in table.notes
    assert NOTE not in table.notes


def test_the_mean_over_shares_is_that_of_the_worked_example():
    """The values of section 4 of the definitions: 0, 25, 50, 75 and 100 % of the old videos, oldest first."""
    r1 = dict(zip((0, 25, 50, 75, 100), (40.0, 100 / 3, 130 / 3, 110 / 3, 40.0)))
    found = age_values({f"stream/index/r1_{share}": Value(value) for share, value in r1.items()})
    assert found["backfilling"].mean == pytest.approx(38.33, abs=0.005)


def test_r1_is_drawn_over_the_multiply_adds_that_each_share_costs():
    table = made(aged(0, BETTER), aged(1, BETTER))
    panels = {name: panels for name, _, panels in list_drawings(table)}
    (line,) = panels["reencoding"][0].lines
    assert [(round(x, 6), mean) for x, mean, _ in line.points] == [(0.0, 50.0), (0.14, 40.5), (0.7, 60.0)]
    assert line.points[1][2] == pytest.approx(np.std([40, 41], ddof=1))
    assert [point[:2] for point in panels["backfilling"][0].lines[0].points] == [(0, 50.0), (25, 40.5), (100, 60.0)]
    (plain,) = tables([run()])
    assert {"reencoding", "backfilling"}.isdisjoint(name for name, *_ in list_drawings(plain))


@pytest.mark.parametrize(("seeds", "spread"), [(1, 0.0), (3, 0.0), (3, 0.05)])
def test_the_interval_of_a_gap_holds_in_about_19_of_20_draws(seeds, spread):
    """The true gap is 0; `spread` is the standard deviation of the effect of a seed."""
    chance, outside, draws = np.random.default_rng(0), 0, 400
    videos = [f"v{number}" for number in range(150)]
    for _ in range(draws):
        easy = chance.random(150)  # a video's difficulty is common to the seeds
        moved = np.clip(0.15 + spread * chance.standard_normal((seeds, 1)), 0, 0.3)
        lost, gained = (
            chance.random((seeds, 150)) < each for each in (0.3 * easy, np.broadcast_to(2 * moved * easy, (seeds, 150)))
        )
        before = np.where(lost, 1.0, 0.0)
        after = np.where(gained, 1.0, 0.0)
        (found,) = paired_changes([(before, after)], videos)
        outside += not found.low <= 0 <= found.high
    assert outside / draws < 0.09
