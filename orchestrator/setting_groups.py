"""Names and types of the settings of a dataclass with groups (`group` of methods/settings.py); mistyped numbers.

A group is a field that holds one of several dataclasses, its variants; the setting `field.name` selects one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

type_hints = functools.lru_cache(maxsize=1024)(typing.get_type_hints)  # it compiles every annotation again
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))


def variants_of(cls: type[Any], group: str) -> Mapping[str, type[Any]]:
    """Return the dataclasses that a field declared by `group` of methods/settings.py may hold; {} for other fields."""
    found = [spec.metadata.get("variants", {}) for spec in dataclasses.fields(cls) if spec.name == group]
    return found[0] if found else {}


def setting_names(cls: type[Any]) -> list[str]:
    """List the settings of a dataclass, including those of all variants of its groups, such as `reducer.keep_rate`."""
    return list(_setting_names(cls))  # type: ignore[arg-type]  # a class is hashable


@functools.lru_cache(maxsize=1024)
def _setting_names(cls: type[Any]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for spec in dataclasses.fields(cls):
        variants = variants_of(cls, spec.name).values()
        own = [f"{spec.name}.{name}" for variant in variants for name in setting_names(variant)]
        names |= dict.fromkeys(own or [spec.name])
    return tuple(names)


def known_settings(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop values that the dataclass has no field for, such as those in a record of another version."""
    known = {spec.name for spec in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name.partition(".")[0] in known}


def settings_called(last: str, cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """List the settings whose last component is `last`, in the dataclass and in the variants that `values` select."""
    found = []
    for spec in dataclasses.fields(cls):
        if variants := variants_of(cls, spec.name):
            chosen = variants.get(str(values.get(f"{spec.name}.name", getattr(spec.default, "name", ""))))
            found += [f"{spec.name}.{name}" for name in (setting_names(chosen) if chosen else ()) if name == last]
        elif spec.name == last:
            found.append(last)
    return found


def likely_number(text: str, is_whole: bool = False, unit: str = "") -> str:
    """Return the number that was probably meant by `1e–5`, `1x10^-5`, `5%`, `0,5`, `16k` or `1e3`, or "".

    Args:
        text: as typed.
        is_whole: whether the number must be whole; then `1,000` is a thousand.
        unit: the unit of the number, `DAYS` or `HOURS`: `2weeks` is 14 days, `90min` and `1:30` are 1.5 hours.
    """
    plain = unicodedata.normalize("NFKC", text).translate(_DASHES).strip(" .;'\"")
    plain = "".join(str(unicodedata.digit(each, each)) for each in plain)  # digits of other scripts
    plain = re.sub(r"(?<=\d)\s*[*x\u00b7\u00d7\u22c5]\s*10\^?(?=[-+]?\d)", "e", plain).replace("10^", "1e")
    for pattern, meant in _NOTATIONS:
        if found := re.fullmatch(pattern, plain):
            return _as_number(meant(*map(int, found.groups())), is_whole)
    if is_whole and re.fullmatch(r"[1-9]\d{0,2}([,' ]\d{3})+", plain):
        return re.sub(r"\D", "", plain)
    if unit and (parts := _DURATION.fullmatch(plain)) and any(parts.groups()):
        hours = sum(float(part) * length for part, length in zip(parts.groups("0"), (168, 24, 1, 1 / 60)))
        return _as_number(hours / _HOURS[unit], is_whole) if unit in _HOURS else ""
    found = re.fullmatch(r"~?([-+]?\d*[.,]?\d+(?:e[-+]?\d+)?)\s*(%|(?!e$)[a-z]*)", plain, re.IGNORECASE)
    if not found:
        return ""
    number, factor = found[1].replace(",", "."), _SUFFIXES.get(found[2], 1.0)
    is_written_so = factor == 1 and not (is_whole and re.search("[.e]", number, re.IGNORECASE))
    return number if is_written_so else _as_number(float(number) * factor, is_whole)


_SUFFIXES = {"%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6}
_HOURS = {"HOURS": 1.0, "DAYS": 24.0}
_DURATION = re.compile(
    r"(?:(\d+) ?w(?:eeks?)?)? ?(?:(\d+) ?d(?:ays?)?)? ?"
    r"(?:(\d+) ?(?:h(?:ours?|rs?)?|:))? ?(?:(\d+) ?(?:m(?:in(?:ute)?s?)?)?)?",
    re.IGNORECASE,
)
_NOTATIONS: tuple[tuple[str, Callable[..., float]], ...] = (
    (r"(\d{1,3})(?:\^|\*\*)(\d{1,2})", lambda base, power: base**power),
    (r"(\d{1,9})[/\u2044]([1-9]\d{0,8})", lambda over, under: over / under),
)


def _as_number(value: float, is_whole: bool) -> str:
    if not math.isfinite(value) or (is_whole and not (abs(value) < 1e15 and float(value).is_integer())):
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"


def literals_of(hint: Any) -> tuple[Any, ...]:
    """Return the values that a field's type lists; () if it lists none."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    kinds = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    return tuple(each for kind in kinds for each in literals_of(kind))


def describe_type(hint: Any) -> str:
    """Describe a field's type in words: "a whole number", "one of fp32, bf16", "2 numbers separated by commas"."""
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if hint in plain:
        return plain[hint]
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, kinds))}"
    if origin is tuple:
        count = "" if Ellipsis in kinds else f"{len(kinds)} "
        each = plain.get(kinds[0], "a value").partition(" ")[2] if kinds else "value"
        return f"{count}{each}s separated by commas"
    if kinds:
        return " or ".join(describe_type(kind) for kind in kinds)
    return f"a {getattr(hint, '__name__', hint)}"
