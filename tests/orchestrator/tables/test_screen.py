"""Tables on a screen: aligned columns within its width, with the notes that affect how a row is read."""

from ctvr.orchestrator.tables.screen import LINES, pairs_text, to_text
from ctvr.orchestrator.tables.table import Column, Difference, Row, Table, Value

COLUMNS = (
    Column("stream/t2v/r1", "R@1", "up"),
    Column("stream/t2v/r5", "R@5", "up"),
    Column("stream/t2v/r10", "R@10", "up"),
    Column("stream/t2v/medr", "MedR", "down"),
    Column("stream/t2v/meanr", "MeanR", "down"),
    Column("stream/t2v/bwf", "BWF", "down"),
    Column("params_m", "Params (M)"),
)


def row(label: str, r1: float, **more: object) -> Row:
    values = {column.key: Value(r1 + place, 0.33) for place, column in enumerate(COLUMNS)}
    return Row(**{"label": label, "method": label, "values": values, "seeds": ("1", "2"), "trials": 8, **more})


def test_cells_stand_under_each_other_and_the_best_is_marked():
    paper = {"stream/t2v/r1": Value(25.87, 0.33)}
    rows = (row("lwf", 24.0), row("lora", 26.0, marks=("a\nb\x1b",), paper=paper, paper_source="Zhao et al., Table 1"))
    text = to_text(Table("s\x1b[2J", COLUMNS, rows), 200)
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("lora [a] "))
    assert "26.00±0.33#" in lines[at]
    assert lines[at + 1].split() == ["paper", "[1]", "25.87±0.33"]
    assert len({line.index("±") for line in lines[at : at + 2]}) == 1
    assert "[a] a b" in lines
    assert "[1] Zhao et al., Table 1" in lines
    assert "# the best of its column" in lines
    assert not {sign for sign in text if not sign.isprintable()} - {"\n"}
    assert not any(markup in text for markup in ("| ", "<sup>", "\\_", "**"))


def test_a_table_fits_the_screen_without_its_less_important_columns():
    seen = Difference(-5.0, -9.0, -1.0, 0.001)
    rows = (row("lwf", 24.0, vs_best=seen), row(f"lora ({'x' * 95})", 26.0, is_reference=True, vs_best=Difference()))
    table = Table("s", COLUMNS, rows)
    for width in (80, 100, 160):
        lines = to_text(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert all(title in lines[2] for title in ("Method", "R@1", "BWF", "Seeds"))
    assert "R@1 vs best" not in to_text(table, 100).splitlines()[2]
    assert "Also in the files: " in to_text(table, 80)
    assert "R@1 vs best" in to_text(table, 300).splitlines()[2]
    assert "x" * 95 in to_text(table, 300)


def test_important_notes_are_shown_within_the_limit():
    marks = ("measured on validation videos", "chosen by us, because no paper publishes these values: a=1")
    notes = ("Trials: how many.", *(f"note {number} " + "long " * 12 for number in range(9)))
    text = to_text(Table("s", COLUMNS, (row("lwf", 24.0, marks=marks),), notes), 80)
    assert "note 0" in text
    assert "chosen by us" not in text
    assert "Trials: " not in text
    assert "notes" in text.splitlines()[-1]
    assert len(text.splitlines()) <= 7 + LINES


def test_pairs_are_lines_with_the_reasons_of_rows_that_are_left_out():
    rows = (row("lwf", 24.0), row("lo\x1bra", 26.0), row("dsl", 30.0))
    pairs = [(rows[0], rows[1], Difference(-2.0, -3.0, -1.0, 0.01))]
    text = pairs_text(Table("s", COLUMNS, rows), pairs, {"dsl": "not compared: transductive"})
    assert "lwf - lora  -2.00 [-3.00, -1.00] p=0.010*\n" in text
    assert "dsl: not compared: transductive." in text
    assert "No two rows can be compared." in pairs_text(Table("s", COLUMNS, rows), [], {})


def test_a_note_of_all_rows_has_no_letter_and_numbers_have_four_digits():
    long = "matches the release " * 20
    rows = (
        row("lwf", 100.0, marks=("val", long)),
        row("lora", 126.0, marks=("val", "method.lr 5.176340429875838e-06")),
    )
    text = to_text(Table("s", COLUMNS, rows), 200)
    assert "All rows: val" in text
    assert "[a] method.lr 5.176e-06" in text
    names = [line.partition("  ")[0].strip() for line in text.splitlines()]
    assert {"lwf", "lora [a]"} <= set(names)
    assert "100.0±0.3 " in text
    assert long[:40] not in text
