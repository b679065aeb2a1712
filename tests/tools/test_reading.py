"""Readings of results pages name the columns that reverse an order of two rows."""

import re
from pathlib import Path

import pytest

from tools.reading import is_named, lines_of, reversals, statement, with_statement

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in sorted((ROOT / "results").glob("*.md")) if "\n| Method |" in page.read_text(encoding="utf-8")]
TABLE = """# The main job

| Method | R@1 ↑ | R@5 ↑ | MedR ↓ | BWF ↓ | GMACs ↓ | Params (M) | Seeds |
| :-- | --: | --: | --: | --: | --: | --: | --: |
| *Trains on the current task* |  |  |  |  |  |  |  |
| zero\\_shot | 1.00 | 8.25 | 90.75 | 0.00 | 1.0 | 0.00 | 1 |
| clip4clip<sup>a,b</sup> | 4.83±0.88 | **22.75±1.80** | 19.17±1.15 | **2.71±1.48** | 1.0 | 0.88 | 3 |
| framefusion\\_moe (recommended) | **5.67±0.52** | 15.00±1.98 | 18.00±4.29 | 8.23±2.26 | 9.0 | 0.30 | 3 |
| &emsp;*paper* <sup>1</sup> | *25.87±0.33* |  |  |  |  |  |  |
| *Keeps pairs of earlier tasks* |  |  |  |  |  |  |  |
| er\\_ring:share-5 | 9.08±0.63 | 43.67±0.38 | 7.00±0.50 | 0.83±1.26 | 2.0 | 0.88 | 3 |

- a note

## Reading

"""


def test_a_printed_table_is_read_with_its_blocks():
    titles, lines = lines_of(TABLE)
    assert titles[:3] == ["Method", "R@1 ↑", "R@5 ↑"]
    assert [(line.name, line.block) for line in lines] == [
        ("zero_shot", "Trains on the current task"),
        ("clip4clip", "Trains on the current task"),
        ("framefusion_moe (recommended)", "Trains on the current task"),
        ("er_ring:share-5", "Keeps pairs of earlier tasks"),
    ]
    assert lines[1].signs == ("a", "b")
    assert lines[1].value("R@5 ↑") == (22.75, 1.8)


def test_a_column_that_significantly_reverses_an_order_is_found():
    """The order in R@1 may be noise; MedR has the order of R@1, and an untrained row cannot forget."""
    (found,) = reversals(TABLE, "framefusion_moe, clip4clip and zero_shot")
    assert [found[0].name, found[1].name, found[2]] == ["framefusion_moe (recommended)", "clip4clip", ["R@5", "BWF"]]
    assert list(reversals(TABLE, "framefusion_moe and er_ring:share-5")) == []
    assert list(reversals(TABLE, "framefusion_moe alone")) == []
    wide = TABLE.replace("15.00±1.98", "15.00±9.98").replace("8.23±2.26", "8.23±9.26")
    assert list(reversals(wide, "framefusion_moe and clip4clip")) == []


@pytest.mark.parametrize(
    ("prose", "expected"),
    [
        ("`er_ring:share-5` replays", True),
        ("er_ring:share-5: a row", True),
        ("er_ring:share-50", False),
        ("er_ring", False),
        ("lwf_er_ring:share-5", False),
    ],
)
def test_a_row_is_named_by_its_whole_label(prose, expected):
    assert is_named(lines_of(TABLE)[1][3], prose) == expected


def test_the_statement_is_at_the_start_of_the_reading_once():
    page = f"{TABLE}`framefusion_moe` is above `clip4clip`.\n"
    once = with_statement(page)
    assert once.partition("## Reading\n\n")[2] == f"{statement(page)}\n\n`framefusion_moe` is above `clip4clip`.\n"
    assert with_statement(once) == once
    assert "`framefusion_moe (recommended)` is better than `clip4clip` in R@1 and worse in R@5 and BWF." in once
    assert with_statement(once.replace("`framefusion_moe` is above `clip4clip`.", "Nothing.")) == f"{TABLE}Nothing.\n"


def _unnamed(page: str, prose: str) -> list[str]:
    """Return the pairs and columns of `reversals` that no paragraph or list item of the prose names together."""
    parts = re.split(r"\n\n|\n- ", prose)
    missing = []
    for better, worse, columns in reversals(page, prose):
        said = " ".join(part for part in parts if is_named(better, part) and is_named(worse, part))
        missing += [f"{better.name}, {worse.name}: {column}" for column in columns if column not in said]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reading_names_every_column_that_reverses_an_order_of_two_rows_that_it_names(page):
    text = page.read_text(encoding="utf-8")
    assert _unnamed(text, text.partition("\n## Reading")[2]) == []


def test_readme_names_every_column_that_reverses_an_order_of_two_rows_that_it_names():
    page = (ROOT / "results/make-sweep.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(
        r"^\|.*\n", "", readme[readme.index("`make sweep` printed") : readme.index("## Where to go")], flags=re.M
    )
    assert _unnamed(page, prose) == []


def test_the_omission_of_an_earlier_reading_is_found():
    page = (
        f"{TABLE}- `framefusion_moe` is above `clip4clip`. Rows differ more in R@5.\n- MedR and BWF are in the table.\n"
    )
    assert _unnamed(page, page.partition("\n## Reading")[2]) == ["framefusion_moe (recommended), clip4clip: BWF"]
