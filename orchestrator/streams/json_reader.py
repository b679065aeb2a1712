"""Reader of JSON files and checks of their values: an error is one line with the file, the position and a remedy."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.stream import Segment
from ctvr.orchestrator.text_files import read_text

_ODD_PARTS = frozenset({"", ".", ".."})


def read_json(path: Path, unique_keys: bool = False) -> Any:
    """Read a JSON file.

    Args:
        unique_keys: whether to reject objects that repeat a key (otherwise the last value is kept), and NaN and
            Infinity, which are not JSON.

    Raises:
        ConfigError: if the file is missing, not a regular file, not text or not JSON; the message gives the line.
    """
    hook = _unique_object if unique_keys else None
    text = read_text(path)
    if not text.strip():
        raise ConfigError("is empty", path, remedy="Use another file.")
    try:
        return json.loads(text, object_pairs_hook=hook, parse_constant=_no_number if unique_keys else None)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}: not JSON ({error.msg})", path, remedy="Correct this line.") from error
    except RecursionError as error:
        raise ConfigError("nested too deeply", path, remedy="Use the original file.") from error
    except ValueError as error:
        raise ConfigError(f"not usable JSON ({str(error).splitlines()[0]})", path, remedy="Correct it.") from error


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    raise ValueError(f"key {repeated[0]!r:.60} occurs twice in one object")


class Reader:
    """Validator of plain values. An error is one line: source, place, problem, remedy."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, where: str, problem: str, remedy: str) -> NoReturn:
        place = f"{_brief(where)}: " if where else ""
        raise ConfigError(f"{place}{_brief(problem)}. {remedy}", self.source)

    def object(self, value: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
        known = [*required, *optional]
        if not isinstance(value, dict):
            self.fail(where, f"is {kind_of(value)}, not an object", f"Use an object with {', '.join(known)}.")
        for name in value:
            if name not in known:
                hint = suggest(str(name), known).strip()
                self.fail(where, f"unknown field {name!r}", hint or f"Remove it; known: {', '.join(known)}.")
        for name in required:
            if name not in value:
                self.fail(where, f"field {name!r} is missing", f"Add {name!r}.")
        return value

    def array(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(where, f"is {kind_of(value)}, not a list", "Use a list: [...].")
        return value

    def text(self, value: Any, where: str, one_line: bool = True) -> str:
        if not isinstance(value, str):
            self.fail(where, f"is {kind_of(value)}, not text", "Use text in double quotes.")
        if not value.strip():
            self.fail(where, "is empty", "Add text, or remove it.")
        if value.isprintable():  # false for half a surrogate pair
            return value
        if one_line:
            self.fail(where, "contains a character that is not printable", "Use printable characters on one line.")
        if any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(where, "contains half a surrogate pair, which is not text", "Use the whole character.")
        return value

    def segment(self, value: Any, where: str) -> Segment | None:
        if value is None:
            return None
        remedy = "Use [start, end] in seconds with 0 <= start < end, or null for the whole video."
        numbers = isinstance(value, list) and all(type(n) in (int, float) for n in value)
        if not numbers or len(value) != 2:
            self.fail(where, "is not a pair of numbers", remedy)
        if not all(abs(n) < 1e9 and math.isfinite(n) for n in value) or not 0 <= value[0] < value[1]:
            self.fail(where, f"is not a time segment (got {str(value)[:60]})", remedy)
        return float(value[0]), float(value[1])

    def path(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        if "\\" not in text and not _ODD_PARTS.intersection(text.split("/")):
            return text  # as `PurePosixPath` would write it
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or "\\" in str(path) or not path.parts:
            self.fail(where, f"{value!r} is outside the videos folder", "Use a path below `videos`, with '/'.")
        return str(path)


def _brief(text: str) -> str:
    """Shorten an overlong ID or name for a message."""
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-60:]}"


def kind_of(value: Any) -> str:
    """Return the JSON type of a value in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
