"""Size in memory of the batches of an Arrow file, read from the batches' headers before anything is decompressed.

pyarrow decompresses a batch as a whole and has no limit. A header is a FlatBuffer (Arrow's format/Message.fbs). A
field outside the header raises struct.error.
"""

from __future__ import annotations

import struct
from typing import Any

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # MessageHeader


def declared_bytes(source: Any) -> int:
    """Return the decompressed size of all batches of a stream in bytes, plus 8 bytes per row.

    `source` is read to its end.
    """
    import pyarrow as arrow

    total = 0
    for message in iter(arrow.ipc.MessageReader.open_stream(source)):
        total += _message_bytes(memoryview(message.metadata), message.body)
    return total


def _message_bytes(header: memoryview, body: Any) -> int:
    message = _at(header, 0)
    kind = header[place] if (place := _field(header, message, 1)) else 0
    place = _field(header, message, 2)
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not place:
        return 0
    batch = _at(header, place)
    if kind == _DICTIONARY_BATCH:
        batch = _at(header, _field(header, batch, 1))
    rows, buffers = _field(header, batch, 0), _field(header, batch, 2)
    total = 8 * max(0, struct.unpack_from("<q", header, rows)[0]) if rows else 0
    is_compressed, vector = _field(header, batch, 3), _at(header, buffers)
    content = memoryview(body) if body is not None else memoryview(b"")
    for number in range(struct.unpack_from("<I", header, vector)[0] if buffers else 0):
        offset, length = struct.unpack_from("<qq", header, vector + 4 + 16 * number)
        if is_compressed and length:  # a buffer begins with its uncompressed length, or -1 if it is not compressed
            (whole,) = struct.unpack_from("<q", content, offset)
            length = max(length, whole)
        total += max(0, length)
    return total


def _at(header: memoryview, place: int) -> int:
    """Return the offset of the table or vector to which the reference at `place` points."""
    return place + int(struct.unpack_from("<I", header, place)[0])


def _field(header: memoryview, table: int, number: int) -> int:
    """Return the offset of field `number` of a table; 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    (size,) = struct.unpack_from("<H", header, vtable)
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", header, vtable + place)[0] if place < size else 0
    return table + offset if offset else 0
