"""Declaration of settings as fields of a Config, with properties for help texts, search spaces and tables.

`setting` declares a field that holds one value.

`group` declares a field that holds one of several dataclasses, selected by its `name`: `method.reducer.name=evit
method.reducer.keep_rate=0.5`. Each has only its own settings.

For settings that a Config does not declare itself, it states properties by plain attributes:
UNPUBLISHED lists dotted names (`optim.weight_decay`, `method.lr` of a shared base class), ROW_UNPUBLISHED maps a
named configuration (`sta`) to the whole list of its row.
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
        doc: noun phrase with its unit, for `ctvr methods`, the schema and the page of settings.
        unpublished: whether no paper prints the value for the method's row, so that tables name it in a footnote. The
            value is then from a released code, or our choice.
        later: whether the first task does not read it, with default values of the other settings. A grouped search
            varies it among trials that share their first task.
        at_most: field that it must not exceed; a search treats larger values as equal to the value of that field.
        depth: whether it counts blocks of the vision tower; a search on a tower with fewer blocks has fewer values.
        exact: whether it exists only for exact reproduction of a release; it is listed under that heading.
        paper: value as the paper states it, if `default` differs; tables name it in a footnote.
        part: part of the method that it changes. forward: features or scores; loss: the loss, but not these; recipe:
            neither, for a batch and given weights. A test probes it.
    """
    facts = Setting(doc, unpublished, later, at_most, depth, exact, paper, part)
    return dataclasses.field(default=default, metadata={"setting": facts})


class SettingError(ValueError):
    """A value outside its range, or settings that exclude each other; raised by a Config or a method's constructor.

    Names of settings are written `<name>` in the fault and the remedy. The command line shows them with their group, so
    that a method's `SettingError("<depth> must be <= <layers>, got 9 and 4")` begins `method.depth must be ...`.

    Attributes:
        fault: what is wrong, without a full stop.
        remedy: what to do, as a whole sentence; "" if unknown.
        write: `<name>=value`, a correction that a command may apply; "" if unknown. It is shown if no remedy is given.
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
        """Return the settings that the fault names, in order; if it names none, those of the correction."""
        return [self.qualify(group, f"<{name}>") for name in _NAME.findall(self.fault) or _NAME.findall(self.write)]


def require(config: object, bound: str, *names: str, hint: str = "") -> None:
    """Refuse settings outside a bound, in `__post_init__`; a setting of None passes.

    Args:
        config: the Config that has the settings.
        bound: ">= NUMBER", "> NUMBER", or "in " and an interval: "in [0, 1)".
        names: settings to check.
        hint: remedy, the end of the message.

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
        later: whether the first task does not read `name`; see `setting`.
    """
    metadata = {"setting": Setting(doc, later=later), "variants": dict(variants)}
    return dataclasses.field(default=variants[default](name=default), metadata=metadata)


def groups_of(config: type) -> dict[str, Mapping[str, type]]:
    """Map each field that is declared by `group` to its variants."""
    found = {field.name: field.metadata.get("variants") for field in dataclasses.fields(config)}
    return {name: variants for name, variants in found.items() if variants is not None}


def settings_of(config: type) -> dict[str, Setting]:
    """Map each setting of a Config to its properties; a group adds `field.name` and the settings of all variants.

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
    """Yield each dataclass of a group that has settings, with the values of `name` that select it."""
    for cls in dict.fromkeys(variants.values()):
        if settings_of(cls):
            yield cls, tuple(name for name, other in variants.items() if other is cls)


def unpublished(config: type, row: str = "") -> tuple[str, ...]:
    """List the dotted settings that no paper publishes for a method's row, or for a configuration named `row`."""
    rows: dict[str, tuple[str, ...]] = getattr(config, "ROW_UNPUBLISHED", {})
    if row in rows:
        return rows[row]
    own = [f"method.{name}" for name, facts in settings_of(config).items() if facts.unpublished]
    return (*own, *getattr(config, "UNPUBLISHED", ()))
