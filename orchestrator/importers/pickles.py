"""Safe reader of pickles that contain only plain containers, text and integers.

`pickle.load` executes arbitrary calls in a file. This reader restricts the pure-Python unpickler to the opcodes of
text, small integers, lists, dictionaries and `collections.defaultdict(list)`. `find_class` accepts two names and
returns harmless replacements. The C unpickler is unsuitable: one LONG_BINPUT or BYTEARRAY8 allocates gigabytes.
"""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.text_files import read_bytes

SPLIT_BYTES = 4 << 20
BROKEN = (ValueError, IndexError, KeyError, EOFError, OverflowError, struct.error)
_OPCODES = (
    "PROTO FRAME MARK STOP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET EMPTY_LIST LIST APPEND APPENDS "
    "EMPTY_DICT DICT SETITEM SETITEMS UNICODE BINUNICODE SHORT_BINUNICODE STRING BINSTRING SHORT_BINSTRING "
    "INT BININT BININT1 BININT2 GLOBAL STACK_GLOBAL TUPLE TUPLE1 REDUCE"
)


class _Refused(Exception):
    """A pickle contains something that is not allowed."""


class _Dispatch(dict[int, Any]):
    def __missing__(self, opcode: int) -> Any:
        raise _Refused(f"opcode {bytes([opcode])!r}")


_LIST = object()  # stands for builtins.list, which occurs only as an argument


def _defaultdict(*arguments: Any) -> dict[Any, Any]:
    if arguments != (_LIST,):
        raise _Refused("a call other than defaultdict(list)")
    return {}


class _Unpickler(pickle._Unpickler):  # type: ignore[misc, name-defined, unused-ignore]
    dispatch = _Dispatch(
        {getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPCODES.split()}  # type: ignore[attr-defined, unused-ignore]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "defaultdict"):
            return _defaultdict
        if module in ("builtins", "__builtin__") and name == "list":  # Python 2 wrote the latter
            return _LIST
        raise _Refused(f"global {f'{module}.{name}'[:80]!r}")


def read_pickle(path: Path, max_bytes: int = SPLIT_BYTES) -> Any:
    """Read dictionaries, lists, text and integers from a pickle; nothing in the file is executed.

    Args:
        max_bytes: a longer file is rejected before it is read; memory stays within a small multiple of it.

    Raises:
        ConfigError: if the file is missing, too long, damaged, or contains anything else.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError("no such file", path, remedy="Give the path of the benchmark's .pkl file.")
    data = read_bytes(path, max_bytes)
    try:
        unpickler = _Unpickler(io.BytesIO(data), encoding="latin-1")
        value = unpickler.load()
        if unpickler.stack or unpickler.metastack:  # type: ignore[attr-defined, unused-ignore]
            raise ValueError("values left over")
        _check_plain(value)
        return value
    except _Refused as error:
        raise ConfigError(
            f"{path}: refused: {error}. Only dict, list, text, integers and defaultdict(list) are read; nothing was "
            "executed. Use the file from the benchmark's own release."
        ) from error
    except (*BROKEN, TypeError, AttributeError, pickle.UnpicklingError) as error:
        raise ConfigError("damaged, or not a pickle", path, remedy="Download it again.") from error


def _check_plain(value: Any) -> None:
    """Reject everything except dictionaries, lists, text and integers; recursive containers are visited once."""
    waiting, seen = [value], set[int]()
    while waiting:
        each = waiting.pop()
        if type(each) not in (str, int, list, dict):
            raise _Refused("a tuple, class, function or boolean as a value")
        if type(each) in (str, int) or not each or id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is dict and not {type(key) for key in each} <= {str, int}:
            raise _Refused("a key that is neither text nor an integer")
        waiting += each.values() if type(each) is dict else each
