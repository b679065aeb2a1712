"""Page of all settings, generated from the dataclasses that validate them, for tools/reference_pages.py."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ctvr.methods import EVERY_METHOD
from ctvr.methods.settings import EXACT, groups_of, settings_of, variants_with_settings
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
from ctvr.orchestrator.settings.presets import get_method

HEAD = "<!-- generated: python -m tools.reference_pages -->"


def settings_page() -> str:
    """Return the page of all settings: type, default, allowed values, meaning, and for `method.*` the methods."""
    lines = ["# Settings", "", HEAD, ""]
    lines += [
        "Generated from the dataclasses that validate them. A setting is an argument `name=value` of `ctvr run` and",
        "`ctvr sweep`, a line of a `--config` file, and a key of `ctvr.run(settings=...)`. Limits of numbers were",
        "found by trying values with all other settings at their default; a method may reject further combinations.",
        "A stream's recommendation overrides a default, a preset overrides both, and an argument overrides all.",
    ]
    titles = {"": ("Of a run", RunConfig), **{f"{name}.": (f"`{name}.*`", config) for name, config in GROUPS.items()}}
    titles["search."] = ("`search.*`, of a sweep", SearchConfig)
    for prefix, (title, config) in titles.items():
        rows = [(row_line((f"`{prefix}{name}`", *rest)), name in _exact(config)) for name, *rest in _fields(config)]
        lines += ["", f"## {title}", "", *_folded(f"{prefix}*", rows)]
    lines += ["", "## `method.*`", "", "A strategy hands `base.*` to its retriever, as its `method.*`.", ""]
    owners: dict[tuple[str, ...], list[str]] = {}
    for method in EVERY_METHOD:
        for field in _fields(get_method(method).Config):
            owners.setdefault(field, []).append(f"[`{method}`](methods.md#{method})")
    exact = set[str]().union(*(_exact(get_method(method).Config) for method in EVERY_METHOD))
    rows = [
        (row_line((f"`method.{name}`", *rest, ", ".join(methods))), name in exact)
        for (name, *rest), methods in sorted(owners.items())
    ]
    return "\n".join([*lines, *_folded("method.*", rows, "methods"), *_group_lines()]) + "\n"


def _group_lines() -> list[str]:
    """Return, for each group, a table of its settings with the values of the group's `name` that select them."""
    owners: dict[str, dict[tuple[str, ...], list[str]]] = {}
    exact = set[tuple[str, ...]]()
    for method in EVERY_METHOD:
        for group, variants in groups_of(get_method(method).Config).items():
            for variant, names in variants_with_settings(variants):
                for field in _fields(variant):
                    listed = owners.setdefault(group, {}).setdefault(field, [])
                    listed += [f"`{name}`" for name in names if f"`{name}`" not in listed]
                    exact |= {field} if field[0] in _exact(variant) else set()
    lines = []
    for group, fields in owners.items():
        prefix = f"method.{group}."
        rows = [
            (row_line((f"`{prefix}{field[0]}`", *field[1:], ", ".join(names))), field in exact)
            for field, names in sorted(fields.items())
        ]
        lines += [
            "",
            f"## `{prefix}*`",
            "",
            f"Each setting exists with the values of `{prefix}name` that it names.",
            "",
        ]
        lines += _folded(f"{prefix}*", rows, f"`{prefix}name`")
    return lines


def _exact(config: type) -> set[str]:
    return {name for name, facts in settings_of(config).items() if facts.exact}


def _folded(names: str, rows: list[tuple[str, bool]], *more: str) -> list[str]:
    """Return the table of ordinary settings, then that of settings that only reproduce a release exactly."""
    head = ("setting", "type", "default", "allowed", "meaning", *more)
    lines = [*table_head(head), *(row for row, is_exact in rows if not is_exact)]
    if exact := [row for row, is_exact in rows if is_exact]:
        lines += ["", f"### `{names}` {EXACT}", "", *table_head(head), *exact]
    return lines


def _fields(config: type) -> Iterator[tuple[str, ...]]:
    """Yield name, type, default, allowed values and meaning of each field, as text."""
    hints, facts, groups = typing.get_type_hints(config), settings_of(config), groups_of(config)
    for field in dataclasses.fields(config):
        if variants := groups.get(field.name):
            words = ", ".join(f"`{word}`" for word in variants)
            name = f"{field.name}.name"
            yield name, "word", f"`{field.default.name}`", words, facts[name].doc
            continue
        if field.name not in facts:
            continue  # `name` of a variant, which selects it
        required = field.default is dataclasses.MISSING
        default = "required" if required else f"`{value_text(field.default)}`" if field.default != "" else "empty"
        yield field.name, _kind(hints[field.name]), default, _allowed(config, field.name), facts[field.name].doc


def value_text(value: Any) -> str:
    """Return a setting's value as the user types it on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(value_text, value)) or "()"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _kind(hint: Any) -> str:
    """Return the name that the page gives to a type, such as `whole number`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [_kind(kind) for kind in typing.get_args(hint) if kind is not type(None)]
        return " or ".join([*kinds, *(["none"] if type(None) in typing.get_args(hint) else [])])
    if typing.get_origin(hint) is Literal:
        return "word"
    if typing.get_origin(hint) is tuple:
        return f"{_kind(typing.get_args(hint)[0])}, by comma"
    return {str: "text", int: "whole number", float: "number", bool: "true, false"}[hint]


def _allowed(config: type, name: str) -> str:
    """Return the allowed values of a field: those of a Literal, or a number's limits, found by trying values."""
    hint = typing.get_type_hints(config)[name]
    if words := [word for kind in (hint, *typing.get_args(hint)) for word in _words(kind)]:
        return ", ".join(f"`{word}`" for word in dict.fromkeys(words))
    kinds = {hint, *typing.get_args(hint)}
    if bool in kinds or not kinds & {int, float}:
        return ""
    given = {field.name: "x" for field in dataclasses.fields(config) if field.default is dataclasses.MISSING}
    is_whole = float not in kinds
    tried = (-1, 0, 1, 2, 3) if is_whole else (-1.0, 0.0, 0.5, 1.0, 1.5)
    fits = [value for value in tried if _is_taken(config, {**given, name: value})]
    if not fits or (typing.get_origin(hint) is tuple):
        return ""
    low = "" if fits[0] == tried[0] else f">= {fits[0]}" if is_whole or fits[0] != 0.5 else "> 0"
    high = "" if fits[-1] == tried[-1] or is_whole else "<= 1" if fits[-1] == 1 else "< 1"
    return ", ".join(filter(None, (low, high)))


def _words(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _is_taken(config: type, values: Settings) -> bool:
    try:
        config(**values)
    except (ValueError, TypeError):
        return False
    return True


def table_head(titles: Iterable[str]) -> list[str]:
    """Return the header and the separator line of a Markdown table."""
    titles = list(titles)
    return [row_line(titles), "|---" * len(titles) + "|"]


def row_line(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
