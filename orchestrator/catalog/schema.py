"""JSON schema of all settings, by which an editor completes and checks a `--config` file (`ctvr schema`).

Types, defaults and descriptions are read from the dataclasses.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins
from ctvr.methods.settings import EXACT, settings_of
from ctvr.orchestrator.config import schema_of
from ctvr.orchestrator.learning.experiment import GROUPS, RunConfig
from ctvr.orchestrator.learning.resolve import get_method, presets_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(method: str = "") -> str:
    """Return the schema as JSON text, of all settings or of one method's, which then refuses others.

    Raises:
        ConfigError: for an unknown method.
    """
    return json.dumps(schema(method), indent=1)


def schema(method: str = "") -> dict[str, Any]:
    """Return the schema as plain data (see `schema_text`)."""
    names = [method] if method else [*EVERY_METHOD, *CONFIGURATIONS, *plugins()]
    properties: dict[str, Any] = dict(_fields(RunConfig, ""))
    properties["preset"] = {"type": "string", "description": "a recipe and changes on top of it, comma-separated"}
    for group, config in GROUPS.items():
        properties |= _fields(config, f"{group}.")
        properties[group] = _mapping(config)
    made: dict[str, Any] = {"$schema": DIALECT, "title": f"Settings of ctvr, {method or 'all methods'}"}
    made |= {"type": "object", "properties": properties}
    choices = {"enum": names}
    if method:
        properties |= _of_method(method)
        properties["method"] = {
            "anyOf": [choices, {**_mapping(get_method(method).Config), "description": "with its name"}]
        }
        properties["method"]["anyOf"][1]["properties"]["name"] = choices
        made["additionalProperties"] = False
    else:
        properties["method"] = {"anyOf": [choices, {"type": "object", "properties": {"name": choices}}]}
        made["allOf"] = [
            {"if": {"properties": {"method": {"const": name}}, "required": ["method"]}, "then": _then(name)}
            for name in names
        ]
    if method and get_method(method).wraps:
        made["patternProperties"] = {r"^base\.": {}}
        properties["base"] = {"type": "object"}
    return made


def _then(method: str) -> dict[str, Any]:
    return {"properties": _of_method(method), "propertyNames": {"anyOf": [{"enum": list(_of_method(method))}, _OTHERS]}}


_OTHERS = {"not": {"pattern": r"^method\."}}


def _of_method(name: str) -> dict[str, Any]:
    found = dict(_fields(get_method(name).Config, "method."))
    presets = ", ".join(presets_of(name))
    return {**found, "preset": {"type": "string", "description": f"comma-separated: {presets}"}}


def _mapping(config: type) -> dict[str, Any]:
    return {"type": "object", "properties": dict(_fields(config, "")), "additionalProperties": False}


def _fields(config: type, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Dotted name -> schema of each field of a dataclass of settings."""
    hints, facts = typing.get_type_hints(config), settings_of(config)
    for each in dataclasses.fields(config):
        kind = schema_of(hints[each.name])
        if known := facts.get(each.name):
            kind["description"] = f"{known.doc} ({EXACT})" if known.exact else known.doc
        if each.default is not dataclasses.MISSING:
            kind["default"] = list(each.default) if isinstance(each.default, tuple) else each.default
        yield prefix + each.name, kind
