"""Presets of whole tables, as data: their rows, with one budget and one selection rule for all of them.

A preset is a JSON file, from `orchestrator/tables/table_presets` or from the user:

    {"title": ..., "protocol": "ctvr" | "cvlm" | "ucl" | "qa" | "any", "stream": the default one, "seeds": 3,
     "search": {"trials": 8, "metric": "stream/t2v/r1_gain", ...},    (settings of SearchConfig; 0 trials: no search)
     "settings": {"optim.epochs": 4},                                 (of all rows; optional)
     "columns": ["gmacs", "memory"],                                  (besides the usual ones; optional)
     "on": {"msrvtt": {"data.num_frames": 12}},                       (of all rows on streams of that name; optional)
     "rows": [{"name": "lwf", "searched": true, "settings": {}, "notes": ["how it differs from its paper"]},
              {"name": "camoe:dsl,entity"},
              {"name": "18 frames", "method": "tempme", "presets": ["full"], "settings": {"data.num_frames": 18},
               "on": {"shapes-*": {"data.num_frames": 12}}, "only": ["msrvtt", "shapes-*"]}]}

A row's name is unique in its table: a method, `method:preset,preset`, a configuration with its own name
(`tvr_plus_cl`), or any text if `method` and `presets` are given. Its presets are changes on top of the recipe that the
stream recommends, or begin with another recipe (see settings/resolve.py). Settings of one row take precedence over
settings of all rows, and settings for a stream over settings for every stream. The user's settings take precedence over
all of them. `on` and `only` contain patterns (`shapes-*`) of a stream's name or of its published benchmark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctvr.methods import is_place
from ctvr.orchestrator.config import Settings, build, suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.tables.table_columns import EXTRA

if TYPE_CHECKING:
    More = str
else:
    More = Literal[tuple(EXTRA)]  # a key of table_columns.EXTRA
FOLDER = Path(__file__).parent / "table_presets"
OnStreams = dict[str, dict[str, Any]]  # pattern of a stream's name -> settings


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """Row of a table preset: a method with its settings, which are searched first if `searched` is true."""

    name: str
    method: str = ""  # set if the name is not the method
    presets: tuple[str, ...] = ()
    searched: bool = True
    settings: dict[str, Any] = field(default_factory=dict)  # settings of this row only; the user's take precedence
    on: OnStreams = field(default_factory=dict)
    only: tuple[str, ...] = ()  # streams on which the row can run; empty: all
    notes: tuple[str, ...] = ()  # footnotes
    control: bool = False  # True: our own row, which no paper prints

    def __post_init__(self) -> None:
        if self.method:
            return
        method, presets = split_row(self.name)
        if presets and self.presets:
            raise ValueError(
                f"presets: the name {self.name!r} also lists presets. Keep one of the two, or give `method`."
            )
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "presets", presets or self.presets)

    @property
    def slug(self) -> str:
        """Return the name in a form that can be part of a sweep's name."""
        return re.sub(r"[^A-Za-z0-9_.-]", "-", self.name)

    def is_for(self, streams: Iterable[str]) -> bool:
        """Report whether the row can run on a stream, given the name of the stream and of its published benchmark."""
        return not self.only or any(fnmatchcase(name, pattern) for name in streams for pattern in self.only)


@dataclass(frozen=True, kw_only=True)
class TablePreset:
    """The preset of a whole table."""

    title: str
    protocol: Literal["ctvr", "cvlm", "ucl", "qa", "any"]
    stream: str
    rows: tuple[TableRow, ...]
    seeds: int = 3
    search: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    on: OnStreams = field(default_factory=dict)
    name: str = ""  # name of a table of the package; set by `load_preset`
    varies: tuple[str, ...] = ()  # settings that some rows change one at a time
    columns: tuple[More, ...] = ()  # columns besides the usual ones
    claims: tuple[str, ...] = ()  # names in claims.json that these rows test; set by `claims.preset_of`

    def __post_init__(self) -> None:
        names = [row.slug for row in self.rows]
        if not names:
            raise ValueError("rows: is empty. List at least one method.")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"rows: {name} is listed {names.count(name)} times. Keep one, or rename the others.")

    def only(self, wanted: Sequence[str]) -> TablePreset:
        """Return the table with only the wanted rows, in the table's order. If `wanted` is empty, keep all.

        Args:
            wanted: names of rows, possibly split at their commas.

        Raises:
            ConfigError: if the table lacks a wanted row.
        """
        known = [row.name for row in self.rows]
        chosen = _joined(wanted, known)
        for name in chosen:
            if name not in known:
                raise ConfigError(
                    f"row {name!r} does not exist.{suggest(name, known)} Rows: {'; '.join(known)}.", "--rows"
                )
        return replace(self, rows=tuple(row for row in self.rows if not wanted or row.name in chosen))

    def settings_of(self, row: TableRow, streams: Iterable[str]) -> Settings:
        """Return the settings of a row on a stream with these names, without settings of the user."""
        streams = list(streams)
        return {**self.settings, **_on(self.on, streams), **row.settings, **_on(row.on, streams)}


def split_row(word: str) -> tuple[str, tuple[str, ...]]:
    """Split `method:preset,preset` into the method and its presets; `module:Class` is a method."""
    if is_place(word.strip()):
        return word.strip(), ()
    method, _, presets = word.partition(":")
    return method.strip(), tuple(preset.strip() for preset in presets.split(",") if preset.strip())


def _on(settings: OnStreams, streams: Sequence[str]) -> Settings:
    merged: Settings = {}
    for pattern, values in settings.items():
        if any(fnmatchcase(name, pattern) for name in streams):
            merged.update(values)
    return merged


def _joined(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Rejoin names that were split at their commas. The longest sequence that is a known name becomes one name."""
    names, start = [], 0
    while start < len(words):
        ends = range(len(words), start, -1)
        end = next((end for end in ends if ",".join(words[start:end]) in known), start + 1)
        names.append(",".join(words[start:end]))
        start = end
    return names


def preset_names() -> list[str]:
    """Return the names of the package's tables."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def columns_of(name: str) -> tuple[str, ...]:
    """Return the columns of a table of the package in addition to the usual ones, or () for any other table."""
    return load_preset(name).columns if name in preset_names() else ()


def names_table(word: str) -> bool:
    """Report whether a `--preset` names a whole table, not a preset of a method."""
    return word in preset_names() or word.endswith(".json")


def load_preset(word: str) -> TablePreset:
    """Load a table by its name, or from the user's file.

    Raises:
        ConfigError: for an unknown name, or a malformed file; the message names the field.
    """
    path = Path(word) if word.endswith(".json") else FOLDER / f"{word}.json"
    if word not in preset_names() and not os.path.isfile(path):
        raise ConfigError(f"table {word!r} does not exist. {known_tables(word)}", "--preset")
    data = read_json(path, unique_keys=True)
    try:
        preset = parse_preset(data)
        if not preset.title:  # a search of one method has none
            raise ConfigError("is empty", "title", remedy="Set it to the title of the table.")
        return replace(preset, name=path.stem if path.parent == FOLDER else "")
    except ConfigError as error:
        raise ConfigError(f"{error!s:.400}", path.name) from error


def known_tables(word: str) -> str:
    """Format the list of available tables, preceded by a suggestion for `word`."""
    return f"{suggest(word, preset_names())} Tables: {', '.join(preset_names())}, or a .json file.".strip()


def parse_preset(data: Any) -> TablePreset:
    """Build a preset from plain JSON values.

    Raises:
        ConfigError: at the first error.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("rows", []), list):
        raise ConfigError("is not a table", remedy="Use an object with title, protocol, stream and a list of rows.")
    rows = [_parse_row(row, number) for number, row in enumerate(data.get("rows", []), start=1)]
    rest = {name: value for name, value in data.items() if name != "vary"}
    made = build(TablePreset, {**rest, "rows": tuple(rows)})
    return vary(made, data["vary"]) if "vary" in data else made


def vary(preset: TablePreset, values: Any) -> TablePreset:
    """Return the table with an added row for each listed value of each setting.

    An added row is the first row of the table with one setting changed, and is not searched. `values` maps a setting to
    a list of values.

    Raises:
        ConfigError: if `values` is not an object of lists.
    """
    lists: list[Any] = list(values.values()) if isinstance(values, Mapping) else [None]
    if not all(isinstance(listed, list) and listed for listed in lists) or any(
        isinstance(value, dict) for listed in lists for value in listed
    ):
        raise ConfigError("is not an object of lists", "vary", remedy='Use {"method.beta": [0.2, 0.4]}.')
    first = preset.rows[0]
    rows = [
        replace(first, name=f"{name}={value}", settings={**first.settings, name: value}, searched=False)
        for name, listed in values.items()
        for value in dict.fromkeys(_as_typed(value) for value in listed)
    ]
    return replace(preset, rows=(*preset.rows, *rows), varies=(*preset.varies, *values))


def _as_typed(value: Any) -> Any:
    """Convert a list to command-line syntax (`a,b`). Return any other value unchanged."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _parse_row(data: Any, number: int) -> TableRow:
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise ConfigError(f"rows[{number}]: is {data!r:.60}. Use a method's name, or an object with name.")
    return build(TableRow, data, f"rows[{number}]")
