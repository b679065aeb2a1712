"""Safe reader of pickles that contain only plain containers, text and integers.

`pickle.load` executes arbitrary calls in a file. This reader restricts the pure-Python unpickler to the opcodes of
text, small integers, lists, dictionaries and `collections.defaultdict(list)`. `find_class` accepts two names and
returns harmless replacements. The C unpickler is unsuitable: one LONG_BINPUT or BYTEARRAY8 allocates gigabytes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ctvr.orchestrator.errors import ConfigError, RefusedPickle
from ctvr.orchestrator.text_files import read_bytes

SPLIT_BYTES = 4 << 20  # default limit of a file, which is a benchmark's split
BROKEN = (
    *(ValueError, IndexError, KeyError, EOFError, OverflowError, TypeError, AttributeError),
    *(struct.error, pickle.UnpicklingError),
)
Value = TypeVar("Value")
OPCODES = (
    "PROTO FRAME MARK STOP MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET EMPTY_LIST LIST APPEND APPENDS "
    "EMPTY_DICT DICT SETITEM SETITEMS UNICODE BINUNICODE SHORT_BINUNICODE STRING BINSTRING SHORT_BINSTRING "
    "INT BININT BININT1 BININT2 GLOBAL STACK_GLOBAL TUPLE TUPLE1 REDUCE"
)


class Handlers(dict[int, Any]):
    """Python's own handlers of the named opcodes; any other opcode is refused."""

    def __init__(self, names: str) -> None:
        own = pickle._Unpickler.dispatch  # type: ignore[attr-defined, unused-ignore]
        super().__init__({getattr(pickle, name)[0]: own[getattr(pickle, name)[0]] for name in names.split()})

    def __missing__(self, opcode: int) -> Any:
        raise RefusedPickle(f"opcode {bytes([opcode])!r}")


_LIST = object()  # stands for builtins.list, which occurs only as an argument


def _defaultdict(*arguments: Any) -> dict[Any, Any]:
    if arguments != (_LIST,):
        raise RefusedPickle("a call other than defaultdict(list)")
    return {}


class PlainUnpickler(pickle._Unpickler):  # type: ignore[misc, name-defined, unused-ignore]
    """Python's own unpickler, restricted to `dispatch` and to the names that `find_class` accepts."""

    dispatch = Handlers(OPCODES)
    stack: list[Any]  # values since the last mark; values before it are in `metastack`
    metastack: list[list[Any]]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]  # appends to `stack`

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "defaultdict"):
            return _defaultdict
        if module in ("builtins", "__builtin__") and name == "list":  # Python 2 wrote the latter
            return _LIST
        raise RefusedPickle(f"global {f'{module}.{name}'[:80]!r}")


def read_pickle(path: Path, max_bytes: int = SPLIT_BYTES) -> Any:
    """Read dictionaries, lists, text and integers from a pickle without executing code.

    Args:
        path: the file.
        max_bytes: limit of the file, checked before it is read; memory use is a small multiple of the file.

    Raises:
        ConfigError: if the file is missing, too long, damaged, or contains anything else.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError("no such file", path, remedy="Pass the path of the benchmark's .pkl file.")
    data = read_bytes(path, max_bytes)
    try:
        return unpickle(data, PlainUnpickler, _check_plain)
    except RefusedPickle as error:
        raise ConfigError(
            f"{path}: refused: {error}. Only dict, list, text, integers and defaultdict(list) are read; nothing was "
            "executed. Use the file from the benchmark's own release."
        ) from error
    except BROKEN as error:
        raise ConfigError("damaged, or not a pickle", path, remedy="Download it again.") from error


def unpickle(data: bytes, reader: type[PlainUnpickler], convert: Callable[[Any], Value]) -> Value:
    """Read one value with a restricted unpickler, and convert it.

    Args:
        data: bytes of the pickle.
        reader: class of the unpickler.
        convert: function that checks and converts the value.

    Raises:
        RefusedPickle: if the pickle contains something that `reader` or `convert` does not allow.
        ValueError: or another exception of BROKEN, if the pickle is damaged.
    """
    unpickler = reader(io.BytesIO(data), encoding="latin-1")
    value = unpickler.load()
    if unpickler.stack or unpickler.metastack:
        raise ValueError("values left over")
    return convert(value)


def _check_plain(value: Any) -> Any:
    """Return a value that has only dictionaries, lists, text and integers; otherwise raise RefusedPickle."""
    waiting, seen = [value], set[int]()
    while waiting:
        each = waiting.pop()
        if type(each) not in (str, int, list, dict):
            raise RefusedPickle("a tuple, class, function or boolean as a value")
        if type(each) in (str, int) or not each or id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is dict and not {type(key) for key in each} <= {str, int}:
            raise RefusedPickle("a key that is neither text nor an integer")
        waiting += each.values() if type(each) is dict else each
    return value
