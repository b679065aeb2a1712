"""Read a benchmark's pickle of plain containers without running anything that stands in it.

`pickle.load` calls whatever a file asks for. Here the opcodes are listed by `pickletools` (which parses
and never executes) and followed by an interpreter that knows text, small integers, lists and
dictionaries only. A `collections.defaultdict` whose factory is `builtins.list` is read as a dictionary;
the ActivityNet splits hold these and nothing else. Every other global, and every opcode that builds an
object, asks for a persistent id or calls something else, is refused.
"""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.text_files import read_bytes

SPLIT_BYTES = 4 << 20
_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_NUMBER = {"BININT", "BININT1", "BININT2", "INT"}
_GLOBALS = {"collections defaultdict", "builtins list", "__builtin__ list"}  # the last as Python 2 wrote it
BROKEN = (ValueError, IndexError, KeyError, EOFError, OverflowError, struct.error)


class _Refused(Exception):
    """What in a pickle is not allowed."""


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Tuple:
    """Arguments of a call; never data."""

    items: tuple[Any, ...]


_MARK = object()


def read_pickle(path: Path, max_bytes: int = SPLIT_BYTES) -> Any:
    """Read dictionaries, lists, text and integers from a pickle; nothing in the file is executed.

    Args:
        max_bytes: a longer file is refused before it is read; memory stays within a small multiple of it.

    Raises:
        ConfigError: if the file is absent, too long, damaged, or holds anything else.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such file. Give the path of the benchmark's .pkl file.")
    data = read_bytes(path, max_bytes)
    try:
        return _Interpreter().run(data)
    except _Refused as error:
        raise ConfigError(
            f"{path}: refused: {error}. Only dict, list, text, integers and defaultdict(list) are read; nothing "
            "was executed. Take the file from the benchmark's own release."
        ) from error
    except BROKEN as error:
        raise ConfigError(f"{path}: damaged, or not a pickle. Download it again.") from error


class _Interpreter:
    """The pickle machine, less everything that calls or builds."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                break
            if name in _TEXT:
                self.stack.append(argument)
            elif name in _NUMBER:
                if type(argument) is not int:  # INT also spells booleans
                    raise _Refused("a boolean")
                self.stack.append(argument)
            else:
                step = getattr(self, f"_{name.lower()}", None)
                if step is None:
                    raise _Refused(f"opcode {name}")
                step(argument)
        result = self._plain(self.stack.pop())
        if self.stack:
            raise ValueError("values left over")
        return result

    def _proto(self, _: Any) -> None: ...

    def _frame(self, _: Any) -> None: ...

    def _mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        found: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    # Containers -----------------------------------------------------------------------------------

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _list(self, _: Any) -> None:
        self.stack.append([self._plain(value) for value in self._since_mark()])

    def _dict(self, _: Any) -> None:
        entries = self._since_mark()
        self.stack.append({})
        self._fill(entries)

    def _append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def _setitems(self, _: Any) -> None:
        self._fill(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _Refused("items appended to something that is not a list")
        target.extend(self._plain(value) for value in values)

    def _fill(self, entries: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise _Refused("entries set on something that is not a dictionary")
        if len(entries) % 2:
            raise ValueError("a key without a value")
        for key, value in zip(entries[::2], entries[1::2], strict=True):
            if type(key) not in (str, int):
                raise _Refused("a key that is neither text nor an integer")
            target[key] = self._plain(value)

    @staticmethod
    def _plain(value: Any) -> Any:
        if type(value) not in (str, int, list, dict):
            raise _Refused("a tuple, class or function as a value")
        return value

    # Memo -----------------------------------------------------------------------------------------

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    _binput = _long_binput = _put
    _binget = _long_binget = _get

    # The one call: defaultdict(list) ----------------------------------------------------------------

    def _global(self, name: str) -> None:
        if name not in _GLOBALS:
            raise _Refused(f"global {name[:80].replace(' ', '.')!r}")
        self.stack.append(_Global(name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._global(f"{module} {name}" if type(name) is type(module) is str else "?")

    def _tuple(self, _: Any) -> None:
        self.stack.append(_Tuple(tuple(self._since_mark())))

    def _tuple1(self, _: Any) -> None:
        self.stack.append(_Tuple((self.stack.pop(),)))

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        factory = arguments.items[0] if type(arguments) is _Tuple and len(arguments.items) == 1 else None
        is_defaultdict = type(function) is _Global and function.name == "collections defaultdict"
        if not is_defaultdict or type(factory) is not _Global or not factory.name.endswith(" list"):
            raise _Refused("a call other than defaultdict(list)")
        self.stack.append({})
