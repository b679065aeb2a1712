"""Declaration of settings as fields of a Config, with properties for help texts, search spaces and tables.

`setting` declares a field that holds one value.

`group` declares a field that holds one of several dataclasses, selected by its `name`: `method.reducer.name=evit
method.reducer.keep_rate=0.5`. Each dataclass has only its own settings.

Two class attributes of a Config state which values no paper gives, for settings that the Config does not declare:
UNPUBLISHED lists dotted names (`optim.weight_decay`, or `method.lr` of a shared base class). ROW_UNPUBLISHED maps a
named configuration (`sta`) to the complete list of its row, which replaces UNPUBLISHED and all `unpublished=True`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["forward", "loss", "recipe"]
_NAME = re.compile(r"<([a-z][\w.]*)>")
EXACT = "for exact reproduction of a release"  # heading of the settings with `exact`


@dataclass(frozen=True)
class Setting:
    """Declared properties of one setting; `setting` explains them."""

    doc: str
    unpublished: bool = False
    later: bool = False
    at_most: str | None = None
    depth: bool = False
    exact: bool = False
    paper: str | None = None
    part: Part = "forward"


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
    part: Part = "forward",
) -> Any:
    """Declare a field of a Config dataclass.

    Args:
        default: value if the user gives none; a setting without a default is required.
        doc: noun phrase that describes the setting, with its unit, for `ctvr methods`, the schema and docs/settings.md.
        unpublished: whether no paper prints the value for the method's row; tables then name it in a footnote. The
            value is from a released code, or our choice.
        later: whether only tasks after the first read the setting, if all other settings have their default values. A
            grouped search varies it among trials that share their first task.
        at_most: field that it must not exceed; a search treats larger values as equal to the value of that field.
        depth: whether it counts blocks of the vision tower; a search leaves out values above the tower's blocks.
        exact: whether it exists only for exact reproduction of a release; it is listed under that heading.
        paper: value that the paper states, if `default` differs; tables name it in a footnote.
        part: part of the method that the setting changes, for a given batch and given weights. forward: features or
            scores; loss: the loss, but not these; recipe: neither. A test checks it.
    """
    facts = Setting(doc, unpublished, later, at_most, depth, exact, paper, part)
    return dataclasses.field(default=default, metadata={"setting": facts})


class SettingError(ValueError):
    """Error for a value outside its range, or for settings that exclude each other.

    A Config or the constructor of a method raises it. Fault and remedy contain names of settings as `<name>`. The
    command line shows these with their group: `SettingError("<depth> must be <= <layers>, got 9 and 4")` of a method is
    shown as `method.depth must be <= method.layers, got 9 and 4`.

    Attributes:
        fault: what is wrong, without a full stop.
        remedy: what to do, as a whole sentence; "" if unknown.
        write: correction `<name>=value`, which a command may apply; "" if unknown. It is shown if `remedy` is "".
    """

    def __init__(self, fault: str, remedy: str = "", write: str = "") -> None:
        super().__init__(fault, remedy, write)
        self.fault, self.remedy, self.write = fault, remedy, write

    def __str__(self) -> str:
        fault, remedy, write = (self.qualify("", text) for text in self.args)
        return f"{fault}. {remedy or (write and f'Use {write}.')}".rstrip()

    @staticmethod
    def qualify(group: str, text: str) -> str:
        """Replace each `<name>` in a text by `group.name`, or by `name` if the group is ""."""
        return _NAME.sub(rf"{group}.\1" if group else r"\1", text)

    def settings(self, group: str) -> list[str]:
        """Return the settings that `fault` names, in order, with their group; if it names none, those in `write`."""
        return [self.qualify(group, f"<{name}>") for name in _NAME.findall(self.fault) or _NAME.findall(self.write)]


def require(config: object, bound: str, *names: str, hint: str = "") -> None:
    """Check in `__post_init__` that settings are within a bound; a setting whose value is None is not checked.

    Args:
        config: the Config that has the settings.
        bound: ">= NUMBER", "> NUMBER", or "in " and an interval: "in [0, 1)".
        names: settings to check.
        hint: remedy, with which the message ends.

    Raises:
        SettingError: for the first setting outside the bound, with its name, the bound, the value and the hint.
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and not _is_within(value, bound):
            raise SettingError(f"<{name}> must be {bound}, got {value}", hint)


def _is_within(value: float, bound: str) -> bool:
    if bound.startswith("in "):
        low, high = (float(limit) for limit in bound[4:-1].split(","))
        return low < value < high or (value == low and bound[3] == "[") or (value == high and bound[-1] == "]")
    kind, limit = bound.split()
    return value > float(limit) or (value == float(limit) and kind == ">=")


def group(variants: Mapping[str, type], default: str, *, doc: str, later: bool = False) -> Any:
    """Declare a field of a Config dataclass that holds one of several dataclasses.

    Args:
        variants: value of `name` -> dataclass, which has a field `name` and the settings that exist with it.
        default: value of `name` if the user gives none.
        doc: noun phrase that describes `name`.
        later: whether only tasks after the first read `name`; see `setting`.
    """
    metadata = {"setting": Setting(doc, later=later), "variants": dict(variants)}
    return dataclasses.field(default=variants[default](name=default), metadata=metadata)


def groups_of(config: type) -> dict[str, Mapping[str, type]]:
    """Return the variants of each field that `group` declares in a Config, by the name of the field."""
    found = {field.name: field.metadata.get("variants") for field in dataclasses.fields(config)}
    return {name: variants for name, variants in found.items() if variants is not None}


def settings_of(config: type) -> dict[str, Setting]:
    """Return the properties of each setting of a Config; a group adds `field.name` and the settings of all variants.

    If several variants have a setting of one name, the properties are from the default variant if it has the setting,
    and otherwise from the first variant that has it.
    """
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(config):
        facts = field.metadata.get("setting")
        variants = field.metadata.get("variants", {})
        for variant in (type(field.default), *variants.values()) if variants else ():
            for name, each in settings_of(variant).items():
                bound = each.at_most and f"{field.name}.{each.at_most}"
                found.setdefault(f"{field.name}.{name}", dataclasses.replace(each, at_most=bound))
        if isinstance(facts, Setting):
            found[f"{field.name}.name" if variants else field.name] = facts
    return found


def variants_with_settings(variants: Mapping[str, type]) -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield each dataclass of a group that declares settings, with the values of `name` that select the dataclass."""
    for cls in dict.fromkeys(variants.values()):
        if settings_of(cls):
            yield cls, tuple(name for name, other in variants.items() if other is cls)


def unpublished(config: type, row: str = "") -> tuple[str, ...]:
    """Return the dotted settings whose values no paper gives, for a method's row or for the configuration `row`."""
    rows: dict[str, tuple[str, ...]] = getattr(config, "ROW_UNPUBLISHED", {})
    if row in rows:
        return rows[row]
    own = [f"method.{name}" for name, facts in settings_of(config).items() if facts.unpublished]
    return (*own, *getattr(config, "UNPUBLISHED", ()))
