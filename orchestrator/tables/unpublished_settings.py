"""The settings of a run that no paper publishes, for the footnotes of tables.

Search spaces list them (UNPUBLISHED). They are parsed here, not imported: importing Ray Tune takes seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ctvr.methods import CONFIGURATIONS

TEXT = "set by us, since no paper publishes them for this row: {settings}"
DEPARTURES = "departs from its paper's words, as the method's file explains, in: {settings}"


@cache
def unpublished(method: str) -> tuple[str, ...]:
    """Return UNPUBLISHED of search_spaces/<method>.py; empty for a method without a search space.

    A configuration may have its own under CONFIGURATIONS in the file of its method.

    Raises:
        ValueError: if the file does not define them as a plain tuple of strings.
    """
    path, assigned = _assigned(method)
    own = _entry(_entry(assigned.get("CONFIGURATIONS"), method), "UNPUBLISHED")
    if (found := own or assigned.get("UNPUBLISHED")) is not None:
        return tuple(ast.literal_eval(found))
    if not path:
        return ()
    raise ValueError(f"{path}: has no UNPUBLISHED. Write UNPUBLISHED = () if its paper prints every value.")


@cache
def deviations(method: str) -> dict[str, str]:
    """Return DEVIATIONS of search_spaces/<method>.py: setting -> the paper's text, where preset `paper` differs."""
    found = _assigned(method)[1].get("DEVIATIONS")
    return {} if found is None else {name: str(value) for name, value in ast.literal_eval(found).items()}


@cache
def at_most(method: str) -> dict[str, str]:
    """Return UPPER_BOUNDS of search_spaces/<method>.py: setting -> the setting that it must not exceed."""
    found = _assigned(method)[1].get("UPPER_BOUNDS")
    return {} if found is None else dict(ast.literal_eval(found))


def _assigned(method: str) -> tuple[str, dict[str, ast.expr]]:
    """Return the file of a method's search space and its assignments; empty if there is none."""
    method = CONFIGURATIONS.get(method, (method, ""))[0]
    spec = find_spec(f"ctvr.search_spaces.{method}") if method.isidentifier() else None
    if spec is None or spec.origin is None:
        return "", {}
    statements = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    assignments = [statement for statement in statements if isinstance(statement, ast.Assign)]
    return spec.origin, {getattr(each.targets[0], "id", ""): each.value for each in assignments}


def _entry(table: ast.expr | None, name: str) -> ast.expr | None:
    """Return the value of a key in a dictionary literal; None if there is none."""
    if not isinstance(table, ast.Dict):
        return None
    found = (value for key, value in zip(table.keys, table.values) if getattr(key, "value", None) == name)
    return next(found, None)


def names_of(settings: Mapping[str, Any], row: str = "") -> tuple[str, ...]:
    """Return the settings of a run that no paper publishes, those of a wrapped retriever as `base.*`."""
    own = unpublished(row or str(settings.get("method", "")))
    wrapped = unpublished(str(settings.get("method.base", "")))
    return tuple(dict.fromkeys([*own, *(name.replace("method.", "base.", 1) for name in wrapped)]))


def footnote(settings: Mapping[str, Any], row: str = "") -> str:
    """Return the footnote of a run with these flat settings; empty if papers publish all of them.

    `row` is the configuration of the run, if it has its own name.

    A strategy's footnote also lists the settings of the retriever that it wraps.
    """
    listed = [f"{name}={settings[name]}" for name in names_of(settings, row) if name in settings]
    return TEXT.format(settings=", ".join(listed)) if listed else ""


def departures(settings: Mapping[str, Any], row: str = "") -> str:
    """Return the footnote of a run whose settings deviate from its paper's text, as preset `paper` does."""
    words = deviations(row or str(settings.get("method", "")))
    differing = {name: word for name, word in words.items() if str(settings.get(name, word)) != word}
    listed = [f"{name} {settings[name]} (paper {word})" for name, word in differing.items()]
    return DEPARTURES.format(settings=", ".join(listed)) if listed else ""
