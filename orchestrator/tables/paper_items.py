"""List of every table and figure with results in the five papers, with its command or the reason for not running.

The data are in `paper_items.json` in this folder:

    {"papers": {"tempme": "TempMe (Shen et al., ICLR 2025, ...)"},
     "items": [{"item": "tempme/table2", "shows": "...", "preset": "tempme-table2"},
               {"item": "tempme/table11", "shows": "...", "preset": "tempme-table2", "direction": "v2t", "note": "..."},
               {"item": "tempme/table6", "shows": "...", "why": "UMT is not built"}]}

An item has either a table preset, whose command reproduces it, or `why`. Figures that show a method and no result
(diagrams, illustrations) are not items. `new/...` are tables of this project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ctvr.orchestrator.config import closest, suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.tables.paper_numbers import not_implemented
from ctvr.orchestrator.tables.shown_columns import Direction

FILE = Path(__file__).parent / "paper_items.json"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One table or figure of a paper."""

    item: str  # paper/table2
    shows: str
    preset: str = ""  # table preset that reproduces the item
    direction: Direction = "t2v"
    why: str = ""  # reason why the item does not run
    note: str = ""  # conditions and further commands that `preset` does not contain

    def __post_init__(self) -> None:
        if bool(self.preset) == bool(self.why):
            raise ValueError(f"{self.item}: needs either a preset that reproduces it or the reason why none does.")

    @property
    def command(self) -> str:
        """Return the command that reproduces the item, or "" if the item does not run."""
        return f"ctvr reproduce {self.item}" if self.preset else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes on the item: the rows that this project does not implement, and `note`."""
        rows = not_implemented(self.preset) if self.preset else ()
        missing = (f"rows without a method here: {'; '.join(rows)}",) if rows else ()
        return (*missing, *([self.note] if self.note else []))


CLAIMS = Item(item="claims", shows="headline claims of the papers, tested", preset="claims")  # rows: see claims.py


@cache
def read() -> tuple[dict[str, str], tuple[Item, ...]]:
    """Return the titles of the papers by short name, and all items in the order of the file.

    Raises:
        ValueError: for an item that breaks the format.
    """
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return data["papers"], tuple(Item(**item) for item in data["items"])


def find(name: str) -> Item:
    """Return an item by its name.

    Raises:
        ConfigError: if the item is unknown or does not run; the message gives the reason.
    """
    if name == CLAIMS.item:
        return CLAIMS
    items = {item.item: item for item in read()[1]}
    if owners := [item.item for item in items.values() if item.preset == name]:
        item = closest(name, owners, 0.0)
        raise ConfigError(f"{name!r} is a table's preset", "reproduce", remedy=f"Run: ctvr reproduce {item}")
    if name not in items:
        raise ConfigError(f"{name!r} is unknown.{suggest(name, list(items))} All: ctvr reproduce --list.", "reproduce")
    if items[name].why:
        raise ConfigError(f"{name} ({items[name].shows}) does not run: {items[name].why}.", "reproduce")
    return items[name]


def text() -> str:
    """Return all items as text for a terminal."""
    papers, items = read()
    lines = []
    for paper, title in papers.items():
        lines.append(title)
        for item in items:
            if item.item.partition("/")[0] == paper:
                lines.append(f"  {item.item:<24}  {item.command or 'not: ' + item.why}")
                lines += [f"  {'':<24}    {note}" for note in item.notes]
    runs = sum(bool(item.preset) for item in items)
    claims = "The papers' claims: ctvr reproduce claims --list"
    return "\n".join([*lines, "", claims, f"{runs} of {len(items)} tables and figures run."])
