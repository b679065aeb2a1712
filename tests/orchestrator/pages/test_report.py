"""The report of a sweep shows a paper's row and matrices."""

import math
import re
from dataclasses import replace

from ctvr.orchestrator.pages.forgetting import ModelHistory
from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.pages.report import curves_html, notes_html, report, table_html
from ctvr.orchestrator.tables.table import Column, Row, Table, Value


def test_a_papers_row_is_below_ours_and_shared_footnotes_occur_once():
    columns = (Column("r1", "R@1", "up"),)
    ours = Row("a", "a", {"r1": Value(20.0)}, marks=("same",), paper={"r1": Value(25.87)}, paper_source="Table 1")
    other = Row("b", "b", {"r1": Value(21.0)}, marks=("same",), matrices={"own <gallery>": [[50.0], [25.0, math.nan]]})
    table = Table("s", columns, (ours, other))
    assert "<td>paper</td><td>25.87</td>" in table_html(table)
    text = notes_html(table)
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


def shown_table() -> Table:
    """A table of two rows with a main and a further column, curves and a note."""
    columns = (Column("r1", "R@1", "up"), Column("r5", "R@5", "up"), Column("bwf", "BWF", "down"))
    low = Row("zero_shot", "zero_shot", {"r1": Value(15.2), "r5": Value(45.0), "bwf": Value(0.0)})
    high = Row("clip4clip", "clip4clip", {"r1": Value(19.2), "r5": Value(52.0), "bwf": Value(1.3)}, marks=("a note",))
    low, high = (replace(row, curve=((1, row.values["r1"].mean, 0.0), (2, 12.0, 0.0))) for row in (low, high))
    return Table("s", columns, (low, high))


def test_the_table_has_arrows_meanings_a_winner_and_secondary_columns():
    text = table_html(shown_table())
    for head in ('<th scope="col">R@1 ↑</th>', '<th scope="col" class="more">R@5 ↑</th>', '<th scope="col">BWF ↓</th>'):
        assert head in text
    assert "BWF: backward forgetting, points of R@1" in text
    assert "MedR" not in text
    assert re.findall(r"<tr class=winner><td>(.*?)</td>", text) == ["clip4clip ★"]
    assert 'class="scroll" tabindex="0" role="region"' in text


def test_a_fact_with_several_lines_keeps_its_columns():
    text = report("t", [("Confirmation", "front  gain\na<b     1"), ("Budget", "8 trials")], [], [], [])
    assert "<p><b>Confirmation</b></p><pre>front  gain\na&lt;b     1</pre>" in text
    assert "<p><b>Budget</b><br>8 trials</p>" in text


def test_pictures_stand_before_notes():
    text = report("t", [], [shown_table()], [ModelHistory("clip4clip", 0, ())], ["task_01", "task_02"])
    places = [text.index(word) for word in ("<table>", "<svg", "Forgotten queries", "1 note on the rows", "</main>")]
    assert places == sorted(places)


def test_a_chart_has_axis_titles_round_ticks_and_a_sample_of_each_line():
    text = curves_html(shown_table())
    assert ">tasks learned</text>" in text
    assert ">R@1 (%)</text>" in text
    assert re.findall(r'text-anchor="end">(.*?)<', text) == ["12", "14", "16", "18", "20"]
    samples = re.findall(r'<li><svg viewBox="0 0 40 14" aria-hidden="true">(.*?)</svg>(.*?)</li>', text)
    assert [label for _, label in samples] == ["zero_shot", "clip4clip"]
    assert len({sample for sample, _ in samples}) == 2
