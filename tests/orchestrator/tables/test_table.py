"""A table has the same content in Markdown, LaTeX and CSV; its text cannot become markup, commands or formulas."""

import csv
import io
import math
import re
from dataclasses import replace

import pytest

from ctvr.orchestrator.pages.report import table_html
from ctvr.orchestrator.tables.formats import Footnotes, latex_text, to_csv, to_latex, to_markdown
from ctvr.orchestrator.tables.screen import to_text
from ctvr.orchestrator.tables.table import Column, Difference, Row, Table, Value, number

COLUMNS = (Column("r1", "R@1", "up"), Column("bwf", "BWF", "down"), Column("params_m", "Params (M)"))
NASTY = "a_b & 50% #1 $x$ {y} ~ ^ \\ | <i> *z* `c` [d]\nnext"


def row(method: str, r1: float, bwf: float = 0.0, **more: object) -> Row:
    values = {"r1": Value(r1, 0.33), "bwf": Value(bwf, 0.2), "params_m": Value(46.8)}
    return Row(**{"label": method, "method": method, "values": values, "seeds": ("0", "1", "2"), **more})


@pytest.fixture
def table() -> Table:
    paper = {"r1": Value(25.87, 0.33), "bwf": Value(-0.45, 0.22)}
    rows = (
        row("clip4clip", 23.57, 0.61, marks=("few seeds", "val")),
        row("framefusion_moe", 25.868, -0.454, paper=paper, paper_source="Zhao et al., Table 1", marks=("val",)),
        row("upper_bound", 25.9, -0.9, access="joint"),
    )
    return Table("msrvtt-10", COLUMNS, rows, ("A note.",))


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value(25.868, 0.327), "25.87±0.33"),
        (Value(-0.45, 0.0), "-0.45±0.00"),
        (Value(25.868), "25.87"),
        (Value(-0.001, 0.1), "0.00±0.10"),
        (Value(), "n/a"),
        (Value(math.inf, 0.1), "n/a"),
    ],
)
def test_numbers_look_like_the_papers(value, text):
    assert number(value) == text


def test_markdown_has_the_papers_numbers_below_ours(table):
    lines = to_markdown(table).splitlines()
    at = next(i for i, line in enumerate(lines) if "framefusion" in line)
    assert lines[at] == r"| framefusion\_moe<sup>b</sup> | **25.87±0.33** | **-0.45±0.20** | 46.80 | 3 |"
    assert lines[at + 1] == "| &emsp;*paper* <sup>1</sup> | *25.87±0.33* | *-0.45±0.22* |  |  |"
    assert "- <sup>a</sup> few seeds" in lines
    assert "- <sup>b</sup> val" in lines
    assert "- <sup>1</sup> Zhao et al., Table 1" in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_upper_bound_wins_no_column(table):
    assert table.best() == {"r1": 25.87, "bwf": -0.45}
    assert "**25.90" not in to_markdown(table)


def test_rows_with_more_data_stand_in_their_own_block_with_its_best():
    rows = (
        row("replayed", 30.0, access="videos"),
        row("plain", 20.0),
        row("joint", 40.0, access="joint"),
        row("also plain", 21.0),
        row("also replayed", 31.0, access="videos"),
        row("leaks", 50.0, access="searched"),
    )
    table = Table("s", COLUMNS, rows)
    assert [(title, [each.method for each in of]) for title, of in table.blocks] == [
        ("Trains on the current task", ["plain", "also plain"]),
        ("Trains on features of searched videos", ["leaks"]),
        ("Keeps pairs of earlier tasks", ["replayed", "also replayed"]),
        ("Trains on all tasks at once", ["joint"]),
    ]
    assert [each.method for each in rows if table.is_best(each, COLUMNS[0])] == ["also plain", "also replayed"]
    text = to_markdown(table)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [line.split("|")[1].strip() for line in lines[:4]] == [
        *("*Trains on the current task*", "plain", "also plain", "*Trains on features of searched videos*")
    ]
    assert {line.count("|") for line in lines} == {6}
    assert "*Trains" not in to_markdown(Table("s", COLUMNS, rows[1::2][:1]))
    assert "(Keeps pairs of earlier tasks)" in to_text(table)
    assert table_html(table).count('<th scope="rowgroup" colspan="5">') == 4
    assert [line["access"] for line in read_csv(to_csv(table))] == [each.access for each in rows]


def test_an_untrained_row_cannot_win_the_forgetting_column():
    table = Table("s", COLUMNS, (row("zero_shot", 22.0, 0.0), row("lwf", 24.0, 1.5), row("zscl", 23.0, 2.5)))
    assert table.best() == {"r1": 24.0, "bwf": 1.5}
    control = row("structalign", 20.0, 0.0)
    control = replace(control, values={**control.values, "params_m": Value(0.0)})
    assert replace(table, rows=(*table.rows, control)).best() == {"r1": 24.0, "bwf": 1.5}


def test_ties_as_printed_are_both_bold():
    text = to_markdown(Table("s", COLUMNS, (row("a", 25.871), row("b", 25.869))))
    assert text.count("**25.87±0.33**") == 2


def test_a_single_row_wins_nothing():
    assert "**" not in to_markdown(Table("s", COLUMNS, (row("a", 25.0),)))


def test_latex_has_the_same_cells_and_balanced_braces(table):
    text = to_latex(table)
    assert r"\toprule" in text
    assert r"FrameFusionMoE\textsuperscript{b} & \textbf{25.87{\scriptsize$\pm$0.33}}" in text
    assert "\\caption{Text-to-video retrieval on msrvtt-10.}\n\\label{tab:msrvtt-10}" in text
    assert r"\begin{table}[t]" in text
    assert r"\textbf{$-$0.45{\scriptsize$\pm$0.20}}" in text
    assert text.count("{") == text.count("}")
    body = text.partition(r"\midrule")[2].split(r"\bottomrule")[0].strip().splitlines()
    cells = [line for line in body if not line.startswith((r"\multicolumn", r"\midrule"))]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in cells} == {4}
    assert [line for line in body if line not in cells] == [
        r"\multicolumn{5}{l}{\textit{Trains on the current task}} \\",
        r"\midrule",
        r"\multicolumn{5}{l}{\textit{Trains on all tasks at once}} \\",
    ]


def test_latex_prints_minus_signs_in_differences():
    worse = replace(row("lwf", 24.0), vs_best=Difference(-2.0, -3.0, 1.5, 0.2))
    text = to_latex(Table("s", COLUMNS, (replace(row("dsl", 26.0), is_reference=True), worse)))
    assert "$-$2.00 [$-$3.00, 1.50] p=0.200 & 3" in text


def test_latex_says_shared_notes_once_and_long_ones_in_comments():
    long = "matches the release\n" * 20
    rows = (row("lwf", 123.456, marks=("val", long)), row("dsl (trial 2)", 99.5, marks=("own", "val")))
    text = to_latex(Table("s", COLUMNS, rows, ("lr 5.176340429875838e-06",)))
    assert r"LwF & \textbf{123.5{\scriptsize$\pm$0.3}}" in text
    assert r"DSL (trial 2)\textsuperscript{a} & 99.50" in text
    assert r"All rows: val\par" in text
    assert r"lr 5.176e-06\par" in text
    assert [line for line in text.splitlines() if "release" in line] == [f"% lwf: {' '.join(long.split())}"]


def test_no_text_becomes_markup_or_a_command():
    table = Table(NASTY, COLUMNS, (row("m", 1.0, label=NASTY, marks=(NASTY,)), row("n", 2.0)), (NASTY,))
    markdown = to_markdown(table)
    assert "<i>" not in markdown
    assert len({len(re.findall(r"(?<!\\)\|", ln)) for ln in markdown.splitlines() if ln.startswith("|")}) == 1
    latex = to_latex(table)
    assert latex_text(NASTY) in latex
    assert not re.search(r"(?<!\\)[#%_^~]", latex.replace(r"\\", ""))
    assert latex_text("\\{}") == r"\textbackslash{}\{\}"


def test_csv_carries_every_number_and_the_difference(table):
    lines = read_csv(to_csv(table))
    assert [line["method"] for line in lines] == ["clip4clip", "framefusion_moe", "upper_bound"]
    ours = lines[1]
    assert (ours["r1"], ours["r1_std"], ours["r1_paper"], ours["r1_paper_std"]) == ("25.868", "0.33", "25.87", "0.33")
    assert float(ours["r1_minus_paper"]) == pytest.approx(-0.002)
    assert float(ours["bwf"]) == -0.454
    assert lines[0]["r1_paper"] == "n/a"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"])
def test_csv_text_is_never_a_formula_but_negative_numbers_stay_numbers(text):
    (line,) = read_csv(to_csv(Table("s", COLUMNS, (row("m", 1.0, -0.5, label=text),))))
    assert line["label"] == f"'{text}"
    assert line["bwf"] == "-0.5"


def test_rows_with_different_extra_numbers_share_one_header():
    rows = (row("a", 1.0, extra={"stream/t2v/twin": Value(50.0)}), row("b", 2.0))
    lines = read_csv(to_csv(Table("s", COLUMNS, rows)))
    assert [line["stream/t2v/twin"] for line in lines] == ["50", "n/a"]


def test_footnotes_continue_with_aa_after_z():
    feet = Footnotes()
    assert feet.signs(str(n) for n in range(28))[24:] == ["y", "z", "aa", "ab"]
    assert feet.signs(["0"]) == ["a"]


def test_trials_and_time_are_columns_if_a_row_records_them(table):
    for made in (to_markdown(table), to_latex(table)):
        assert "Trials" not in made
    first = row("lwf", 1.0, trials=8, by_hand="7?", seconds=130.0)
    rows = (first, row("zero_shot", 2.0, trials=0, seconds=5.0), row("x", 3.0))
    paper = {"r1": Value(2.0)}
    made = Table("s", COLUMNS, (replace(rows[0], paper=paper, paper_source="p"), *rows[1:]), title="Table 1 of X")
    text = to_markdown(made)
    assert "### s: Table 1 of X" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in lines} == {lines[0].count(" | ")}
    assert lines[0].endswith("| Seeds | Trials | Time |")
    assert lines[2].endswith("| 3 | 8 + 7? | 2 min |")
    assert lines[4].endswith("| 3 | 0 | 5 s |")
    assert lines[5].endswith("| 3 | n/a | n/a |")
    assert r"3 & 8 + 7? & 2 min \\" in to_latex(made)
    assert [line["trials"] for line in read_csv(to_csv(made))] == ["8", "0", "n/a"]
    assert [line["trials_by_hand"] for line in read_csv(to_csv(made))] == ["7?", "", ""]
    assert [line["seconds"] for line in read_csv(to_csv(made))] == ["130", "5", "n/a"]
