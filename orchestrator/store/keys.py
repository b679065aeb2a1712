"""Names of a store's objects: KIND/KEY with the extension of the format, valid on every file system."""

from __future__ import annotations

import re
from typing import Any

ARRAYS, JSON = ".safetensors", ".json"
_SEGMENT = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,127}")
_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MAX_KEY = 512


def object_name(kind: str, key: str, ending: str) -> str:
    """Return `kind/key` with its extension.

    Raises:
        ValueError: if kind or key is illegal.
    """
    check_kind(kind)
    check_key(key)
    return f"{kind}/{key}{ending}"


def split_name(name: str) -> tuple[str, str]:
    """Return the kind and the key in an object's name."""
    kind, _, rest = name.partition("/")
    return kind, rest.removesuffix(ARRAYS).removesuffix(JSON)


def check_kind(kind: str) -> None:
    """Raise ValueError if `kind` is not a valid kind of object, such as `frames`."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ValueError(f"{str(kind)[:80]!r} is not a kind of object: use 1 to 64 of a-z, 0-9, _ and -.")


def check_key(key: str) -> None:
    """Raise ValueError if `key` is not a valid key."""
    if not is_key(key):
        raise ValueError(
            f"{str(key)[:80]!r} is not a key: use a-z, 0-9, _, -, . and /; no part may be empty or begin with '.'."
        )


def is_key(key: Any) -> bool:
    """Report whether a value is a valid key."""
    legal = isinstance(key, str) and len(key) <= _MAX_KEY and all(_SEGMENT.fullmatch(s) for s in key.split("/"))
    return legal and ".." not in key
