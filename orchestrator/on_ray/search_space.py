"""Search space of a sweep as plain data; Ray is not needed to write or read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SearchConfig, TrialPlan

Condition = tuple[str, list[Any]]  # another searched setting, and its values
WHERE = " where "


@dataclass(frozen=True)
class SearchSpace:
    """Search space of a sweep, and the two points to evaluate first."""

    space: Mapping[str, Any]  # setting -> domain of Ray Tune
    paper: Mapping[str, Any]  # setting -> the paper's value
    recommended: Mapping[str, Any]  # setting -> its value in a run without a search
    stream: Mapping[str, Any] = field(default_factory=dict)  # settings that the stream recommends
    later: tuple[str, ...] = ()  # settings of `space` that no task before the second reads
    at_most: Mapping[str, str] = field(default_factory=dict)  # setting -> setting of `space` that it must not exceed
    listed: tuple[str, ...] = ()  # settings of `space` whose values the user listed; each value is tried
    conditions: Mapping[str, Condition] = field(default_factory=dict)  # setting -> its condition, if any

    def applies(self, name: str, point: Mapping[str, Any]) -> bool:
        """Return whether a setting is searched at a point: its condition and the conditions of its parents hold."""
        if name not in self.conditions:
            return True
        other, values = self.conditions[name]
        return point.get(other) in values and self.applies(other, point)

    def applicable(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point without the settings that are not searched at this point."""
        return {name: value for name, value in point.items() if self.applies(name, point)}

    def parents_first(self) -> list[str]:
        """Return the names of all settings, sorted so that each follows the setting that its condition names."""

        def depth(name: str) -> int:
            return 1 + depth(self.conditions[name][0]) if name in self.conditions else 0

        return sorted(self.space, key=depth)


@dataclass(frozen=True)
class RowPlan:
    """Plan and search space of one row of a table."""

    plan: TrialPlan
    space: SearchSpace


def parse_values(word: str, option: str = "--space") -> tuple[str, list[Any]]:
    """Split `name=v1,v2` of --space or --vary into the setting and its values.

    A condition (`parse_condition`) is not returned.

    Raises:
        ConfigError: if it has no `=` or no value.
    """
    name, equals, values = word.partition(WHERE)[0].partition("=")
    listed = [_parse_value(value.strip()) for value in values.split(",") if value.strip()]
    if remedy := _describe_mistake(name.strip(), values.strip()):
        raise ConfigError(f"{word!r}: {remedy}", option)
    if not equals or not name.strip() or not listed:
        raise ConfigError(f"{word!r} is not name=VALUE,VALUE", option, remedy="Use for example method.beta=0.4,0.6.")
    return name.strip(), listed


def _describe_mistake(name: str, values: str) -> str:
    """Return the error and the remedy for malformed values of a setting; "" for a list of values."""
    if name.startswith(WHERE.lstrip()):
        return f"its setting is missing. Use for example method.rank=1,2 {name}=VALUE."
    if found := re.search(r"\s+(where|when|if)\b\s*(.*)$", values):
        what = "a condition is missing after 'where'" if found[1] == "where" else f"{found[1]!r} must be 'where'"
        whole = f"{name}={values[: found.start()]} where {found[2] or 'method.base=lwf'}"
        return f"{what}. Use for example {whole}."
    plain = ",".join(filter(None, (text.strip("[](){} ") for text in values.split(","))))
    if values[:1] in ("[", "(", "{"):
        return f"values must not be in brackets. Use {name}={plain}."
    number = r"\d*\.?\d+(?:e[-+]?\d+)?"
    interval = rf"({number})(?:\.\.+|:|-)({number})|\w+\(({number}), *({number})\)"
    if found := re.fullmatch(interval, values, re.IGNORECASE):
        ends = ",".join(filter(None, found.groups()))
        return f"must list values, not a range. Use for example {name}={ends}."
    if re.fullmatch(rf"{number}(\s+{number})+", values, re.IGNORECASE):
        return f"values must be separated by commas. Use {name}={','.join(values.split())}."
    return f"one of its values is empty. Use {name}={plain}." if re.search(r",\s*,", values) else ""


def parse_condition(word: str) -> tuple[str, Condition] | None:
    """Return the setting and the condition of `name=v1,v2 where other=w1,w2`; None without `where`.

    Raises:
        ConfigError: if the condition has no `=` or no value.
    """
    name, where, condition = word.partition(WHERE)
    return (parse_values(name)[0], parse_values(condition, f"--space: {word!r}: where")) if where else None


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def within(point: Mapping[str, Any], at_most: Mapping[str, str]) -> dict[str, Any]:
    """Return a point in which values that exceed their bound (`SearchSpace.at_most`) are reduced to the bound."""
    bounded = {name: bound for name, bound in at_most.items() if name in point and bound in point}
    return {**point, **{name: min(point[name], point[bound]) for name, bound in bounded.items()}}


def is_grouped(search: SearchConfig, space: SearchSpace) -> bool:
    """Return whether groups of trials share their first task.

    The searcher must be grouped_tpe, and the first task must read some of the searched settings, but not all.
    """
    return search.searcher == "grouped_tpe" and 0 < len(set(space.later) & set(space.space)) < len(space.space)
