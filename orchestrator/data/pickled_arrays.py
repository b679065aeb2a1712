"""Reader of pickled numpy arrays that does not execute code: `find_class` returns replacements of numpy's builders.

The replacements accept the pickles that numpy itself writes, in protocols 0 to 5 and from Python 2. An array is a view
of the bytes in the pickle. Memory is counted for each reference to a value, because references could expand a small
file.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.data.array_files import Arrays, check_size
from ctvr.orchestrator.data.pickles import BROKEN, OPCODES, Handlers, PlainUnpickler, unpickle
from ctvr.orchestrator.errors import ConfigError, RefusedPickle
from ctvr.orchestrator.text_files import read_bytes

MOST_BYTES = 16 << 30  # limit of a file
_OPCODES = (
    f"{OPCODES} NONE NEWTRUE NEWFALSE LONG LONG1 FLOAT BINFLOAT EMPTY_TUPLE TUPLE2 TUPLE3 "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BINUNICODE8 BINPERSID"  # BINPERSID: storages, which only torch_arrays.py allows
)
_TYPES = re.compile(r"[fiu][1248]|b1|[US][1-9]\d{0,8}", re.ASCII)
_LEVELS = 5  # maximum depth of nested dictionaries and lists
_ENTRY = 64  # minimum bytes of memory for an entry of a list or dictionary
_NDARRAY = object()  # stands for the class numpy.ndarray, which occurs only as an argument


class _Torch(RefusedPickle):
    """Error about a pickle that contains tensors of torch."""


class _Type:
    """Replacement of numpy.dtype; `set_state` adds the byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        text = code if isinstance(code, str) else ""
        if not _TYPES.fullmatch(text):
            raise RefusedPickle(f"an array of {'objects' if text[:1] == 'O' else f'the type {str(code)[:40]!r}'}")
        self.dtype = np.dtype(text)

    def set_state(self, state: Any) -> None:
        if state[1] not in ("<", ">", "=", "|"):
            raise ValueError("an unknown byte order")
        self.dtype = np.dtype(f"{state[1]}{self.dtype.str[1:]}")


class PickledArray:
    """Replacement of an array; `set_state` adds shape, type and values."""

    value: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        self.fill(data, kind, shape, "F" if is_fortran else "C")

    def fill(self, data: Any, kind: Any, shape: Any, order: str) -> PickledArray:
        content = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 wrote text
        if not isinstance(content, bytes | bytearray) or type(kind) is not _Type or type(shape) is not tuple:
            raise RefusedPickle("an array of objects")
        if math.prod(shape) * kind.dtype.itemsize != len(content) or any(n < 0 for n in shape):
            raise ValueError(f"an array declares the shape {str(shape)[:60]} and has {len(content)} bytes")
        self.value = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if order == "F" else "C")
        return self


def _reconstruct(kind: Any, *_: Any) -> PickledArray:
    if kind is not _NDARRAY:
        raise RefusedPickle("a subclass of numpy.ndarray")
    return PickledArray()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise RefusedPickle("a call of _codecs.encode other than that of bytes")
    return text.encode("latin-1")


def _no_bytes(*arguments: Any) -> bytes:
    if arguments:
        raise RefusedPickle("a call of bytes")
    return b""


def _build_ordered(pairs: Any = ()) -> dict[Any, Any]:
    return dict(pairs)


_BUILDERS = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Type,
    ("multiarray", "_reconstruct"): _reconstruct,
    ("multiarray", "scalar"): lambda kind, data: PickledArray().fill(data, kind, (), "C"),
    ("numeric", "_frombuffer"): lambda data, kind, shape, order: PickledArray().fill(data, kind, shape, order),
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,  # protocol 2 writes a call for empty bytes
    ("builtins", "bytes"): _no_bytes,
    ("collections", "OrderedDict"): _build_ordered,
}
_CORES = ("numpy.core.", "numpy._core.")  # numpy before and since 2.0


class ArrayUnpickler(PlainUnpickler):
    """Unpickler of arrays, numbers and text in dictionaries and lists."""

    dispatch = Handlers(_OPCODES)

    def find_class(self, module: str, name: str) -> Any:
        core = next((prefix for prefix in _CORES if module.startswith(prefix)), "")
        if module.partition(".")[0] == "torch":
            raise _Torch("torch tensors")
        found = _BUILDERS.get((module.removeprefix(core), name))
        return super().find_class(module, name) if found is None else found

    def load_build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (_Type, PickledArray):
            raise RefusedPickle("the state of an object")
        self.stack[-1].set_state(state)

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self) -> None:
        """Push bytes onto the stack; Python's own handler allocates the declared length before it reads."""
        length = int.from_bytes(self.read(8), "little")
        self.append(self.read(length))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def read_pickled_arrays(path: Path) -> Arrays | np.ndarray:
    """Read a pickle as name -> array, or as one array; a list of arrays of one shape is stacked.

    An array may be a list of numbers or of arrays. Names in nested dictionaries are joined by "/". Numbers, text and
    None next to arrays are skipped.

    Raises:
        ConfigError: for a damaged file, contents other than arrays, or arrays that need far more memory than the file.
    """
    data = read_bytes(path, MOST_BYTES)
    if data[:4] == b"PK\x03\x04":
        raise ConfigError("is a zip archive, not a pickle", path, remedy="Rename a file of torch.save to .pt.")
    with refusals(path, "np.savez(FILE, **ARRAYS) of numbers"):
        return unpickle(data, ArrayUnpickler, Expansion(len(data)).convert)


@contextmanager
def refusals(path: Path, form: str) -> Iterator[None]:
    """Convert errors of an unpickler to a ConfigError about the file; `form` is a call that writes a valid file."""
    try:
        yield
    except RefusedPickle as error:
        remedy = "torch.save(TENSORS, 'FILE.pt')" if isinstance(error, _Torch) else form
        raise ConfigError(
            f"refused, because it holds {error}; nothing was executed", path, remedy=f"Use {remedy}."
        ) from error
    except BROKEN as error:
        reason = f" ({error})" if type(error) is ValueError else ""
        raise ConfigError(f"damaged, or not a pickle of arrays{reason[:160]}", path, remedy="Save it again.") from error


class Expansion:
    """Converter of the read values to arrays, with a limit of their total size.

    Args:
        size: bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self.size, self.declared = size, 0

    def convert(self, value: Any) -> Arrays | np.ndarray:
        if type(value) is not dict:
            return self._array(value, 1)
        found: Arrays = {}
        for name, array in self._iterate_named(value, "", 1):
            if name in found:
                raise ValueError(f"it holds two arrays named {name[:60]!r}")
            found[name] = array
        return found

    def _iterate_named(self, entries: dict[Any, Any], prefix: str, level: int) -> Iterator[tuple[str, np.ndarray]]:
        self._count(_ENTRY * len(entries), level)
        for key, value in entries.items():
            name = prefix + _name(key)
            if type(value) is dict:
                yield from self._iterate_named(value, f"{name}/", level + 1)
            elif type(value) in (PickledArray, list, tuple):
                yield name, self._array(value, level + 1)
            elif not isinstance(value, int | float | str | None):
                raise RefusedPickle(f"{type(value).__name__} {name[:60]!r}")

    def _array(self, value: Any, level: int) -> np.ndarray:
        if type(value) is PickledArray and value.value is not None:
            self._count(value.value.nbytes, level)
            return value.value
        if type(value) not in (list, tuple):
            raise RefusedPickle(f"{type(value).__name__.lstrip('_')} instead of an array")
        kinds = {type(each) for each in value}
        longest = max(map(len, value), default=0) if kinds == {str} else 1
        self._count(max(_ENTRY, 4 * longest) * len(value), level)
        if kinds <= {int, float} or kinds == {str}:
            made = np.array(value)
        else:
            arrays = [self._array(each, level + 1) for each in value]
            if len({each.shape for each in arrays}) > 1:
                raise RefusedPickle("a list of arrays of different shapes")
            made = np.stack(arrays)
        if made.dtype.kind not in "biufUS":
            raise ValueError("a list has integers of more than 64 bits")
        return made

    def _count(self, declared: int, level: int) -> None:
        self.declared += declared
        check_size(self.declared, self.size)
        if level > _LEVELS:
            raise RefusedPickle(f"more than {_LEVELS} nested lists or dictionaries")


def _name(key: Any) -> str:
    value = key.value.item() if type(key) is PickledArray and key.value is not None and key.value.ndim == 0 else key
    if isinstance(value, bytes):
        return value.decode()
    if type(value) not in (str, int):
        raise RefusedPickle("a key that is neither text nor an integer")
    return str(value)
