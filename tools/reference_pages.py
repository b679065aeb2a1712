"""`python -m tools.reference_pages [--out docs]`: write the pages of the documentation that are made from the code.

These are settings, methods, the papers' items, and one page for each paper.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from methods import CONFIGURATIONS, EVERY_METHOD
from methods.base import Change, Recipe
from orchestrator.config import Settings
from orchestrator.jobs.meanings import meanings_of
from orchestrator.learning.experiment import GROUPS, RunConfig
from orchestrator.learning.resolve import configured, find, presets_of, resolve, with_recipe
from orchestrator.on_ray.plan import SearchConfig
from orchestrator.tables.paper_items import read as read_items
from orchestrator.tables.unpublished_settings import departs, unpublished
from orchestrator.tables.verified import equals, of_method
from orchestrator.tables.verified import read as read_verified

DOCS = Path("docs")
HEAD = "<!-- written by: python -m tools.reference_pages -->"
# Which methods a paper proposes or compares first; their settings stand on its page
OF_PAPER = {
    "framefusion": ("framefusion_moe",),
    "camoe": ("camoe", "dsl"),
    "structalign": ("structalign",),
    "bmu": ("base_moco", "bmu_moco", "bmu_moco_local", "bmu_fixed", "bmu_ensemble"),
    "tempme": ("tempme", "tome", "evit", "sta", "diffrate", "testa", "lora", "prompt", "adapter"),
}


def main(argv: list[str] | None = None) -> int:
    """Write all pages below a folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference_pages", description="Write the reference pages.")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="of the pages (%(default)s)")
    out: Path = parser.parse_args(argv).out
    for name, text in pages().items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
        print(out / name)
    return 0


def pages() -> dict[str, str]:
    """File below docs/ -> its text."""
    papers = {f"papers/{paper}.md": paper_page(paper) for paper in OF_PAPER}
    return {"settings.md": settings_page(), "methods.md": methods_page(), **papers}


# --- settings ---------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting: type, default, what is allowed, meaning; of `method.*` also whose it is."""
    lines = ["# Settings", "", HEAD, ""]
    lines += [
        "Written from the dataclasses that check them. A setting is a `name=value` word of `ctvr run` or `ctvr sweep`,",
        "a line of a `--config` file, and a key of `ctvr.run(settings=...)`. Numbers are tried out: a limit is what",
        "the class refuses while all else has its default; a method may refuse combinations beyond that, with a line",
        "that says so. What a stream recommends goes before a default, a preset before that, a word before both.",
    ]
    titles = {"": ("Of a run", RunConfig), **{f"{name}.": (f"`{name}.*`", config) for name, config in GROUPS.items()}}
    titles["search."] = ("`search.*`, of a sweep", SearchConfig)
    for prefix, (title, config) in titles.items():
        lines += ["", f"## {title}", "", *_table(("setting", "type", "default", "allowed", "meaning"))]
        lines += [_row((f"`{prefix}{name}`", *rest)) for name, *rest in _fields(config)]
    lines += ["", "## `method.*`", ""]
    lines += [
        "A strategy hands `base.*` to the retriever that it wraps: `base.lr` is that retriever's `method.lr`.",
        "",
    ]
    lines += _table(("setting", "type", "default", "allowed", "meaning", "methods"))
    owners: dict[tuple[str, ...], list[str]] = {}
    for method in EVERY_METHOD:
        for field in _fields(find(method).Config):
            owners.setdefault(field, []).append(f"[`{method}`](methods.md#{method})")
    for (name, *rest), methods in sorted(owners.items()):
        lines.append(_row((f"`method.{name}`", *rest, ", ".join(methods))))
    return "\n".join(lines) + "\n"


def _fields(config: type) -> Iterator[tuple[str, ...]]:
    """Name, type, default, allowed values and meaning of each field, as text."""
    hints, meanings = typing.get_type_hints(config), meanings_of(config)
    for field in dataclasses.fields(config):
        required = field.default is dataclasses.MISSING
        default = "required" if required else f"`{_value(field.default)}`" if field.default != "" else "empty"
        yield field.name, _kind(hints[field.name]), default, _allowed(config, field.name), meanings.get(field.name, "")


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_value, value)) or "()"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _kind(hint: Any) -> str:
    """A type in the words of the command line."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [_kind(kind) for kind in typing.get_args(hint) if kind is not type(None)]
        return " or ".join([*kinds, *(["none"] if type(None) in typing.get_args(hint) else [])])
    if typing.get_origin(hint) is Literal:
        return "word"
    if typing.get_origin(hint) is tuple:
        return f"{_kind(typing.get_args(hint)[0])}, by comma"
    return {str: "text", int: "whole number", float: "number", bool: "true, false"}[hint]


def _allowed(config: type, name: str) -> str:
    """The words of a Literal; of a number the limits that the class has, found by asking it."""
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


# --- methods ----------------------------------------------------------------------------------------------------


def methods_page() -> str:
    """Every method: what its file says, what it was checked against, presets, what a sweep searches."""
    lines = ["# Methods", "", HEAD, ""]
    lines += [
        "What each method's file says of itself, its presets and what `ctvr sweep` searches. `ctvr methods NAME`",
        "prints the settings, `ctvr methods NAME --preset PRESET` what a preset changes, with sources. Its settings",
        "are those of [settings.md](settings.md#method) that name it. A configuration is a method with a preset that",
        "has a name of its own.",
    ]
    for name in (*EVERY_METHOD, *CONFIGURATIONS):
        lines += ["", f"## {name}", "", *_method(name)]
    return "\n".join(lines) + "\n"


def _method(name: str) -> list[str]:
    if name in CONFIGURATIONS:
        method, preset = CONFIGURATIONS[name]
        lines = [f"[`{method}`](#{method}) with preset `{preset}`.", ""]
    else:
        doc = inspect.getdoc(inspect.getmodule(find(name))) or ""
        lines = ["```text", doc.strip(), "```", ""]
    checked = "; ".join(map(equals, of_method(name))) or "the equations of its paper (no code)"
    lines.append(f"Checked against: {checked}.")
    presets = presets_of(name)
    kinds = [f"`{preset}`{' (a change)' if isinstance(values, Change) else ''}" for preset, values in presets.items()]
    lines += ["", f"Presets: {', '.join(kinds)}."]
    if searched := _searched(name):
        lines += ["", "A sweep searches", "", *_table(("setting", "values"))]
        lines += [_row((f"`{setting}`", f"`{values}`")) for setting, values in searched.items()]
    return lines


def _searched(name: str) -> dict[str, str]:
    """SPACE of search_spaces/<name>.py as it is written there; Ray is not loaded for it."""
    spec = find_spec(f"search_spaces.{name}")
    if spec is None or spec.origin is None:
        return {}
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "SPACE":
            space = statement.value
            if isinstance(space, ast.Dict):
                pairs = zip(space.keys, space.values)
                return {str(key.value): ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}
    return {}


# --- papers -----------------------------------------------------------------------------------------------------


def paper_page(paper: str) -> str:
    """A paper's page: what of it runs, its methods' settings, what is not published, what was verified."""
    title = read_items()[0][paper]
    lines = [f"# {title}", "", HEAD, "", "## What runs", "", *_table(("item", "shows", "runs"))]
    for item in read_items()[1]:
        if item.item.partition("/")[0] == paper:
            told = "; ".join([f"`{item.command}`" if item.preset else f"no: {item.why}", *item.notes])
            lines.append(_row((f"`{item.item}`", item.shows, told)))
    for name in OF_PAPER[paper]:
        lines += ["", f"## {name}", "", f"What its file says: [methods.md](../methods.md#{name})."]
        lines += _recipes(name)
        lines += _open(name)
    return "\n".join(lines) + "\n"


def _recipes(name: str) -> list[str]:
    """The method's own settings and those of its whole recipes, side by side where they differ."""
    recipes = {preset: values for preset, values in presets_of(name).items() if not isinstance(values, Change)}
    shown = {preset: _resolved(name, preset) for preset in recipes if preset != "shapes"}
    own = [key for key in shown["paper"] if key.startswith("method.") or key.partition(".")[0] in ("optim", "data")]
    more = dict.fromkeys(key for settings in shown.values() for key in settings if key.startswith("base."))
    lines = [
        "",
        "Settings in which its recipes differ:",
        "",
        *_table(("setting", *(f"`{preset}`" for preset in shown))),
    ]
    differing = [key for key in [*own, *more] if len({_value(s.get(key, "")) for s in shown.values()}) > 1]
    lines += [
        _row((f"`{key}`", *(f"`{_value(s[key])}`" if key in s else "" for s in shown.values()))) for key in differing
    ]
    if not differing:
        owner = configured(name, ())[0]
        lines = ["", f"One recipe, `paper`: the defaults of [settings.md](../settings.md#method) that name `{owner}`."]
    for preset, values in recipes.items():
        if isinstance(values, Recipe):
            lines += ["", f"Preset `{preset}` is {values.release}."]
            lines += [f" Of the command, without a counterpart here: {'; '.join(values.left_out)}."] * bool(
                values.left_out
            )
    return lines


def _resolved(name: str, preset: str) -> Settings:
    made = resolve({"method": name, "stream": "any"}, {}, with_recipe(name, (preset,), {"preset": "paper"}))
    return {key: tuple(v) if isinstance(v, list) else v for key, v in made.settings.items()}


def _open(name: str) -> list[str]:
    """What no paper publishes, where we depart from its words, and what was held against the authors' code."""
    settings = _resolved(name, "paper")
    lines = []
    if missing := [key for key in unpublished(name) if key in settings]:
        lines += ["", "No paper publishes these values; they are ours or the released code's:", ""]
        lines += [f"- `{key}={_value(settings[key])}`" for key in missing]
    if words := departs(name):
        lines += ["", "Preset `paper` departs from the paper's words in:", ""]
        lines += [f"- `{key}={_value(settings.get(key, ''))}`; the paper: {said}" for key, said in words.items()]
    lines += ["", "What was verified:", ""]
    lines += [
        f"- preset `{each.preset}`: {equals(each)}" + f"; not compared: {each.open}" * bool(each.open)
        for each in of_method(name)
    ]
    for row in read_verified()[0]:
        if row.method == name:
            lines.append(
                f"- against {row.against}" + f"; could not be verified, or differs: {row.note}" * bool(row.note)
            )
    return lines


def _table(titles: Iterable[str]) -> list[str]:
    titles = list(titles)
    return [_row(titles), "|---" * len(titles) + "|"]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
