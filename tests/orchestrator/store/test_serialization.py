"""The file format: other readers can open it, and every changed byte is detected."""

import json
import struct

import numpy as np
import pytest

from ctvr.orchestrator.errors import CorruptObject
from ctvr.orchestrator.store.serialization import pack, pack_json, unpack, unpack_json

ARRAYS = {
    "frames": np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4),
    "times": np.array([0.5, np.nan]),
    "half": np.arange(3, dtype=np.float16),
    "flags": np.array([True, False, True]),
    "scalar": np.asarray(7, np.int64),
    "none": np.zeros((0, 5), np.float32),
    "strided": np.arange(12, dtype=np.int32).reshape(3, 4)[::2, ::-1],
    "big_endian": np.arange(3, dtype=">i4"),
}


def packed(name="k/a.safetensors", arrays=ARRAYS, meta=None):
    return b"".join(pack(name, arrays, meta or {"decoder": "pyav", "n": [1, None]}))


def read(data, name="k/a.safetensors"):
    return unpack(name, np.frombuffer(data, np.uint8))


def test_read_arrays_equal_the_stored_ones():
    arrays = read(packed())
    assert arrays.meta == {"decoder": "pyav", "n": [1, None]}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype.newbyteorder("<")
        assert arrays[name].flags.aligned
        assert not arrays[name].flags.writeable


def test_safetensors_reads_our_files(tmp_path):
    from safetensors.numpy import load

    arrays = load(packed())
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_every_flipped_bit_is_found():
    data = packed(arrays={"x": np.arange(5, dtype=np.float32)})
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptObject):
            read(bytes(flipped))


def test_every_truncation_and_extension_is_found():
    data = packed(arrays={"x": np.arange(5, dtype=np.float32)})
    for length in range(len(data)):
        with pytest.raises(CorruptObject):
            read(data[:length])
    with pytest.raises(CorruptObject):
        read(data + b"\0")


def test_an_object_under_another_name_is_damaged():
    with pytest.raises(CorruptObject, match="contains the object"):
        read(packed(), "k/b.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "O8", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2]},
        None,
    ],
)
def test_hostile_headers_are_refused_even_without_the_digest(entry):
    metadata = {"sha256": "0" * 64, "name": "n", "meta": "{}"}
    text = json.dumps({"__metadata__": metadata, "x": entry}).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(8)
    with pytest.raises(CorruptObject):
        unpack("n", np.frombuffer(data, np.uint8), verify=False)


def test_a_deeply_nested_header_is_refused():
    text = b"[" * 100_000
    with pytest.raises(CorruptObject):
        read(struct.pack("<Q", len(text)) + text)


def test_arrays_that_cannot_be_stored_say_so():
    with pytest.raises(ValueError, match=r"array 'x' of k/a has dtype object"):
        pack("k/a", {"x": np.array([{}])}, {})
    with pytest.raises(ValueError, match="JSON"):
        pack("k/a", {}, {"x": {1, 2}})


def test_json_comes_back_equal_and_every_flipped_bit_is_found():
    value = {"b": [1, 2.5, None, "é"], "a": {"nested": True}, "nan": float("inf")}
    data = pack_json("k/a.json", value)
    assert unpack_json("k/a.json", data) == value
    with pytest.raises(CorruptObject):
        unpack_json("k/b.json", data)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptObject):
            unpack_json("k/a.json", bytes(flipped))
        with pytest.raises(CorruptObject):
            unpack_json("k/a.json", data[:position])
