"""JSON schema of settings (`ctvr methods --json`), with which editors complete and check a `--config` file.

Types, defaults and descriptions are read from the dataclasses.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins
from ctvr.methods.settings import EXACT, groups_of, settings_of
from ctvr.orchestrator.config import schema_of
from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
from ctvr.orchestrator.settings.presets import get_method, presets_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(method: str = "") -> str:
    """Return the schema as JSON text, with the settings of all methods or of one method.

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
        for name, value in get_method(method).OPTIMIZER.items():
            properties[name] = {**properties[name], "default": value}
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
    """Yield (dotted name, schema) for each field of a dataclass; a group has several entries (see `_group`)."""
    hints, facts, groups = typing.get_type_hints(config), settings_of(config), groups_of(config)
    for each in dataclasses.fields(config):
        if each.name in groups:
            yield from _group(each, groups[each.name], f"{prefix}{each.name}", facts[f"{each.name}.name"].doc)
            continue
        kind = schema_of(hints[each.name])
        if known := facts.get(each.name):
            kind["description"] = f"{known.doc} ({EXACT})" if known.exact else known.doc
        if each.default is not dataclasses.MISSING:
            kind["default"] = list(each.default) if isinstance(each.default, tuple) else each.default
        yield prefix + each.name, kind


def _group(
    field: dataclasses.Field[Any], variants: Mapping[str, type], name: str, doc: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted name, schema) for the entries of a group.

    They are `NAME.name`, each setting `NAME.SETTING` of the variants, and NAME itself. NAME has one `anyOf` schema with
    a mapping for every variant.
    """
    default = field.default.name
    chosen = {"enum": list(variants), "description": doc, "default": default}
    yield f"{name}.name", chosen
    kinds: dict[str, list[dict[str, Any]]] = {}
    mappings = []
    for variant in dict.fromkeys(variants.values()):
        words = [word for word, other in variants.items() if other is variant]
        own = {word: kind for word, kind in _fields(variant, "") if word != "name"}
        needed = {} if default in words else {"required": ["name"]}
        known = {"name": {**chosen, "enum": words}, **own}
        mappings.append({"type": "object", "properties": known, "additionalProperties": False, **needed})
        for word, kind in own.items():
            about = f"with {name}.name={' or '.join(words)}: {kind.get('description', '')}"
            kinds.setdefault(word, []).append({**kind, "description": about})
    yield from ((f"{name}.{word}", each[0] if len(each) == 1 else {"anyOf": each}) for word, each in kinds.items())
    yield name, {"anyOf": mappings}
