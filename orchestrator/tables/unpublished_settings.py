"""Settings of a run that no paper publishes or that deviate from the text of the paper, for the footnotes of tables.

The Config of a method declares these settings, and the bounds between settings (methods/settings.py). Ray is not
imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, find_method
from ctvr.methods import settings as declared
from ctvr.orchestrator.memo import remembered

TEXT = "chosen by us, because no paper publishes these values: {settings}"
DEPARTURES = "deviates from its paper's text, for reasons given in the method's source file: {settings}"


def unpublished(method: str) -> tuple[str, ...]:
    """List the settings of a method or configuration that no paper publishes, or () for a plug-in."""
    return tuple(_facts(method)["unpublished"])


def deviations(method: str) -> dict[str, str]:
    """Map each setting whose default deviates from the text of the paper to the value in that text."""
    return dict(_facts(method)["paper"])


def at_most(method: str) -> dict[str, str]:
    """Map each setting that another setting bounds from above to that other setting."""
    return dict(_facts(method)["at_most"])


@cache
def _facts(method: str) -> dict[str, Any]:
    """Return the values of `unpublished`, `deviations` ("paper") and `at_most`; all are empty for a plug-in."""
    owner = CONFIGURATIONS.get(method, (method, ""))[0]
    if owner not in EVERY_METHOD:
        return {"unpublished": (), "paper": {}, "at_most": {}}
    found: dict[str, Any] = remembered(["facts of settings", method], lambda: _declared(owner, method))
    return found


def _declared(owner: str, row: str) -> dict[str, Any]:
    config = find_method(owner).Config
    facts = declared.settings_of(config)
    return {
        "unpublished": declared.unpublished(config, row),
        "paper": {f"method.{name}": each.paper for name, each in facts.items() if each.paper is not None},
        "at_most": {f"method.{name}": f"method.{each.at_most}" for name, each in facts.items() if each.at_most},
    }


def names_of(settings: Mapping[str, Any], row: str = "") -> tuple[str, ...]:
    """List the settings of a run that no paper publishes. Settings of a wrapped retriever are named `base.*`."""
    own = unpublished(row or str(settings.get("method", "")))
    wrapped = unpublished(str(settings.get("method.base", "")))
    return tuple(dict.fromkeys([*own, *(name.replace("method.", "base.", 1) for name in wrapped)]))


def footnote(settings: Mapping[str, Any], row: str = "") -> str:
    """Return the footnote that lists the unpublished settings of a run, or "" if papers publish all of them.

    The footnote of a strategy also lists the settings of the retriever that it wraps.

    Args:
        settings: flat settings of the run.
        row: name of the configuration, if the run has a named configuration.
    """
    listed = [f"{name}={settings[name]}" for name in names_of(settings, row) if name in settings]
    return TEXT.format(settings=", ".join(listed)) if listed else ""


def departures(settings: Mapping[str, Any], row: str = "") -> str:
    """Return the footnote that lists the settings in which a run deviates from the text of its paper, or ""."""
    words = deviations(row or str(settings.get("method", "")))
    differing = {name: word for name, word in words.items() if str(settings.get(name, word)) != word}
    listed = [f"{name} {settings[name]} (paper {word})" for name, word in differing.items()]
    return DEPARTURES.format(settings=", ".join(listed)) if listed else ""
