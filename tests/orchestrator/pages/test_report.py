"""The report of a sweep shows a paper's row and matrices."""

import math
import re
from dataclasses import replace

from ctvr.orchestrator.pages.forgetting import ModelHistory
from ctvr.orchestrator.pages.matrix_html import matrices_html
from ctvr.orchestrator.pages.report import curves_html, notes_html, report, table_html
from ctvr.orchestrator.tables.curves import OWN, reference_curves
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
    assert shown.count("<details") == 1
    assert "<td></td>" in shown, "what was not measured is empty"
    assert "own &lt;gallery&gt;" in shown
    assert matrices_html(Table("s", columns, (ours,))) == ""
    assert "<h3>R@1 of every task" in shown
    assert "<h3>Accuracy of every task" in matrices_html(Table("s", (Column("accuracy", "Accuracy"),), (other,)))


def test_the_best_rows_matrices_come_first_and_are_open():
    matrices = {"own gallery": [[50.0], [25.0, 10.0]]}
    rows = [
        Row(name, name, {"r1": Value(value)}, matrices=matrices)
        for name, value in (("low", 1.0), ("high", 2.0), ("none", 0.0))
    ]
    columns = (Column("r1", "R@1", "up"),)
    shown = re.compile("<details( open)?><summary>(.*?)</summary>")
    assert shown.findall(matrices_html(Table("s", columns, tuple(rows)))) == [
        (" open", "high"),
        ("", "low"),
        ("", "none"),
    ]
    assert shown.findall(matrices_html(Table("s", columns, tuple(rows[:2])))) == [(" open", "high"), (" open", "low")]


def test_the_limits_of_results_and_the_best_value_precede_the_facts():
    text = report("t", [("Budget", "8 trials")], [shown_table()], [], [], status="smoke runs; 1 seed")
    places = [text.index(word) for word in ("smoke runs; 1 seed", "<b>R@1 19.20</b>, +4.00 over", "8 trials", "<table")]
    assert places == sorted(places)


def shown_table() -> Table:
    """A table of two rows with a main and a further column, curves and a note."""
    columns = (Column("r1", "R@1", "up"), Column("r5", "R@5", "up"), Column("bwf", "BWF", "down"))
    low = Row("zero_shot", "zero_shot", {"r1": Value(15.2), "r5": Value(45.0), "bwf": Value(0.0)})
    high = Row("clip4clip", "clip4clip", {"r1": Value(19.2), "r5": Value(52.0), "bwf": Value(1.3)}, marks=("a note",))
    low, high = (replace(row, curve=((1, 12.0, 0.0), (2, row.values["r1"].mean, 0.0))) for row in (low, high))
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
    assert re.findall(r'text-anchor="end">([\d.]+)<', text) == ["12", "14", "16", "18", "20"]
    samples = re.findall(r'<li><svg viewBox="0 0 40 14" aria-hidden="true">(.*?)</svg>(.*?)</li>', text)
    assert [label for _, label in samples] == ["zero_shot", "clip4clip (+4.00 over zero-shot)"]
    assert len({sample for sample, _ in samples}) == 2
    assert [">zero-shot 15.2</text>" in text, "chance" in text] == [True, False], "the galleries are not known"


def test_a_curve_has_dashed_lines_of_chance_and_of_zero_shot_without_its_row():
    table = shown_table()
    row = replace(table.rows[1], gains=((1, 4.0, math.nan), (2, 2.0, math.nan)), matrices={OWN: [[50.0], [40.0, 20.0]]})
    table = replace(table, rows=(row,), galleries=(50, 200))
    assert reference_curves(table) == {"zero-shot": [(1, 8.0), (2, 17.2)], "chance": [(1, 2.0), (2, 0.4)]}
    assert reference_curves(table, own=True) == {"chance": [(1, 2.0), (2, 1.25)]}
    union, own = re.findall(r'<svg viewBox="0 0 460 270".*?</svg>', curves_html(table), re.DOTALL)
    for drawn, names in ((union, ["zero-shot 17.2", "chance 0.4"]), (own, ["chance 1.2"])):
        assert re.findall(r">([a-z-]+ [\d.]+)</text>", drawn) == names
        assert drawn.count("stroke-dasharray") == len(names)
    text = report("t", [], [table], [], [])
    assert "<b>R@1 19.20</b>, +2.00 over zero-shot" in text


def test_a_second_chart_shows_the_mean_in_own_galleries_which_do_not_grow():
    table = shown_table()
    rows = [replace(row, matrices={OWN: [[50.0], [40.0, 20.0]]}) for row in table.rows]
    text = curves_html(replace(table, rows=tuple(rows)))
    charts = re.findall(r'<svg viewBox="0 0 460 270".*?</svg>', text, re.DOTALL)
    assert [chart.count("<polyline") for chart in charts] == [2, 2]
    assert re.findall(r'text-anchor="end">([\d.]+)<', charts[1]) == ["30", "35", "40", "45", "50"]


def test_zero_shot_is_not_the_control_that_scores_all_videos_equally():
    rows = [
        Row(name, "zero_shot", {}, curve=((1, r1, 0.0),), settings={"method.is_chance": is_chance})
        for name, r1, is_chance in (("zero_shot (chance)", 1.0, "True"), ("zero_shot (paper)", 20.0, "False"))
    ]
    table = Table("s", (Column("r1", "R@1", "up"),), tuple(rows))
    assert reference_curves(table)["zero-shot"] == [(1, 20.0)]
    assert reference_curves(replace(table, rows=tuple(rows[:1]))) == {}
