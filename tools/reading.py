"""Check of a results page's part `Reading`: it must name the columns that reverse the order of two rows.

If a reading says that one row is better than another in the first column, it must name the columns in which the second
row is significantly better. `statement` writes these sentences for all pairs of rows that a reading names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy import special

from ctvr.orchestrator.tables.table import LEVEL

HEADING = "\n## Reading\n\n"
START = "**Other columns reverse the order of some rows** (p < 0.05, Welch's test over seeds)."
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")


@dataclass(frozen=True)
class Line:
    """A row of a printed table: its name, its block's title, and its cells by column, such as `R@5 ↑`."""

    name: str
    block: str
    cells: Mapping[str, str]
    signs: tuple[str, ...] = ()  # signs of its footnotes

    def value(self, title: str) -> tuple[float, float]:
        """Return mean and sample standard deviation of a cell; NaN if the cell is not a number."""
        found = NUMBER.fullmatch(self.cells.get(title, "").strip("*"))
        if found is None:
            return math.nan, math.nan
        return float(found[1]), float(found[2] or "nan")


def lines_of(text: str) -> tuple[list[str], list[Line]]:
    """Return the titles and the rows of a page's table, without the numbers of papers."""
    printed = re.findall(r"^\| .+ \|$", text.partition("\n## ")[0], re.MULTILINE)
    titles, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in printed[:1] + printed[2:]]
    found, block = [], ""
    for name, *cells in rows:
        if not any(cells) and name.startswith("*"):
            block = name.strip("*")
        elif not name.startswith("&emsp;"):
            signs = re.findall(r"<sup>(.*?)</sup>", name)
            label = re.sub(r"<sup>.*?</sup>|\\", "", name)
            found.append(Line(label, block, dict(zip(titles[1:], cells)), tuple(",".join(signs).split(","))))
    return titles, found


def is_named(line: Line, prose: str) -> bool:
    """Return whether prose names a row by its label, or by its label without a final part in brackets."""
    names = {line.name, re.sub(r" \(.+\)$", "", line.name)}
    return any(re.search(rf"(?<![\w:]){re.escape(name)}(?!\w|[:-]\w)", prose) for name in names)


def reversed_columns(first: Line, second: Line, titles: Sequence[str]) -> list[str]:
    """Return the columns in which the order of two rows is significantly opposite to that in the first column."""
    main, *others = (title for title in titles if title.endswith((" ↑", " ↓")))
    if {first.cells.get("Params (M)"), second.cells.get("Params (M)")} & {"0.00"}:  # an untrained row cannot forget
        others = [title for title in others if title[:-2] not in ("BWF", "FR", "Forgetting")]
    order = _order(first, second, main)
    return [
        title[:-2] for title in others if order * _order(first, second, title) < 0 and _p(first, second, title) < LEVEL
    ]


def _order(first: Line, second: Line, title: str) -> float:
    """Return a number above 0 if `first` is better than `second` in the column `title`, below 0 if it is worse."""
    difference = first.value(title)[0] - second.value(title)[0]
    return -difference if title.endswith("↓") else difference


def _p(first: Line, second: Line, title: str) -> float:
    """Return the p-value of Welch's test over seeds; 1 without standard deviations, as in columns of costs."""
    (a, own), (b, other) = first.value(title), second.value(title)
    sizes = [int(line.cells["Seeds"]) for line in (first, second)]
    parts = [(0.0 if math.isnan(spread) else spread**2) / size for spread, size in zip((own, other), sizes)]
    if (variance := sum(parts)) == 0 or not math.isfinite(a - b):
        return 1.0
    freedom = variance**2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes) if part)
    return float(2 * special.stdtr(freedom, -abs(a - b) / math.sqrt(variance)))


def reversals(text: str, prose: str) -> Iterator[tuple[Line, Line, list[str]]]:
    """Yield each pair of rows that prose names and other columns reverse: better row, worse row, these columns."""
    titles, lines = lines_of(text)
    main = next((title for title in titles if title.endswith((" ↑", " ↓"))), "")
    named = [line for line in lines if is_named(line, prose)]
    for pair in combinations(named, 2):
        better, worse = pair if _order(*pair, main) >= 0 else pair[::-1]
        if found := reversed_columns(better, worse, titles):
            yield better, worse, found


def statement(text: str) -> str:
    """Return the sentences on the columns that reverse the order of two rows of a page; empty if there are none."""
    _, _, prose = text.partition(HEADING)
    titles, _ = lines_of(text)
    main = next((title[:-2] for title in titles if title.endswith((" ↑", " ↓"))), "")
    said = [
        f"`{better.name}` is better than `{worse.name}` in {main} and worse in {_listed(columns)}"
        for better, worse, columns in reversals(text, without_statement(prose))
    ]
    return f"{START} {'. '.join(said)}." if said else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def without_statement(prose: str) -> str:
    """Return a reading without the paragraph that `statement` has written."""
    return re.sub(rf"^{re.escape(START)}.*\n\n?", "", prose, flags=re.MULTILINE)


def with_statement(text: str) -> str:
    """Return a page whose reading begins with the current `statement`."""
    page, heading, prose = text.partition(HEADING)
    if not heading:
        return text
    prose = without_statement(prose)
    said = statement(text)
    return f"{page}{heading}{said}\n\n{prose}" if said else f"{page}{heading}{prose}"
