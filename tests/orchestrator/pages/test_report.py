"""The report of a sweep shows a paper's row and matrices."""

from __future__ import annotations

import math

from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.pages.report import table_html
from ctvr.orchestrator.tables.table import Column, Row, Table, Value


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
