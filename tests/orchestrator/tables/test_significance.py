"""Comparison of a table's rows with the best one, and the notes on rows that are not compared."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.tables.significance import (
    ALONE,
    FEW_ORDERS,
    ONE_SEED,
    OTHER_ORDERS,
    TIES_MISSED,
    TRANSDUCTIVE,
    UPPER_BOUND,
    Ranks,
    all_pairs,
    compare_rows,
    one_rule_of_ties,
    read_ranks,
)
from ctvr.orchestrator.tables.table import Row, Value
from ctvr.orchestrator.tracking.run_record import RunRecord

SHARES = {"low": 0.1, "mid": 0.4, "top": 0.6}


def _row(name: str, seeds: tuple[str, ...], trained: float = 1.0, **more: object) -> Row:
    runs = tuple(f"{name}{seed}" for seed in seeds)
    values = {"r1": Value(100 * SHARES[name]), "params_m": Value(trained)}
    return Row(name, name, values, seeds, runs, **more)  # type: ignore[arg-type]


def _ranks(rows: list[Row]) -> dict[str, Ranks]:
    chance = np.random.default_rng(0)
    found = {}
    for row in rows:
        for run in row.runs:
            hits = chance.random(300) < SHARES[row.label]
            found[run] = Ranks({f"v{i}#0": 1.0 if hit else 2.0 for i, hit in enumerate(hits)}, {})
    return found


def test_a_worse_row_is_below_the_best():
    rows = [_row("low", ("1", "2", "3")), _row("top", ("1", "2", "3"))]
    low, top = compare_rows(rows, _ranks(rows))
    assert top.is_reference
    assert low.vs_best is not None
    assert low.vs_best.high < 0


def test_rows_are_compared_with_the_best_row_of_equal_access():
    seeds = ("1", "2", "3")
    rows = [_row("low", seeds), _row("mid", seeds), _row("top", seeds, access="videos")]
    rows += [replace(rows[0], label="low", access="videos"), replace(rows[2], access="joint")]
    low, mid, top, replayed, joint = compare_rows(rows, _ranks(rows))
    assert mid.is_reference
    assert top.is_reference
    assert not joint.is_reference
    assert UPPER_BOUND in joint.marks
    assert low.vs_best is not None
    assert replayed.vs_best is not None
    assert low.vs_best.value > replayed.vs_best.value  # -30 and -50 points
    alone = compare_rows(rows[:3], _ranks(rows))[2]
    assert ALONE in alone.marks
    assert not alone.is_reference
    (wide, _), (narrow, _) = compare_rows(rows[:2] + rows[2:4], _ranks(rows))[:2], compare_rows(rows[:2], _ranks(rows))
    assert wide.vs_best.high - wide.vs_best.low > narrow.vs_best.high - narrow.vs_best.low  # all rows are one family


def test_every_pair_of_rows_is_compared_once():
    seeds = ("1", "2", "3")
    rows = [_row("low", seeds), _row("mid", seeds), _row("top", seeds)]
    pairs, reasons = all_pairs(rows, _ranks(rows))
    assert [(first.label, second.label) for first, second, _ in pairs] == [
        ("low", "mid"),
        ("low", "top"),
        ("mid", "top"),
    ]
    assert not reasons
    low, mid, _ = compare_rows(rows, _ranks(rows))
    assert [found for _, second, found in pairs if second.label == "top"] == [low.vs_best, mid.vs_best]
    turned = [found.turned() for _, _, found in all_pairs(rows[::-1], _ranks(rows))[0]][::-1]
    for (*_, found), other in zip(pairs, turned, strict=True):
        assert (found.value, found.low, found.p) == pytest.approx((other.value, other.low, other.p))


def test_pairs_are_of_all_blocks_and_name_the_rows_that_are_left_out():
    seeds = ("1", "2", "3")
    rows = [_row("low", seeds), _row("mid", seeds, access="videos"), _row("top", seeds, access="joint")]
    ranks = _ranks(rows)
    pairs, reasons = all_pairs([*rows, replace(rows[0], label="blind", is_transductive=True)], ranks)
    assert len(pairs) == 3
    assert reasons == {"blind": TRANSDUCTIVE}
    single = [_row("low", ("1",)), _row("top", ("1",))]
    assert all_pairs(single, _ranks(single)) == ([], {"low": ONE_SEED, "top": ONE_SEED})
    assert all_pairs([], {}) == ([], {})


def test_single_seed_rows_are_compared_only_with_several_seeds():
    single = [_row("low", ("1",)), _row("top", ("1",))]
    low, top = compare_rows(single, _ranks(single))
    assert ONE_SEED in low.marks
    assert low.vs_best is None
    assert not top.is_reference
    rows = [*single, _row("mid", ("1", "2"))]
    assert [row.vs_best is not None for row in compare_rows(rows, _ranks(rows))] == [True, False, True]


def test_rows_that_train_nothing_are_compared_over_videos():
    rows = [_row("low", ("1",), 0.0), _row("top", ("1",), 0.0), _row("mid", ("1",))]
    low, top, mid = compare_rows(rows, _ranks(rows))
    assert low.vs_best is not None
    assert top.is_reference
    assert ONE_SEED in mid.marks


@pytest.mark.parametrize(("orders", "said"), [(4, None), (3, FEW_ORDERS)])
def test_rows_over_orders_of_tasks_are_compared_by_order(orders, said):
    """Runs of order x seed are not independent seeds: treated as such, they made up to 25 % of equal methods differ."""
    seeds = tuple(f"1@{order}" for order in range(orders))
    points = {"r1": tuple((order, 1.0, 0.0) for order in range(orders))}
    rows = [_row("low", ("1", "2", "3")), _row("top", seeds, orders=points), _row("mid", seeds, orders=points)]
    low, top, mid = compare_rows(rows, _ranks(rows))
    assert OTHER_ORDERS in low.marks
    assert (mid.vs_best is None) == (said is not None) == (not top.is_reference)
    assert said is None or said in mid.marks
    twice = [replace(row, seeds=row.seeds * 2, runs=row.runs * 2) for row in rows]
    again = compare_rows(twice, _ranks(rows))[2].vs_best
    assert again is mid.vs_best or (again and mid.vs_best and again.p == pytest.approx(mid.vs_best.p))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ""),
        ('{"ranks": [1]}', ""),  # of a version that stored no ids
        ("[]", "damaged"),
        ("{", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"query ids": ["a"], "ranks": [[]]}', "damaged"),
        ('{"query ids": ["a"], "ranks": [1], "tasks": [Infinity]}', "damaged"),
        ("fifo", "FIFO"),
    ],
)
def test_damaged_ranks_are_named_and_not_compared(tmp_path, caplog, content, said):
    class Records:
        def download(self, run_id: str, name: str) -> Path:
            if content is None:
                raise FileNotFoundError
            return tmp_path / name

    if content == "fifo":
        os.mkfifo(tmp_path / "ranks.json")
    elif content is not None:
        (tmp_path / "ranks.json").write_text(content)
    assert read_ranks(Records(), "f" * 32) is None
    assert (said in caplog.text) if said else not caplog.records


class Kept:
    """Replacement for the tracker: serves one ranks.json for every run."""

    def __init__(self, folder: Path, **content: object) -> None:
        self.file = folder / "ranks.json"
        self.file.write_text(json.dumps({"query ids": ["a#0", "b#0", "c#0"], **content}))

    def download(self, run_id: str, name: str) -> Path:
        return self.file


def test_counts_are_read_and_give_a_tie_its_chance(tmp_path):
    counts = {"better": [0, 0, 2], "equal": [0, 3, 1], "own": [1, 1, 1]}
    kept = Kept(tmp_path, ranks=[1.0, 2.5, 3.5], **counts, reencoded={"0": {"ranks": [9.0] * 3, **counts}})
    found = read_ranks(kept, "run")
    assert found is not None
    assert found.of == found.reencoded["0"] == {"a#0": (0, 0, 1), "b#0": (0, 3, 1), "c#0": (2, 1, 1)}
    assert [rank.first for rank in found.of.values()] == [1.0, 0.25, 0.0]
    assert not found.counts_ties_as_misses


@pytest.mark.parametrize(("means", "has_ties"), [([1.0, 1.5, 2.0], True), ([1.0, 3.0, 2.0], False)])
def test_older_runs_stored_mean_ranks_and_are_marked_if_they_have_ties(tmp_path, means, has_ties):
    found = read_ranks(Kept(tmp_path, ranks=means, reencoded={"0": means}), "run")
    assert found is not None
    assert [rank.mean for rank in found.of.values()] == means
    assert found.of == found.reencoded["0"]
    assert found.counts_ties_as_misses == has_ties


def test_a_row_that_counts_ties_as_misses_is_not_compared():
    rows = [_row(name, ("1", "2", "3")) for name in ("low", "mid", "top")]
    ranks = _ranks(rows)
    ranks |= {run: replace(ranks[run], of={**ranks[run].of, "v0#0": 1.5}, is_older=True) for run in rows[2].runs}
    low, mid, top = compare_rows(rows, ranks)
    assert TIES_MISSED in top.marks
    assert mid.is_reference
    assert low.vs_best is not None


def test_one_table_never_has_both_rules_of_ties():
    older, newer, unknown = (
        RunRecord(name, name, {}, {}, {}, "FINISHED", "") for name in ("older", "newer", "unknown")
    )
    ranks = {"older": Ranks({"a#0": 1.5}, {}, is_older=True), "newer": Ranks({"a#0": 1.5}, {})}
    kept, (note,) = one_rule_of_ties([older, newer, unknown], ranks)
    assert kept == [newer, unknown]
    assert note.startswith("Left out: 1 run of an older version of ctvr, which counted a tie in R@k as a miss")
    ranks["unknown"] = Ranks({"a#0": 2.0}, {}, is_older=True)  # without ties
    kept, (note,) = one_rule_of_ties([older, unknown], ranks)
    assert kept == [older, unknown]
    assert note.startswith(
        "R@k: the runs with ties are of an older version of ctvr, which counted a tie in R@k as a miss"
    )
    assert one_rule_of_ties([newer, unknown], ranks) == ([newer, unknown], [])
