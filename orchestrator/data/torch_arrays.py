"""Reader of tensors that `torch.save` wrote, as numpy arrays. It does not run code of the file or import torch.

`pickled_arrays.py` reads the pickle in the file; this module adds replacements for the classes of tensors and storages.
A file is a zip archive of the pickle and the bytes of each storage (torch >= 1.6), or pickles followed by these bytes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from ctvr.orchestrator.data.array_files import Arrays, check_size
from ctvr.orchestrator.data.pickled_arrays import ArrayUnpickler, Expansion, PickledArray, refusals
from ctvr.orchestrator.errors import RefusedPickle
from ctvr.orchestrator.text_files import open_regular

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # files of torch before 1.6 begin with these integers
_BFLOAT16 = "bfloat16"  # which numpy lacks
_KINDS = {  # class of a storage -> type of its values
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "b1",
}


class _Kind:
    """The class of a storage, which occurs only in the ID of a storage."""

    def __init__(self, name: str) -> None:
        self.code = _KINDS[name]
        self.size = np.dtype("<u2" if self.code == _BFLOAT16 else self.code).itemsize

    def numbers(self, content: bytes, count: int) -> np.ndarray:
        """Return the values (count,) of a storage; bfloat16 becomes float32 without loss."""
        if not 0 <= count * self.size <= len(content):
            raise ValueError("it is truncated")
        if self.code != _BFLOAT16:
            return np.frombuffer(content, self.code, count)
        return (np.frombuffer(content, "<u2", count).astype("<u4") << 16).view("<f4")


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> PickledArray:
    """Return the array of `torch._utils._rebuild_tensor_v2`: a view of a storage."""
    numbers = [offset, *size, *stride]
    if type(storage) is not np.ndarray or len(size) != len(stride) or {type(n) for n in numbers} != {int}:
        raise RefusedPickle("a tensor without a storage")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride)) if all(size) else offset - 1
    if min(numbers) < 0 or last >= len(storage):
        raise ValueError("a tensor reaches beyond its storage")
    made = PickledArray()
    steps = [step * storage.itemsize for step in stride]
    made.value = np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)
    return made


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


_BUILDERS = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


class _TensorUnpickler(ArrayUnpickler):
    """Unpickler of tensors.

    Args:
        file: the pickle.
        content: returns the bytes of a storage by its key, type and number of elements.
    """

    def __init__(self, file: IO[bytes], content: Callable[[str, _Kind, int], bytes]) -> None:
        super().__init__(file, encoding="latin-1")
        self.content = content
        self.storages: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _KINDS:
            return _Kind(name)
        found = _BUILDERS.get((module, name))
        if found is None and module.partition(".")[0] == "torch":
            raise RefusedPickle(f"global {f'{module}.{name}'[:80]!r}")
        return found or super().find_class(module, name)

    def persistent_load(self, identity: Any) -> np.ndarray:
        """Return the values of a storage, or of the part of it that an old file names as (key, offset, size)."""
        _, kind, key, _, count, *view = identity
        if type(kind) is not _Kind or type(key) is not str or type(count) is not int:
            raise RefusedPickle("an unknown kind of storage")
        if key not in self.storages:
            self.storages[key] = kind.numbers(self.content(key, kind, count), count)
        if not view or view[0] is None:
            return self.storages[key]
        _, offset, size = view[0]
        return self.storages[key][offset : offset + size]


def read_torch_arrays(path: Path) -> Arrays | np.ndarray:
    """Read a file of `torch.save`: name -> tensor, a tensor, or a list of tensors of one shape, which are stacked.

    Raises:
        ConfigError: for a damaged file, contents other than tensors, or arrays that need far more memory than the file.
    """
    with open_regular(path) as file, refusals(path, "torch.save({ID: tensor}, FILE)"):
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        is_archive = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        return Expansion(size).convert(_read_archive(file, size) if is_archive else _read_legacy(file, size))


def _read_archive(file: IO[bytes], size: int) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_size(sum(entry.file_size for entry in entries), size)
            names = [entry.filename for entry in entries]
            root = next((name[:-8] for name in names if name.count("/") == 1 and name.endswith("/data.pkl")), None)
            if root is None:
                raise ValueError("a zip archive that torch did not write")
            if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
                raise ValueError("it has the byte order of a big-endian machine: load and save it on this one")
            pickled = io.BytesIO(archive.read(f"{root}data.pkl"))
            return _TensorUnpickler(pickled, lambda key, *_: archive.read(f"{root}data/{key}")).load()
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(str(error)) from error


def _read_legacy(file: IO[bytes], size: int) -> Any:
    """Read a file of torch before 1.6: magic number, protocol, system, object, keys, sizes and bytes of storages."""
    if any(ArrayUnpickler(file, encoding="latin-1").load() != number for number in (_MAGIC, _PROTOCOL)):
        raise ValueError("torch did not write it")
    if not ArrayUnpickler(file, encoding="latin-1").load().get("little_endian", True):
        raise ValueError("it has the byte order of a big-endian machine: load and save it on this one")
    start = file.tell()
    sizes, contents = dict[str, int](), dict[str, bytes]()  # key of a storage -> bytes per value, all bytes

    def zeros(key: str, kind: _Kind, count: int) -> bytes:
        sizes[key], contents[key] = kind.size, bytes(min(count * kind.size, size))
        if sum(map(len, contents.values())) > size:
            raise ValueError("it is truncated")
        return contents[key]

    _TensorUnpickler(file, zeros).load()  # the bytes come after the object, so it is read twice
    for key in ArrayUnpickler(file, encoding="latin-1").load():
        count = int.from_bytes(file.read(8), "little")
        contents[key] = file.read(min(count * sizes[key], size))
    file.seek(start)
    return _TensorUnpickler(file, lambda key, *_: contents[key]).load()
