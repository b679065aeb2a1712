"""Footnotes of table rows on the authors' release that a method reproduces, and on settings that differ from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ctvr.methods.settings import settings_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.memo import remembered
from ctvr.orchestrator.tables.footnotes import method_of
from ctvr.orchestrator.tables.setting_diff import is_equal
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.verified import PROVES_CODE, Verified, equals, of_method
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

NO_RECIPE = "no recipe of the authors was compared"
BY_DATA = ("num_frames",)  # determined by the data
SHOWN = 6  # maximum number of settings in a footnote


def with_verified(table: Table, runs: Sequence[RunRecord]) -> Table:
    """Add a footnote to each row whose method was verified against its authors' code."""
    by_id = {run.run_id: run for run in runs}
    rows = []
    for row in table.rows:
        run = by_id.get(row.runs[0]) if row.runs else None
        note = verified_note(run) if run is not None else ""
        rows.append(replace(row, marks=(*row.marks, note)) if note else row)
    return replace(table, rows=tuple(rows))


def verified_note(run: RunRecord) -> str:
    """Return a footnote on the release that a run's method reproduces, and the run's differences; "" if none."""
    return "; ".join(_note(run, entry) for entry in of_method(method_of(run)))


def _note(run: RunRecord, entry: Verified) -> str:
    """Return the footnote on one release: the parts in which the row matches it, or the differences from it."""
    recipe, parts = _recipe(run, entry), {"forward pass": _list_differences(run, entry, "forward")}
    parts["loss"] = _list_differences(run, entry, "loss")
    if not any(parts.values()):
        is_whole = "differs in" not in recipe and recipe != NO_RECIPE
        return "; ".join(filter(None, [equals(entry) if is_whole else equals(entry, PROVES_CODE), recipe]))
    said = [f"{name} ({_join_some(found)})" for name, found in parts.items() if found]
    differs = f"this row differs from it in its {' and its '.join(said)}"
    return f"the preset {entry.preset} is compared with the release: {equals(entry)}; {differs}; {recipe}"


def _list_differences(run: RunRecord, entry: Verified, part: str) -> list[str]:
    """List the settings of a part of the method in which a run differs from the compared preset."""
    code = remembered(["forward and loss of a preset", entry.method, entry.preset], lambda: _code(entry))
    pairs = {
        name: (as_text(run.settings[name]), value) for name, value in code.get(part, {}).items() if name in run.settings
    }
    return [f"{name} {ours} ({entry.preset} {its})" for name, (ours, its) in pairs.items() if not is_equal(ours, its)]


def _code(entry: Verified) -> dict[str, dict[str, str]]:
    """Return the settings of a preset, including defaults, by the part of the method that they change."""
    from ctvr.orchestrator.settings.resolve import resolve_method  # imports torch

    found: dict[str, dict[str, str]] = {"forward": {}, "loss": {}, "recipe": {}}
    try:
        made = resolve_method(entry.method, {}, [entry.preset])
    except ConfigError:  # the record is of a removed method
        return found
    for group, config in (("method", made.method), ("base", made.base)):
        for name, facts in settings_of(type(config)).items() if config is not None else ():
            if f"{group}.{name}" in made.settings and name not in BY_DATA:
                found[facts.part][f"{group}.{name}"] = as_text(made.settings[f"{group}.{name}"])
    return found


def _join_some(found: Sequence[str]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{', '.join(found[:SHOWN])}{more}"


def _preset(entry: Verified) -> dict[str, Any]:
    """Return values, release and settings of our own choice (`ours`) of an entry's recipe; {} without a recipe."""
    from ctvr.methods.base import Recipe  # imports torch
    from ctvr.orchestrator.settings.presets import presets_of

    try:
        found = presets_of(entry.method).get(entry.preset)
    except ConfigError:  # the record is of a removed method
        return {}
    if not isinstance(found, Recipe):
        return {}
    return {"values": dict(found), "release": found.release, "ours": list(found.ours)}


def _recipe(run: RunRecord, entry: Verified) -> str:
    recipe = remembered(["recipe", entry.method, entry.preset], lambda: _preset(entry))
    if not recipe:
        return NO_RECIPE
    code = remembered(["forward and loss of a preset", entry.method, entry.preset], lambda: _code(entry))
    others = {*code.get("forward", {}), *code.get("loss", {})}
    known = {name: value for name, value in recipe["values"].items() if name in run.settings and name not in others}
    pairs = {name: (as_text(run.settings[name]), as_text(value)) for name, value in known.items()}
    found = [f"{name} {ours} ({entry.preset} {its})" for name, (ours, its) in pairs.items() if not is_equal(ours, its)]
    own = [f"{name} {as_text(run.settings[name])}" for name in recipe["ours"] if name in run.settings]
    ours = f"; chosen by us, because the release does not state them: {', '.join(own)}" if own else ""
    whose = "" if _repository(recipe["release"]) == _repository(entry.source) else f" of {recipe['release']}"
    if not found:
        return f"recipe: preset {entry.preset}{whose}{ours}"
    return (
        f"recipe{whose} differs in: {_join_some(found)} (see ctvr methods {entry.method} --preset {entry.preset}){ours}"
    )


def _repository(release: str) -> str:
    """Return the first word of a release, `owner/name`, without its commit."""
    return release.replace(",", " ").split()[0].partition("@")[0]
