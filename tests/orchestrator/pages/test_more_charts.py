"""The distribution of ranks and R@1 against the time of a run, where the rows have these numbers."""

import re
from dataclasses import replace

from ctvr.orchestrator.pages.charts import cost_html, ranks_html
from ctvr.orchestrator.tables.significance import Ranks, rank_curve
from ctvr.orchestrator.tables.table import Column, Row, Table, Value

ROWS = tuple(
    Row(name, name, {"r1": Value(r1), "run_seconds": Value(seconds)}, ranks=((1, r1), (2, 50.0), (40, 100.0)))
    for name, r1, seconds in (("lwf", 20.0, 30.0), ("dsl", 30.0, 400.0))
)
TABLE = Table("s", (Column("r1", "R@1", "up"),), ROWS, galleries=(50, 150))


def below(text: str) -> list[str]:
    """Return the numbers below the first axis."""
    return re.findall(r'y="244" text-anchor="middle">(.*?)<', text.replace('y="244.0"', 'y="244"'))


def test_ranks_are_drawn_to_the_largest_with_the_line_of_chance():
    text = ranks_html(TABLE)
    assert below(text) == ["1", "2", "5", "10", "20", "40"]
    assert text.count("<polyline") == 2
    assert ">chance 20.0</text>" in text
    assert "chance" not in ranks_html(replace(TABLE, galleries=()))
    assert ranks_html(replace(TABLE, rows=tuple(replace(row, ranks=()) for row in ROWS))) == ""


def test_a_tie_has_its_chance_in_the_distribution_of_ranks():
    ranks = Ranks({"a#0": 1.0, "b#0": 1.5, "c#0": 4.0}, {})
    curve = dict(rank_curve([ranks, ranks]))
    assert {k: round(share, 1) for k, share in curve.items()} == {1: 50.0, 2: 66.7, 3: 66.7, 4: 100.0}
    assert rank_curve([]) == ()


def test_time_against_r1_needs_two_times():
    text = cost_html(TABLE)
    assert below(text) == ["20", "50", "100", "200", "500"]
    assert "lwf ends at 20.0, dsl ends at 30.0" in text
    same = tuple(replace(row, values=ROWS[0].values) for row in ROWS)
    assert [cost_html(replace(TABLE, rows=rows)) for rows in (same, ROWS[:1], ())] == ["", "", ""]
