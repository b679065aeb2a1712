"""Typed reading of third-party JSON files, with one-line errors."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_SIZE = 100_000  # largest accepted size, such as a number of tokens; all architectures of open_clip have fewer


def read_object(file: Path, what: str = "the settings of the weights") -> dict[str, Any]:
    """Return the JSON object in a file; empty for a missing file.

    Raises:
        ValueError: if the file does not contain a JSON object; the message calls the file `what`.
    """
    if not file.is_file():
        return {}
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ValueError(f"{file}: is not a JSON object with {what}. Download the file again.")
    return read


def get_typed(config: Mapping[str, Any], name: str, kind: type, what: str, source: Path) -> Any:
    """Return `config[name]`, or None if it is absent; reject a value that is not of type `kind`, called `what`."""
    value = config.get(name)
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise ValueError(f"{source}: {name} must be {what} (got {reprlib.repr(value)}). Download the file again.")


def get_object(config: Mapping[str, Any], name: str, source: Path) -> dict[str, Any]:
    """Return the JSON object `config[name]`; empty if it is absent."""
    return get_typed(config, name, dict, "an object", source) or {}


def get_whole(config: Mapping[str, Any], name: str, source: Path, most: int = MAX_SIZE) -> int | None:
    """Return `config[name]`, a whole number from 1 to `most`; None if it is absent."""
    what = f"a whole number of 1 to {most}"
    value: int | None = get_typed(config, name, int, what, source)
    if value is not None and not 0 < value <= most:
        raise ValueError(f"{source}: {name} must be {what} (got {reprlib.repr(value)}). Download the file again.")
    return value
