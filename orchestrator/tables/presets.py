"""Presets of whole tables: which rows, one budget and one rule of selection for all of them. A preset is data.

A preset is a JSON file, of `orchestrator/tables/table_presets` or one's own:

    {"title": ..., "protocol": "ctvr" | "cvlm" | "ucl" | "qa" | "any", "stream": the default one, "seeds": 3,
     "search": {"trials": 8, "metric": "stream/t2v/r1_gain", ...},    (settings of SearchConfig; 0 trials: no search)
     "settings": {"optim.epochs": 4},                                 (of all rows; optional)
     "columns": ["gmacs", "memory"],                                  (beside the usual ones; optional)
     "on": {"msrvtt": {"data.num_frames": 12}},                       (of all rows on streams of that name; optional)
     "rows": [{"name": "lwf", "searched": true, "settings": {}, "notes": ["how it differs from its paper"]},
              {"name": "camoe:dsl,entity"},
              {"name": "18 frames", "method": "tempme", "presets": ["full"], "settings": {"data.num_frames": 18},
               "on": {"shapes-*": {"data.num_frames": 12}}, "only": ["msrvtt", "shapes-*"]}]}

A row's name is unique in its table: a method, `method:preset,preset`, a configuration with a name of its own
(`tvr_plus_cl`), or any words beside `method` and `presets`. Its presets are changes on top of the recipe that the
stream recommends, or begin with another recipe (learning/resolve.py says what that is). Settings of one row win over
those of all rows, those for a stream over those for every stream, and the user's over both. `on` and `only` hold
patterns (`shapes-*`) of a stream's name or of the published benchmark that it is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ctvr.methods import is_place
from ctvr.orchestrator import renamed
from ctvr.orchestrator.config import Settings, build, suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.manifest import read_json

More = Literal["rsum", "gmacs", "tokens", "query_passes", "query_gmacs", "run_seconds", "speed", "memory", "stored"]
FOLDER = Path(__file__).parent / "table_presets"
OnStreams = dict[str, dict[str, Any]]  # pattern of a stream's name -> settings


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row: what is run, and whether its settings are searched first."""

    name: str
    method: str = ""  # of a row that is named otherwise
    presets: tuple[str, ...] = ()
    searched: bool = True
    settings: dict[str, Any] = field(default_factory=dict)  # of this row alone, before the user's
    on: OnStreams = field(default_factory=dict)
    only: tuple[str, ...] = ()  # streams that the row can run on; all if empty
    notes: tuple[str, ...] = ()  # footnotes
    control: bool = False  # a row of ours beside the paper's, which no paper prints

    def __post_init__(self) -> None:
        if self.method:
            return
        method, presets = split_row(self.name)
        if presets and self.presets:
            raise ValueError(f"presets: the name {self.name!r} lists presets too. Keep one of both, or give `method`.")
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "presets", presets or self.presets)

    @property
    def slug(self) -> str:
        """The name as a part of a sweep's name."""
        return re.sub(r"[^A-Za-z0-9_.-]", "-", self.name)

    def is_for(self, streams: Iterable[str]) -> bool:
        """Whether the row can run on a stream that has these names."""
        return not self.only or any(fnmatchcase(name, pattern) for name in streams for pattern in self.only)


@dataclass(frozen=True, kw_only=True)
class TablePreset:
    """A whole table."""

    title: str
    protocol: Literal["ctvr", "cvlm", "ucl", "qa", "any"]
    stream: str
    rows: tuple[TableRow, ...]
    seeds: int = 3
    search: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    on: OnStreams = field(default_factory=dict)
    name: str = ""  # of a table that comes with the package; `load_preset` writes it
    varies: tuple[str, ...] = ()  # settings of which some rows change one, and nothing else
    columns: tuple[More, ...] = ()  # beside the usual

    def __post_init__(self) -> None:
        names = [row.slug for row in self.rows]
        if not names:
            raise ValueError("rows: is empty. List at least one method.")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"rows: {name} is listed {names.count(name)} times. Keep one, or name them apart.")

    def only(self, wanted: Sequence[str]) -> TablePreset:
        """The table with some of its rows, in its order; all of them if none is named.

        Args:
            wanted: names of rows, which may have been split at their commas.

        Raises:
            ConfigError: if it has no such row.
        """
        known = [row.name for row in self.rows]
        chosen = _joined(wanted, known)
        for name in chosen:
            if name not in known:
                raise ConfigError(
                    f"--rows: the table has no row {name!r}.{suggest(name, known)} Rows: {'; '.join(known)}."
                )
        return replace(self, rows=tuple(row for row in self.rows if not wanted or row.name in chosen))

    def settings_of(self, row: TableRow, streams: Iterable[str]) -> Settings:
        """The settings of a row on a stream that has these names, but for the user's."""
        streams = list(streams)
        return {**self.settings, **_on(self.on, streams), **row.settings, **_on(row.on, streams)}


def split_row(word: str) -> tuple[str, tuple[str, ...]]:
    """`method:preset,preset` as the method and its presets; `module:Class` is a method."""
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
    """Names whose commas were taken for those between names: as many neighbours together as make a known one."""
    names, start = [], 0
    while start < len(words):
        ends = range(len(words), start, -1)
        end = next((end for end in ends if ",".join(words[start:end]) in known), start + 1)
        names.append(",".join(words[start:end]))
        start = end
    return names


def preset_names() -> list[str]:
    """The tables that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def columns_of(name: str) -> tuple[str, ...]:
    """What a table of the package shows beside the usual columns; nothing for any other."""
    return load_preset(name).columns if name in preset_names() else ()


def names_table(word: str) -> bool:
    """Whether a `--preset` means a whole table and no preset of a method."""
    return word in preset_names() or word.endswith(".json")


def load_preset(word: str) -> TablePreset:
    """A table by its name, or from a file of one's own.

    Raises:
        ConfigError: for an unknown name, or a file that breaks the format; the message names the field.
    """
    path = Path(word) if word.endswith(".json") else FOLDER / f"{word}.json"
    if word not in preset_names() and not path.is_file():
        raise ConfigError(f"--preset: there is no table {word!r}. {known_tables(word)}")
    data = read_json(path, unique_keys=True)
    try:
        return replace(parse_preset(data), name=path.stem if path.parent == FOLDER else "")
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error!s:.400}") from error


def known_tables(word: str) -> str:
    """The tables there are, the one that `word` resembles first."""
    return f"{suggest(word, preset_names())} Tables: {', '.join(preset_names())}, or a .json file.".strip()


def parse_preset(data: Any) -> TablePreset:
    """A preset from plain values, as JSON has them.

    Raises:
        ConfigError: at the first thing wrong.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("rows", []), list):
        raise ConfigError("is no table. Write an object with title, protocol, stream and a list of rows.")
    rows = [_parse_row(row, number) for number, row in enumerate(data.get("rows", []), start=1)]
    rest = {name: value for name, value in data.items() if name != "vary"}
    made = build(TablePreset, {**rest, "rows": tuple(rows)})
    return vary(made, data["vary"]) if "vary" in data else made


def vary(preset: TablePreset, values: Any) -> TablePreset:
    """The table with a row more for each value of each setting: its first row, of which that one setting is changed.

    Raises:
        ConfigError: for what is no object of lists.
    """
    lists: list[Any] = list(values.values()) if isinstance(values, Mapping) else [None]
    if not all(isinstance(listed, list) and listed for listed in lists) or any(
        isinstance(value, dict) for listed in lists for value in listed
    ):
        raise ConfigError('vary: is no object of lists. Write {"method.beta": [0.2, 0.4]}.')
    first = preset.rows[0]
    rows = [
        replace(first, name=f"{name}={value}", settings={**first.settings, name: value}, searched=False)
        for name, listed in values.items()
        for value in dict.fromkeys(_as_typed(value) for value in listed)
    ]
    return replace(preset, rows=(*preset.rows, *rows), varies=tuple(values))


def _as_typed(value: Any) -> Any:
    """A value of a list; one that is a list itself as it is typed on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _parse_row(data: Any, number: int) -> TableRow:
    if isinstance(data, str):
        data = {"name": data}
    if not isinstance(data, Mapping):
        raise ConfigError(f"rows[{number}]: is {data!r:.60}. Write a method's name, or an object with name.")
    if isinstance(data.get("settings"), Mapping):
        data = {**data, "settings": renamed.settings(data["settings"])}
    return build(TableRow, data, f"rows[{number}]")


def as_data(preset: TablePreset) -> Settings:
    """The inverse of `parse_preset`."""
    return dataclasses.asdict(preset)
