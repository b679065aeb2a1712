"""Names of the settings of a dataclass that holds groups (`group` of methods/settings.py), and mistyped numbers.

A group is a field that holds one of several dataclasses, its variants; the setting `field.name` selects one.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))


def variants_of(cls: type[Any], group: str) -> Mapping[str, type[Any]]:
    """Return the dataclasses that a field declared by `group` of methods/settings.py may hold; {} for other fields."""
    found = [spec.metadata.get("variants", {}) for spec in dataclasses.fields(cls) if spec.name == group]
    return found[0] if found else {}


def setting_names(cls: type[Any]) -> list[str]:
    """List the settings of a dataclass; of a group, those of all its variants, as `reducer.keep_rate`."""
    names: dict[str, None] = {}
    for spec in dataclasses.fields(cls):
        variants = variants_of(cls, spec.name).values()
        own = [f"{spec.name}.{name}" for variant in variants for name in setting_names(variant)]
        names |= dict.fromkeys(own or [spec.name])
    return list(names)


def known_settings(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields that the dataclass has; a record of another version may have more."""
    known = {spec.name for spec in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name.partition(".")[0] in known}


def settings_called(last: str, cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """List the settings whose last part is `last`: those of the dataclass, and of the variants that `values` choose."""
    found = []
    for spec in dataclasses.fields(cls):
        if variants := variants_of(cls, spec.name):
            chosen = variants.get(str(values.get(f"{spec.name}.name", getattr(spec.default, "name", ""))))
            found += [f"{spec.name}.{name}" for name in (setting_names(chosen) if chosen else ()) if name == last]
        elif spec.name == last:
            found.append(last)
    return found


def likely_number(text: str) -> str:
    """Return the number that was probably meant by `1e–5`, `10^-5`, `5%`, `0,5` or `2epochs`, else an empty text."""
    plain = unicodedata.normalize("NFKC", text).translate(_DASHES).replace("10^", "1e").strip(" .;'\"")
    plain = "".join(str(unicodedata.digit(each, each)) for each in plain)  # digits of other scripts
    found = re.fullmatch(r"([-+]?\d*[.,]?\d+(?:e[-+]?\d+)?)\s*(%|(?!e$)[a-z]*)", plain, re.IGNORECASE)
    if not found:
        return ""
    number = found[1].replace(",", ".")
    return f"{float(number) / 100:g}" if found[2] == "%" else number
