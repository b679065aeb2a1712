"""Conversion of `name=value` arguments to typed, frozen dataclasses.

A configuration is a flat dictionary of dotted names and plain values
(`{"method": "framefusion_moe", "method.beta": 0.6, "optim.epochs": 20}`). The command line, Ray's
pickles, MLflow's records and presets all use this format.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ctvr.methods.settings import SettingError
from ctvr.orchestrator.console import printable
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.setting_groups import (
    describe_type,
    likely_number,
    literals_of,
    setting_names,
    type_hints,
    variants_of,
)

T = TypeVar("T")
Settings = dict[str, Any]
COMPARED = 100


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name closest to `name` (the first of equally close ones), or "". Case, `-`, `_` are ignored.

    Only the first COMPARED characters count, since the time is quadratic in them.
    """
    matcher, best, likeness = difflib.SequenceMatcher(None, "", _fold(name[:COMPARED])), "", -1.0
    for each in known:
        matcher.set_seq1(_fold(each[:COMPARED]))
        if matcher.quick_ratio() > likeness and matcher.ratio() > likeness:  # the first is an upper bound
            best, likeness = each, matcher.ratio()
    return best if best and likeness >= cutoff else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` if a known name is close to `name`, otherwise an empty string."""
    return f" Did you mean {close!r}?" if (close := closest(name, known)) else ""


_ALIASES = {"learningrate": "lr", "bs": "batchsize", "wd": "weightdecay", "numepochs": "epochs", "dataset": "stream"}


def closest_setting(name: str, known: Iterable[str]) -> str:
    """Return the dotted setting that a user most probably meant, or an empty string.

    A missing or wrong group is corrected: both `lr` and `optim.lr` give `method.lr`.
    """
    names, last = list(known), _fold(name.rpartition(".")[2])
    last = _ALIASES.get(last, last)
    if f"{name}.name" in names:  # `backbone=tiny-clip`
        return f"{name}.name"
    if own := [each for each in names if _fold(each.rpartition(".")[2]) == last]:
        return closest(name, own, 0.0)
    group, dot, _ = name.partition(".")
    if dot and any(each.startswith(f"{group}.") for each in names):  # only the name in the group is misspelled
        own = [each for each in names if each.startswith(f"{group}.")]
        meant = closest(last, [each.rpartition(".")[2] for each in own], 0.7)
        return f"{group}.{meant}" if meant else ""
    return closest(name, names, 0.8) or next(
        (each for each in names if closest(last, [each.rpartition(".")[2]], 0.8)), closest(name, names)
    )


def unknown_setting(name: str, value: Any, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown setting or a group; its message suggests the closest known setting."""
    names = list(known)
    if own := [each for each in names if each.startswith(f"{name}.")]:
        return _group_error(name, value, own)
    meant, last = closest_setting(name, names), _fold(name.rpartition(".")[2])
    near = [each for each in names if not meant and len(last) > 1 and _fold(each.rpartition(".")[2]).startswith(last)]
    meant, names = near[0] if len(near) == 1 else meant, near or names
    every = ", ".join(names) if len(names) <= 20 else "ctvr methods METHOD --json"
    return ConfigError(
        "no such setting",
        printable(name),
        remedy="" if meant else f"{'One of' if near else 'All'}: {every}.",
        write=(f"{meant}={as_text(value) or 'VALUE'}",) if meant else (),
        unknown=name,
    )


def _group_error(name: str, value: Any, own: Sequence[str]) -> ConfigError:
    """Return the error for a value that is given to a group instead of to one of its settings `own`."""
    chosen = f"{name}.name"
    write = (f"{chosen}={as_text(value)}",) if chosen in own and not isinstance(value, dict | None) else ()
    listed = ", ".join(each.removeprefix(f"{name}.") for each in own)
    remedy = "" if write else f"Use {own[0]}=VALUE, for example."
    return ConfigError(f"is the group of the settings {listed}", name, remedy=remedy, write=write, unknown=name)


def no_method(name: str, remedy: str, meant: str) -> ConfigError:
    """Return the error for an unknown method; see `ctvr.methods.UnknownMethod` for the arguments."""
    write = (meant,) if meant else ()
    return ConfigError(f"no method called {name!r}", "method", remedy=remedy, write=write, unknown=name)


def as_text(value: Any) -> str:
    """Format a value as a user types it on the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def parse_overrides(words: Iterable[str]) -> Settings:
    """Parse `name=value` arguments into a flat dictionary of strings.

    Raises:
        ConfigError: if an argument has no `=`, has an empty name, or repeats a name with another value.
    """
    settings: Settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{word!r} is not a setting", remedy="Use name=value, for example optim.epochs=8.")
        name = name.strip()
        if name in settings and settings[name] != value:
            raise ConfigError(f"given twice, as {settings[name]!r} and {value!r}", name, remedy="Keep one of them.")
        settings[name] = value
    return settings


def select_prefix(settings: Mapping[str, Any], prefix: str) -> Settings:
    """Return the settings below `prefix.`, without the prefix."""
    dot = prefix + "."
    return {name[len(dot) :]: value for name, value in settings.items() if name.startswith(dot)}


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "", *, dotted: bool = True) -> T:
    """Build a frozen dataclass from plain or textual values.

    Args:
        cls: a dataclass whose fields are plain (str, int, float, bool, None, Literal, tuples of these) or groups.
        values: field name -> value; text is converted to the field's type. Settings of a group are `group.name`.
        prefix: the user's name of this group, for messages ("method", "optim").
        dotted: whether users write `prefix.name`; false if they write options, such as `--trials` of a search.

    Raises:
        ConfigError: for an unknown name, a wrong type, or a ValueError of the class.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = type_hints(cls)  # type: ignore[arg-type]  # a class is hashable
    dot = f"{prefix}." if prefix else ""
    typed: Settings = {}
    for name, value in values.items():
        group = name.partition(".")[0]
        if group == name or not variants_of(cls, group):
            typed[name] = _typed(cls, fields, hints, name, value, dot, dotted)
        elif group not in typed:
            typed[group] = _build_variant(fields[group], select_prefix(values, group), dot + group)
    for name, spec in fields.items():
        missing = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if missing and name not in typed:
            raise ConfigError("is required", f"{dot}{name}", remedy=f"Add {dot}{name}=VALUE.")
    try:
        return cls(**typed)
    except SettingError as error:
        raise setting_error(error, prefix, cls.__name__, dotted) from error
    except ValueError as error:
        raise ConfigError(str(error), prefix or cls.__name__) from error


def _build_variant(spec: dataclasses.Field[Any], values: Mapping[str, Any], prefix: str) -> Any:
    """Build the variant of a group that `name` selects, or the group's default variant."""
    variants = spec.metadata["variants"]
    name = values.get("name", spec.default.name)
    _check_variant(variants, name, prefix)
    for word in values:
        _check_owner(variants, word, prefix, name)
    return build(variants[name], {**values, "name": name}, prefix)


def _check_variant(variants: Mapping[str, Any], name: Any, prefix: str) -> None:
    if name not in variants:
        meant, place = closest(str(name), variants), f"{prefix}.name"
        remedy = f"Did you mean {meant!r}?" if meant else f"Known: {', '.join(variants)}."
        raise ConfigError(
            f"{name!r} does not exist", place, remedy=remedy, write=(f"{place}={meant}",) if meant else ()
        )


def _check_owner(variants: Mapping[str, type[Any]], word: str, prefix: str, chosen: str = "") -> list[type[Any]]:
    """Return the variants of a group that have the setting `word`. Refuse it if no variant, or not `chosen`, has it."""
    owners = [name for name, variant in variants.items() if word in setting_names(variant)]
    if not owners:
        every = dict.fromkeys(name for variant in variants.values() for name in setting_names(variant))
        meant = closest(word, every)
        remedy = f"Did you mean {meant!r}?" if meant else f"Known: {', '.join(every)}."
        raise ConfigError("no such setting", f"{prefix}.{word}", remedy=remedy, unknown=f"{prefix}.{word}")
    if chosen and chosen not in owners:
        raise ConfigError(
            f"is a setting of {prefix}.name={' or '.join(owners)}, and {prefix}.name is {chosen!r}",
            f"{prefix}.{word}",
            remedy="Omit it, or change the name.",
        )
    return [variants[name] for name in owners]


def setting_error(error: SettingError, group: str, otherwise: str = "settings", dotted: bool = True) -> ConfigError:
    """Return the error of a Config or a method, with settings named as the user writes them: `optim.lr_scale`.

    Args:
        error: the error of the Config or method.
        group: the user's name of the group, "" for a run's own settings.
        otherwise: `where` of the error if `group` is "" and the fault does not begin with a setting.
        dotted: see `build`.
    """
    below = group if dotted else ""
    fault, remedy, write = (error.qualify(below, text) for text in error.args)
    place = "" if dotted and error.fault.startswith("<") else group or otherwise
    if not (remedy or write or fault.endswith("?")):
        fault += "."
    words = (write,) if write and dotted else ()
    return ConfigError(fault, place, remedy=remedy, write=words, settings=error.settings(below))


def check_value(cls: type[Any], name: str, value: Any, prefix: str = "") -> None:
    """Refuse an unknown field of a dataclass or a value of the wrong type, without the checks of `__post_init__`.

    A setting of a group must be valid for one of the group's variants, because a search may choose the variant.

    Raises:
        ConfigError: for an unknown name or a wrong type.
    """
    dot = f"{prefix}." if prefix else ""
    group, _, rest = name.partition(".")
    if not rest or not (variants := variants_of(cls, group)):
        fields = {f.name: f for f in dataclasses.fields(cls)}
        _typed(cls, fields, type_hints(cls), name, value, dot)  # type: ignore[arg-type]
    elif rest == "name":
        _check_variant(variants, value, dot + group)
    else:
        errors = []
        for owner in dict.fromkeys(_check_owner(variants, rest, dot + group)):
            try:
                return check_value(owner, rest, value, dot + group)
            except ConfigError as error:
                errors.append(error)
        raise errors[-1]


def _typed(
    cls: type[Any],
    fields: Mapping[str, Any],
    hints: Mapping[str, Any],
    name: str,
    value: Any,
    dot: str,
    dotted: bool = True,
) -> Any:
    if name not in fields:
        raise unknown_setting(dot + name, value, [dot + each for each in setting_names(cls)])
    if variants := variants_of(cls, name):
        write = (f"{dot}{name}.name={value}",) if value in variants else ()
        remedy = f"Use {dot}{name}.name={'|'.join(variants)}."
        raise ConfigError("is a group of settings", f"{dot}{name}", remedy=remedy, write=write)
    return _convert(hints[name], value, dot + name, fields[name].default, dotted)


def _convert(hint: Any, value: Any, name: str, default: Any, dotted: bool) -> Any:
    """Convert a value to the field's type; text from a command line is parsed ("none", "true", "1,2")."""
    given = value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, hint):
        return value
    kinds = {hint, *typing.get_args(hint)}
    if isinstance(value, bool) and bool not in kinds and not kinds.isdisjoint((int, float)):  # `yes` of YAML is not 1
        raise _wrong_value(hint, given, name, default, dotted)
    if isinstance(value, str):
        if value.strip().lower() in {"none", "null"} and type(None) in typing.get_args(hint):
            return None
        holds_tuple = any(typing.get_origin(kind) is tuple for kind in (hint, *typing.get_args(hint)))
        if typing.get_origin(hint) is tuple or (holds_tuple and "," in value):
            value = [part.strip() for part in value.strip("()[] ").split(",") if part.strip()]
    try:
        typed = _adapter(hint).validate_python(value)
    except ValidationError as error:
        raise _wrong_value(hint, given, name, default, dotted) from error
    if isinstance(typed, float) and not math.isfinite(typed):  # NaN passes all limits, infinity reaches training
        raise ConfigError(f"{value!r:.60} is not a finite number", name, remedy="Set a number, or omit the setting.")
    return typed


_adapter = lru_cache(512)(partial(TypeAdapter[Any], config=ConfigDict(strict=False, coerce_numbers_to_str=True)))


def _wrong_value(hint: Any, value: Any, name: str, default: Any, dotted: bool) -> ConfigError:
    """Return the error for a value of a wrong type, with the expected type, the given value and a correction."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(parts, list) and len(parts) > 1 and all(_converts(hint, part) for part in parts):
        each = f"Run each: ctvr sweep METHOD STREAM --vary {name}={as_text(parts)}"
        each = "Use one in each run." if name == "seed" else each
        if isinstance(value, str) and _converts(hint, number := likely_number(value, hint is int)):
            each = f"{'As one number' if hint is int else 'With a decimal point'}: {name}={number}. {each}"
        return ConfigError(f"takes one value, not {len(parts)}", name, as_text(value), each)
    tidy = value.strip(" =.,;'\"`[](){}\u2018\u2019\u201c\u201d") if isinstance(value, str) else ""
    if literals := literals_of(hint):
        better: Any = closest(str(value), map(str, literals)) or default
    else:
        meant = (tidy, likely_number(tidy, hint is int)) if tidy else ()
        better = next((each for each in meant if each and _converts(hint, each)), default)
    is_example = dotted and better not in ("", (), None, dataclasses.MISSING)
    write = (f"{name}={as_text(better)}",) if is_example else ()
    got = "null" if value is None else as_text(value) if isinstance(value, bool) else value
    return ConfigError(f"is not {describe_type(hint)}", name, got, write=write)


def _converts(hint: Any, value: Any) -> bool:
    try:
        _adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a field's type."""
    return dict(TypeAdapter(hint).json_schema())


def flatten(instance: Any, prefix: str = "") -> Settings:
    """Return a dataclass as flat dotted settings of plain values, the inverse of `build`."""
    dot = f"{prefix}." if prefix else ""
    flat: Settings = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value, dot + field.name))
        else:
            flat[dot + field.name] = list(value) if isinstance(value, tuple) else value
    return flat
