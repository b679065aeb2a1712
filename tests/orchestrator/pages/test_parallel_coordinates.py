"""The page of a search shows its trials, a paper's row and matrices."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.pages.parallel_coordinates import Trial, strength, trials_html
from ctvr.orchestrator.pages.report import table_html
from ctvr.orchestrator.tables.table import Column, Row, Table, Value


def test_a_setting_that_orders_the_trials_has_strength_one_and_an_idle_one_none():
    score = [4.0, 3.0, 2.0, 1.0]
    assert strength([9.0, 5.0, 2.0, 0.1], [], score) == pytest.approx(1)
    assert strength([1.0, 2.0, 3.0, 4.0], [], score) == pytest.approx(-1)
    assert strength([1.0, 2.0, 2.0, 1.0], [], score) == pytest.approx(0)
    assert strength(None, ["a", "b", "b", "a"], score) == pytest.approx(0)
    assert strength(None, ["a", "a", "b", "b"], score) == pytest.approx(2 / math.sqrt(5))


def test_trials_are_lines_over_the_settings_that_differ_and_words_are_escaped():
    trials = [Trial({"m.lr": lr, "m.same": "1", "m.kind": kind}, score) for lr, kind, score in
              (("1e-5", "<b>", 30.0), ("1e-3", "c", 20.0), ("1e-4", "c", 25.0))]  # fmt: skip
    text = trials_html(trials, "gain")
    (drawing,) = re.findall(r"<svg.*?</svg>", text)
    lines = ElementTree.fromstring(drawing).findall("polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3, 3]
    assert "m.same" not in text
    assert "<b>" not in text
    middle, last, best = (float(line.attrib["points"].split(",")[0]) for line in lines)
    assert middle == pytest.approx((last + best) / 2, abs=0.2), (
        "1e-4 lies half-way: a log scale; the best is drawn last"
    )
    assert trials_html(trials[:1], "gain") == trials_html([], "gain") == ""


def test_a_papers_row_stands_below_ours_and_a_shared_footnote_is_said_once():
    columns = (Column("r1", "R@1", "up"),)
    ours = Row("a", "a", {"r1": Value(20.0)}, marks=("same",), paper={"r1": Value(25.87)}, paper_source="Table 1")
    other = Row("b", "b", {"r1": Value(21.0)}, marks=("same",), matrices={"own <gallery>": [[50.0], [25.0, math.nan]]})
    table = Table("s", columns, (ours, other))
    text = table_html(table)
    assert "<td>paper</td><td>25.87</td>" in text
    assert "Paper: Table 1" in text
    assert text.count(": same<") == 1
    assert "a, b: same" in text
    shown = matrices_html(table)
    assert shown.count("<details>") == 1
    assert "<td></td>" in shown, "what was not measured is empty"
    assert "own &lt;gallery&gt;" in shown
    assert matrices_html(Table("s", columns, (ours,))) == ""
    assert "<h3>R@1 of every task" in shown
    assert "<h3>Accuracy of every task" in matrices_html(Table("s", (Column("accuracy", "Accuracy"),), (other,)))
