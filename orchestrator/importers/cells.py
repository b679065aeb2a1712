"""Rows of tables as text, from .csv files of any program and from JSON lines."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.console import printable
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.captions import captions_of
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.text_files import MAX_BYTES, lines_of, read_text

SEPARATORS = {",": "commas", ";": "';'", "\t": "tabs", "|": "'|'"}
# Word in tables and in data sets of the Hugging Face hub -> split
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
# Column of published tables -> our column
_OTHER_NAMES = {
    **dict.fromkeys(("video_id", "videoid", "vid", "video_name", "file_name", "filename", "youtube_id"), "video"),
    **dict.fromkeys(("sentence", "text", "description", "query", "captions"), "caption"),
}
# mm:ss or hh:mm:ss with decimals; seconds are below 60, and so are minutes after hours. pandas writes 0 days hh:mm:ss
_CLOCK = re.compile(r"(?:0 days )?(?:(\d+):(?=[0-5]?\d:))?(\d+):([0-5]?\d(?:[.,]\d+)?)", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?")


def read_csv(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), offers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[int, dict[str, str]]]:
    """Read a .csv file with a header; yield (line number, column -> stripped text) for each row.

    Columns that are neither in `required` nor in `optional` are ignored.

    Cells are separated by commas, or by `;`, tabs or `|` if the header then has the required columns. Letter case of
    the header is ignored unless another column has the same name.

    Args:
        offers: missing column -> what the remedy proposes to add.

    Raises:
        ConfigError: if the file is missing or not text, a column is missing, or a required cell is empty.
    """
    table = open_table(path, required)
    if not any(table.header):
        raise ConfigError("is empty", path, remedy=f"Add a header with the columns {', '.join(required)}.")
    if table.header[0][:1] in ("{", "["):
        raise ConfigError(f"{path}: is JSON, not a table. Use a .csv file with the columns {', '.join(required)}.")
    if missing := [name for name in required if name not in table.header]:
        listed = ", ".join(map(repr, missing))
        hint = "" if len(missing) > 1 else suggest(missing[0], table.header)
        known = {_OTHER_NAMES.get(name.lower()): name for name in reversed(table.header)}
        renamed = [f"{known[name]!r} to {name!r}" for name in missing if name in known]
        between = "" if table.separator == "," else f", separated by {SEPARATORS[table.separator]},"
        hint = hint or f" The header{between} has: {printable(', '.join(table.header))[:200].rstrip('.')}."
        if renamed:
            hint += f" Rename {' and '.join(renamed)}."
        elif {*missing} <= {*offers}:
            hint = hint if "Did you mean" in hint else ""
            remedy = f"Add {' and '.join(offers[name] for name in missing)}."
            raise ConfigError(f"line 1: no column {listed}.{hint}".rstrip("."), path, remedy=remedy)
        elif not known.keys() - {None} and not set(table.header).intersection((*required, *optional)):
            hint += f" Line 1 must be a header with {', '.join(required)}, each further line a caption."
        elif len(missing) > 1:
            hint += " Rename the columns."
        raise ConfigError(f"line 1: no column {listed}.{hint}", path)
    for line, row in table.rows:
        cells = {name: row.get(name, "").strip() for name in (*required, *optional)}
        empty = [name for name in required if not cells[name]]
        if empty:
            raise ConfigError(f"line {line}: {empty[0]} is empty", path, remedy="Fill it in.")
        yield line, cells


@dataclass(frozen=True)
class Table:
    """A .csv file: its header, and its rows as (line number, column -> unchanged text)."""

    separator: str
    header: list[str]
    rows: Iterator[tuple[int, dict[str, str]]]


def open_table(path: Path, wanted: Sequence[str]) -> Table:
    """Read the header of a .csv file; for JSON lines, the header consists of the keys of the first object.

    Args:
        wanted: column names; the separator that yields the most of them is used, by default the comma.
    """
    text = read_text(path)
    csv.field_size_limit(MAX_BYTES)
    first, _, rest = text.partition("\n")
    if _is_object(first):
        return Table(",", list(json.loads(first)), ((n, _to_cells(row)) for n, row in read_json_lines(path)))
    told = first.strip().removeprefix("sep=") if first.startswith("sep=") else ""  # Excel's own first line
    body, skipped = (rest, 1) if told in SEPARATORS else (text, 0)
    headers = {each: _header(path, body, each, wanted) for each in ([told] if skipped else SEPARATORS)}
    separator = max(headers, key=lambda each: len(set(wanted).intersection(headers[each])))
    return Table(separator, headers[separator], _rows(path, body, separator, headers[separator], skipped))


def _to_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of an object as cells: a text unchanged, null as an empty cell, anything else as JSON."""
    empty = {name: "" for name, value in row.items() if value is None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()} | empty


def _header(path: Path, text: str, separator: str, wanted: Sequence[str]) -> list[str]:
    try:
        names = [name.strip() for name in next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])]
    except csv.Error as error:
        raise _no_csv(path, 1, error) from error
    for name in wanted:
        if names.count(name) > 1:
            raise ConfigError(f"line 1: has {names.count(name)} columns {name!r}", path, remedy="Keep one of them.")
    folded = [name.casefold() for name in names]
    for name in wanted:
        if name not in names and folded.count(name) == 1:
            names[folded.index(name)] = name
    return names


def _rows(
    path: Path, text: str, separator: str, header: list[str], skipped: int
) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1  # first line of the row being read
    try:
        next(reader, None)
        line = reader.line_num + skipped + 1
        for row in reader:
            if any(cell.strip() for cell in row[len(header) :]):
                raise ConfigError(
                    f"{path}: line {line}: has {len(row)} cells, but the header has {len(header)}. Put a caption with "
                    f"{SEPARATORS[separator]} into double quotes."
                )
            if any(cell.strip() for cell in row):  # spreadsheets write rows of empty cells
                yield reader.line_num + skipped, dict(zip(header, row))
            line = reader.line_num + skipped + 1
    except csv.Error as error:
        raise _no_csv(path, line, error) from error


def _no_csv(path: Path, line: int, error: csv.Error) -> ConfigError:
    return ConfigError(
        f"{path}: line {line}: not a .csv file ({error}). Put the cell into double quotes, and double those within it."
    )


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file of JSON lines: yield (line number, object). Blank lines are skipped.

    Raises:
        ConfigError: if the file is missing or not text, or a line is not an object.
    """
    for number, text in enumerate(lines_of(read_text(path)), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number}: not JSON ({error})", path, remedy="Correct this line.") from error
        if not isinstance(row, dict):
            raise ConfigError(f"line {number}: is not an object", path, remedy='Use {"file_name": ...}.')
        yield number, row


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read objects from a list in JSON, or from JSON lines: yield (position in the file, object).

    Raises:
        ConfigError: in the cases of `read_json` and `read_json_lines`, and if the file contains neither.
    """
    first = next((line for line in lines_of(read_text(path)) if line.strip()), "")
    if _is_object(first):
        yield from ((f"line {number}", row) for number, row in read_json_lines(path))
        return
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("is not a list of objects", path, remedy="Use the published file unchanged.")
    yield from ((f"entry {number}", row) for number, row in enumerate(rows))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def captions_in(where: str, cell: str) -> list[str]:
    """Return the captions of a cell.

    Args:
        where: file and line, for messages.

    Raises:
        ConfigError: in the cases in which `captions_of` raises ValueError.
    """
    try:
        return captions_of(cell)
    except ValueError as error:
        raise ConfigError(f"caption {error}", where) from None


def segment_of(where: str, start: Any, end: Any) -> tuple[float, float] | None:
    """Return the start and end of a segment in seconds; None if both cells are empty (None or "").

    A cell is a number of seconds, or text: such a number, mm:ss or hh:mm:ss, with decimals after a point (or, after
    a colon, a comma).

    Args:
        where: file and line, for messages.

    Raises:
        ConfigError: if a cell is anything else, or only one of them is empty.
    """
    cells = [None if cell == "" else cell for cell in (start, end)]
    if cells == [None, None]:
        return None
    try:
        return _seconds(cells[0]), _seconds(cells[1])
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{where}: start {start!r:.40} and end {end!r:.40} are not two numbers. Use seconds, mm:ss or hh:mm:ss, "
            "or leave both empty."
        ) from None


def _seconds(cell: Any) -> float:
    if not isinstance(cell, str):
        return float(cell)
    if clock := _CLOCK.fullmatch(cell.strip()):
        return 60 * (60 * int(clock[1] or 0) + int(clock[2])) + float(clock[3].replace(",", "."))
    if "_" in cell:  # Python reads 1_5 as 15
        raise ValueError
    return float(cell)


def in_order(tasks: Iterable[str], source: object = "tasks") -> list[str]:
    """Sort task names by value if all are numbers; otherwise keep their order.

    Numbers may have decimals, because pandas writes a column of integers with missing values as 1.0, 2.0, 10.0.

    Args:
        source: the file, for messages.

    Raises:
        ConfigError: if two names are the same number.
    """
    names = list(tasks)
    if not all(_NUMBER.fullmatch(name) for name in names):
        return names
    numbers: dict[Decimal, str] = {}
    for name in names:
        if (other := numbers.setdefault(Decimal(name), name)) != name:
            raise ConfigError(f"{source}: tasks {other!r} and {name!r} are the same number. Use one spelling.")
    return sorted(names, key=Decimal)
