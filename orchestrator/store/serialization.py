"""File format of objects: arrays and metadata as safetensors, with a SHA-256 of everything in the header.

The digest covers every byte of the file, with its own 64 characters set to zeros. The header also names the object, so
that a file under a wrong name is detected like a flipped bit. Any safetensors reader can open the files. The header is
parsed here, with bounds, because arrays are memory-mapped and nothing may be trusted before the digest is checked.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctvr.orchestrator.digests import canonical
from ctvr.orchestrator.errors import CorruptObject
from ctvr.orchestrator.store.keys import ARRAYS, JSON

_MAX_HEADER = 16 * 2**20  # bytes
_MAX_DIMENSIONS = 32
_ALIGN = 64  # bytes; the first array starts here so that every dtype is aligned in a memory map
_ZEROS = "0" * 64
_BEGIN, _END = b'{"sha256":"', b"}\n"  # first and last bytes of a JSON object
_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BOOL": "|b1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
}
_DTYPES = {np.dtype(code): name for name, code in _NAMES.items()}


class Arrays(dict[str, np.ndarray]):
    """Read-only arrays of an object by name, with the object's metadata as `meta`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], meta: dict[str, Any]) -> None:
        super().__init__(arrays)
        self.meta = meta

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (dict(self), self.meta)


def pack(name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> list[Any]:
    """Serialize arrays to a list of buffers whose concatenation is the file; contiguous arrays are not copied.

    Args:
        name: the name of the object in the store, which `unpack` compares.
        arrays: numeric or boolean arrays of any layout.
        meta: any value that JSON represents exactly.

    Raises:
        ValueError: for a dtype that cannot be stored, or metadata that is not JSON.
    """
    tensors: dict[str, np.ndarray] = {}
    for key, value in arrays.items():
        array = np.asarray(value, order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype not in _DTYPES:
            raise ValueError(f"array {key!r} of {name} has dtype {array.dtype}, which cannot be stored.")
        if not isinstance(key, str) or key == "__metadata__":
            raise ValueError(f"{key!r} is not a name for an array.")
        tensors[key] = array
    order = sorted(tensors, key=lambda k: (-tensors[k].itemsize, k))  # wide types first, so that all are aligned
    header: dict[str, Any] = {"__metadata__": {"sha256": _ZEROS, "name": name, "meta": canonical(meta)}}
    offset = 0
    for key in order:
        end = offset + tensors[key].nbytes
        shape = list(tensors[key].shape)
        header[key] = {"dtype": _DTYPES[tensors[key].dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"the header of {name} needs {len(text)} bytes; at most {_MAX_HEADER} are allowed.")
    head = struct.pack("<Q", len(text)) + text
    buffers = [tensors[key].reshape(-1).view(np.uint8).data for key in order if tensors[key].nbytes]
    digest = hashlib.sha256(head)
    for buffer in buffers:
        digest.update(buffer)
    return [head.replace(_ZEROS.encode(), digest.hexdigest().encode(), 1), *buffers]


def unpack(name: str, data: np.ndarray, verify: bool = True) -> Arrays:
    """Return the arrays of a file as views into its bytes, after verification.

    Args:
        name: the name of the object in the store.
        data: bytes of the file (1-d uint8), usually a memory map.
        verify: whether to check the SHA-256; name and layout are always checked.

    Raises:
        CorruptObject: if anything differs from what `pack` wrote under this name.
    """
    try:
        return _unpack(name, data, verify)
    except CorruptObject:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError, OverflowError) as error:
        raise CorruptObject(f"unreadable header ({type(error).__name__})") from None


def _unpack(name: str, data: np.ndarray, verify: bool) -> Arrays:
    if len(data) < 8:
        raise CorruptObject("too short")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > min(_MAX_HEADER, len(data) - 8):
        raise CorruptObject("header longer than the file")
    start = 8 + length
    head = data[:start].tobytes()
    header = json.loads(head[8:])
    metadata = header.pop("__metadata__")
    if metadata["name"] != name:
        raise CorruptObject(f"contains the object {metadata['name'][:80]!r}")
    if verify:
        _verify(head, data[start:], metadata["sha256"])
    arrays: dict[str, np.ndarray] = {}
    position = 0
    for key, entry in header.items():
        dtype, shape = np.dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and len(shape) <= _MAX_DIMENSIONS
        if not whole or begin != position or end - begin != math.prod(shape) * dtype.itemsize:
            raise CorruptObject(f"array {key[:80]!r} has a shape or dtype that does not match its number of bytes")
        if start + end > len(data):
            raise CorruptObject("truncated")
        arrays[key] = data[start + begin : start + end].view(dtype).reshape(shape)
        arrays[key].flags.writeable = False
        position = end
    if start + position != len(data):
        raise CorruptObject("more bytes than declared")
    return Arrays(arrays, json.loads(metadata["meta"]))


def _verify(head: bytes, payload: np.ndarray, declared: str) -> None:
    if len(declared) != 64 or not declared.isascii():
        raise CorruptObject("its header lacks a digest")
    digest = hashlib.sha256(head.replace(declared.encode(), _ZEROS.encode(), 1))
    digest.update(payload.data)
    if digest.hexdigest() != declared:
        raise CorruptObject("its SHA-256 differs")


def pack_json(name: str, value: Any) -> bytes:
    """Serialize to `{"sha256": ..., "name": ..., "value": ...}` with sorted keys; the digest covers name and value.

    Raises:
        ValueError: if the value is not JSON.
    """
    text = canonical(value).encode()
    return b"".join([_BEGIN, _digest_of_text(name, text), _encode_name(name), text, _END])


def _encode_name(name: str) -> bytes:
    """Return the bytes of the file between the digest and the value, which contain the name."""
    return f'","name":{json.dumps(name)},"value":'.encode()


def _digest_of_text(name: str, text: bytes) -> bytes:
    return hashlib.sha256(f"{name}\n".encode() + text).hexdigest().encode()


def unpack_json(name: str, data: bytes) -> Any:
    """Return the value that `pack_json` serialized.

    Raises:
        CorruptObject: if a byte differs from what was stored under this name.
    """
    between, at = _encode_name(name), len(_BEGIN)
    text = data[at + 64 + len(between) : -len(_END)]
    if data != b"".join([_BEGIN, _digest_of_text(name, text), between, text, _END]):
        raise CorruptObject("its SHA-256 differs")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptObject(f"is not a JSON object of the store ({type(error).__name__})") from None


def check(name: str, data: bytes) -> None:
    """Verify an object of either format against its digest.

    Raises:
        CorruptObject: if it differs from the object that was stored under this name.
    """
    if name.endswith(JSON):
        unpack_json(name, data)
    elif name.endswith(ARRAYS):
        unpack(name, np.frombuffer(data, np.uint8))
    else:
        raise CorruptObject("not an object of this store")
