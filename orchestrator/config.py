"""Settings: `name=value` words become typed, frozen dataclasses here and nowhere else.

The one format of a configuration is a flat dictionary of dotted names and plain values
(`{"method": "framefusion_moe", "method.beta": 0.6, "optim.epochs": 20}`). It is what stands on the
command line, what Ray pickles, what MLflow records and what a preset holds.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ctvr.orchestrator import renamed
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.text_files import read_text

T = TypeVar("T")
Settings = dict[str, Any]
YAML_BYTES, YAML_VALUES, YAML_LEVELS, YAML_DIGITS = 1 << 20, 10_000, 50, 100  # at most, aliases written out


def suggest(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` when something known is close to `name`, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def is_name(text: str) -> bool:
    """Whether a text can name a folder on any system: letters, digits, `.`, `_` and `-`, not `.` or `-` first."""
    device = text.partition(".")[0].lower()  # Windows takes these for devices, whatever ending they have
    is_device = device in {"con", "prn", "aux", "nul"} or re.fullmatch("(com|lpt)[0-9¹²³]", device)
    is_short = len(text) <= 100 and len(text.encode(errors="replace")) <= 200  # file systems count bytes, at most 255
    return not is_device and is_short and re.fullmatch(r"\w[\w.-]*", text) is not None and text[-1] != "."


def check_name(text: str, where: str) -> None:
    """Refuse a name that becomes a folder and could lead out of where it belongs, or be taken for an option.

    Raises:
        ConfigError: `where` says how the user wrote it.
    """
    if not is_name(text):
        raise ConfigError(
            f"{where} {text[:100]!r}: letters, digits and . _ - only, at most 100 (200 bytes) and not . or - first; it "
            "names folders. Choose another, not one of Windows' devices (con, nul, com1)."
        )


def parse_overrides(words: Iterable[str]) -> Settings:
    """Turn `name=value` words into a flat dictionary of strings.

    Raises:
        ConfigError: if a word has no `=`, an empty name, or repeats a name with another value.
    """
    settings: Settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{word!r} is not a setting. Write name=value, for example optim.epochs=8.")
        name = name.strip()
        if name in settings and settings[name] != value:
            raise ConfigError(f"{name}: given twice, as {settings[name]!r} and {value!r}. Keep one of them.")
        settings[name] = value
    return renamed.settings(settings)


def read_settings(path: Path) -> Settings:
    """Settings of a YAML file, flat and dotted: `optim.epochs: 8`, or `optim:` with `epochs: 8` below it.

    `method` is a name, or a mapping of the method's settings with its `name` among them.

    Raises:
        ConfigError: if it cannot be read, is no mapping, says a setting twice, or is larger than any settings are.
    """
    import yaml

    try:
        found = _parse_yaml(read_text(path, YAML_BYTES))
        settings = _unique(_flat(found)) if isinstance(found, dict) else None
    except ConfigError as error:
        raise ConfigError(f"--config {error}") from error
    except RecursionError as error:
        raise ConfigError(f"--config {path}: is nested too deeply. Write lines such as optim.epochs: 8.") from error
    except (yaml.YAMLError, ValueError) as error:  # also a number of 5000 digits, a date in month 13
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(f"--config {path}: cannot be read as YAML ({reason[:300]}). Correct it.") from error
    if settings is None:
        raise ConfigError(f"--config {path}: holds no settings. Write lines such as optim.epochs: 8.")
    return renamed.settings(settings)


def _unique(pairs: Iterable[tuple[str, Any]]) -> Settings:
    settings: Settings = {}
    for name, value in pairs:
        name = "method" if name == "method.name" else name
        if name in settings:
            raise ValueError(f"{name} is given twice")
        settings[name] = value
    return settings


def _parse_yaml(text: str) -> Any:
    """Read a document of YAML whose anchors, written out, are not endless."""
    loader = _bounded_loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _bounded_loader() -> Any:
    """Return PyYAML's safe loader with limits.

    An alias stands for everything below its anchor: ten lines of them can mean 10^9 values, or contain themselves.
    """
    import yaml
    from yaml.composer import ComposerError
    from yaml.events import AliasEvent, CollectionStartEvent

    class Loader(yaml.SafeLoader):
        depth = 0

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.open: set[str] = set()  # anchors of nodes that are not complete
            self.sizes: dict[int, tuple[int, int]] = {}  # id of a node -> nodes and levels below it, written out

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            anchor, mark = getattr(event, "anchor", None), cast(Any, event).start_mark
            if isinstance(event, AliasEvent) and anchor in self.open:
                raise ComposerError(None, None, f"*{anchor[:60]} stands within its own anchor", mark)
            self.depth += 1
            if self.depth > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_LEVELS} levels", mark)
            self.open |= {anchor} if anchor and isinstance(event, CollectionStartEvent) else set()
            node = super().compose_node(parent, index)
            self.open.discard(anchor)
            self.depth -= 1
            self.measure(node, mark)
            return node

        def measure(self, node: Any, mark: Any) -> None:
            below = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
            if node.tag.endswith(":int") and len(node.value) > YAML_DIGITS:  # 0xfff... and 59:59:... have no limit
                raise ComposerError(None, None, f"a number of more than {YAML_DIGITS} digits", mark)
            if isinstance(node, yaml.MappingNode):
                names = Counter(key.value for key, _ in below if isinstance(key, yaml.ScalarNode))
                if twice := next((name for name, count in names.items() if count > 1 and name != "<<"), None):
                    raise ComposerError(None, None, f"{twice[:60]!r} is given twice", mark)
                below = [each for pair in below for each in pair]
            sizes = [self.sizes[id(each)] for each in below]
            found = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
            if found[0] > YAML_VALUES or found[1] > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_VALUES} values or {YAML_LEVELS} levels", mark)
            self.sizes[id(node)] = found

    return Loader


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def select_prefix(settings: Mapping[str, Any], prefix: str) -> Settings:
    """The settings below `prefix.`, with the prefix taken off."""
    dot = prefix + "."
    return {name[len(dot) :]: value for name, value in settings.items() if name.startswith(dot)}


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "", *, dotted: bool = True) -> T:
    """Make a frozen dataclass from plain or textual values.

    Args:
        cls: a dataclass whose fields are plain (str, int, float, bool, None, Literal, tuples of these).
        values: field name -> value; text is converted to the field's type.
        prefix: how the user names this group, for the messages ("method", "optim").
        dotted: users write `prefix.name`; false where they write options, as `--trials` of a search.

    Raises:
        ConfigError: for an unknown name, a wrong type, or what the class itself refuses.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    dot = f"{prefix}." if prefix else ""
    typed: Settings = {}
    for name, value in values.items():
        typed[name] = _typed(fields, hints, name, value, dot)
    for name, spec in fields.items():
        missing = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        if missing and name not in typed:
            raise ConfigError(f"{dot}{name}: is required. Add {dot}{name}=VALUE.")
    try:
        return cls(**typed)
    except ValueError as error:
        names = fields if dotted else ()
        raise ConfigError(qualify_field_names(str(error), names, prefix, cls.__name__)) from error


def qualify_field_names(message: str, names: Iterable[str], prefix: str, otherwise: str = "settings") -> str:
    """What a dataclass says of its fields, with a field named as the user types it: `optim.lr_scale`, not `lr_scale`.

    A word is taken for a field's name at the start of the message ("heads and rank must be >= 1"), before `=`, or with
    `_` in it; elsewhere it may be English. A message that does not start with a field stands behind `prefix`, or
    behind `otherwise` if that is empty.
    """
    word = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?!\w)")
    starts = re.match(rf"(?:{word.pattern}(?:, | and | or |(?=[ :=])))+", message)
    dot, end = f"{prefix}." if prefix else "", starts.end() if starts else 0

    def named(found: re.Match[str]) -> str:
        is_field = found.start() < end or "_" in found[0] or message[found.end() :].startswith("=")
        return dot + found[0] if is_field else found[0]

    said = word.sub(named, message)
    return said if starts else f"{prefix or otherwise}: {said}"


def check_value(cls: type[Any], name: str, value: Any, prefix: str = "") -> None:
    """Refuse a field that a dataclass has not, or a value that is none of its type; what else it asks is not asked.

    Raises:
        ConfigError: as `build`.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    _typed(fields, typing.get_type_hints(cls), name, value, f"{prefix}." if prefix else "")


def _typed(fields: Mapping[str, Any], hints: Mapping[str, Any], name: str, value: Any, dot: str) -> Any:
    if name not in fields:
        hint = suggest(name, fields)
        raise ConfigError(f"{dot}{name}: no such setting.{hint or ' Known: ' + ', '.join(fields) + '.'}")
    return _convert(hints[name], value, dot + name)


def _convert(hint: Any, value: Any, name: str) -> Any:
    """One value as the field's type; text as typed on a command line is understood ("none", "true", "1,2")."""
    if isinstance(value, str):
        if value.strip().lower() in {"none", "null"} and type(None) in typing.get_args(hint):
            return None
        holds_tuple = any(typing.get_origin(kind) is tuple for kind in (hint, *typing.get_args(hint)))
        if typing.get_origin(hint) is tuple or (holds_tuple and "," in value):
            value = [part.strip() for part in value.strip("()[] ").split(",") if part.strip()]
    try:
        typed = TypeAdapter(hint, config=ConfigDict(strict=False, coerce_numbers_to_str=True)).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{name}: {error.errors()[0]['msg']}, got {value!r:.200}.") from error
    if isinstance(typed, float) and math.isnan(typed):  # compares as false with every limit
        raise ConfigError(f"{name}: {value!r:.60} is no number. Write one, or leave the setting out.")
    return typed


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a field's type."""
    return dict(TypeAdapter(hint).json_schema())


def flatten(instance: Any, prefix: str = "") -> Settings:
    """A dataclass as flat dotted settings of plain values; the inverse of `build`."""
    dot = f"{prefix}." if prefix else ""
    flat: Settings = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if dataclasses.is_dataclass(value):
            flat.update(flatten(value, dot + field.name))
        else:
            flat[dot + field.name] = list(value) if isinstance(value, tuple) else value
    return flat
