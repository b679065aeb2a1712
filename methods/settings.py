"""`setting`: a field of a Config dataclass, with all that help, search spaces and tables report of it.

A fact of a method about a setting that it does not declare itself stands in its Config as a plain attribute:
UNPUBLISHED lists dotted names (`optim.weight_decay`, `method.lr` of a shared base class), ROW_UNPUBLISHED maps a
configuration with a name of its own (`sta`) to the whole list of its row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

EXACT = "for exact reproduction of a release"  # heading of the settings with `exact`


@dataclass(frozen=True)
class Setting:
    """Facts about one setting; see `setting`."""

    doc: str
    unpublished: bool = False
    later: bool = False
    at_most: str | None = None
    depth: bool = False
    exact: bool = False
    paper: str | None = None


def setting(
    default: Any = dataclasses.MISSING,
    *,
    doc: str,
    unpublished: bool = False,
    later: bool = False,
    at_most: str | None = None,
    depth: bool = False,
    exact: bool = False,
    paper: str | None = None,
) -> Any:
    """Declare a field of a Config dataclass.

    Args:
        default: value without a word of the user; a setting without one is required.
        doc: noun phrase with its unit, for `ctvr methods`, the schema and the page of settings.
        unpublished: no paper prints the value for the method's row, so tables name it in a footnote. It is then that of
            a released code, or ours.
        later: no task before the second reads it, by the method's default settings; a grouped search draws it in a
            group of trials that share their first task.
        at_most: field that it must not exceed; points of a search above it are the same trial as its value.
        depth: number of blocks of the vision tower; a search of a smaller tower has as many values as blocks.
        exact: exists for exact reproduction of a release; listed under that heading.
        paper: value in the paper's words, where `default` departs from it; tables name it in a footnote.
    """
    facts = Setting(doc, unpublished, later, at_most, depth, exact, paper)
    return dataclasses.field(default=default, metadata={"setting": facts})


def settings_of(config: type) -> dict[str, Setting]:
    """Map each field of a Config dataclass that is declared by `setting` to its facts."""
    found = {field.name: field.metadata.get("setting") for field in dataclasses.fields(config)}
    return {name: facts for name, facts in found.items() if isinstance(facts, Setting)}


def unpublished(config: type, row: str = "") -> tuple[str, ...]:
    """List the dotted settings that no paper publishes for a method's row, or for a configuration named `row`."""
    rows: dict[str, tuple[str, ...]] = getattr(config, "ROW_UNPUBLISHED", {})
    if row in rows:
        return rows[row]
    own = [f"method.{name}" for name, facts in settings_of(config).items() if facts.unpublished]
    return (*own, *getattr(config, "UNPUBLISHED", ()))
