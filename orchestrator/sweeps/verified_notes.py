"""Footnotes of table rows: the release that a method equals, and the settings in which its recipe differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.memo import remembered
from ctvr.orchestrator.tables.footnotes import method_of
from ctvr.orchestrator.tables.setting_diff import is_equal
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.verified import Verified, equals, of_method
from ctvr.orchestrator.tracking.run_record import RunRecord, as_text

NO_RECIPE = "no recipe of the authors was compared"
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
    """Return a footnote on the release that a run's method equals, with its recipe's differences; "" if none."""
    return "; ".join(f"{equals(entry)}; {_recipe(run, entry)}" for entry in of_method(method_of(run)))


def _preset(entry: Verified) -> dict[str, Any]:
    """Return the recipe of an entry with its release and the settings that it leaves to us; {} if there is none."""
    from ctvr.methods.base import Recipe  # imports torch
    from ctvr.orchestrator.learning.resolve import presets_of

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
    known = {name: value for name, value in recipe["values"].items() if name in run.settings}
    pairs = {name: (as_text(run.settings[name]), as_text(value)) for name, value in known.items()}
    found = [f"{name} {ours} ({entry.preset} {its})" for name, (ours, its) in pairs.items() if not is_equal(ours, its)]
    own = [f"{name} {as_text(run.settings[name])}" for name in recipe["ours"] if name in run.settings]
    ours = f"; ours, because it does not state them: {', '.join(own)}" if own else ""
    whose = "" if _repository(recipe["release"]) == _repository(entry.source) else f" of {recipe['release']}"
    if not found:
        return f"recipe: preset {entry.preset}{whose}{ours}"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    listed = f"{', '.join(found[:SHOWN])}{more}"
    return f"recipe{whose} differs in: {listed} (see ctvr methods {entry.method} --preset {entry.preset}){ours}"


def _repository(release: str) -> str:
    """Return the first word of a release, `owner/name`, without its commit."""
    return release.replace(",", " ").split()[0].partition("@")[0]
