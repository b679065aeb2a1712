"""Readers of arrays in third-party files: .npy, .npz, .h5, .parquet and .tar.

Every reader compares the sizes that a file declares with the size of the file before it allocates memory. It opens only
regular files, does not unpickle, does not extract to the disk, and does not read another file.

Shapes: T vectors per video, d dimensions of a vector.
"""

from __future__ import annotations

import importlib
import io
import math
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.text_files import MIB, open_regular

CANARIES = "canaries.npz"  # in a folder of features: vectors of the canary inputs (vectors/canaries.py), not a video
NAMED = "name.txt"  # extension of a name's file in a shard; in third-party shards, a file .txt is a caption
SPARE, RATIO = 256 * MIB, 64  # a file may declare SPARE + RATIO times its own size, in bytes
Arrays = dict[str, np.ndarray]
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def load_npy(path: str | Path, mapped: bool = False) -> np.ndarray:
    """Read a .npy file.

    Args:
        path: the file.
        mapped: whether to memory-map the array read-only instead of reading it.

    Raises:
        VideoError: if the file is damaged, is not a .npy file, or contains Python objects.
    """
    try:
        with open_regular(Path(path)) as file:
            check_npy(file, file.seek(0, io.SEEK_END))
            if not mapped:
                return np.lib.format.read_array(file, allow_pickle=False)
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return found
    except ConfigError as error:
        raise VideoError(str(path), str(error.at(""))) from error
    except Exception as error:  # numpy: ValueError, EOFError, TypeError, OverflowError, MemoryError, TokenError, ...
        raise VideoError(str(path), f"cannot be read as an array ({reason_of(error)})") from error


def check_npy(file: IO[bytes], size: int) -> None:
    """Check that a .npy file of `size` bytes contains the numeric array that its header declares; rewind the file."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"its format is {version[0]}.{version[1]}, not 1.0 or 2.0")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, not numbers; np.savez(FILE, **OBJECTS) writes arrays by name")
    if dtype.names is not None:
        raise ValueError(f"it is a structured array with fields {', '.join(dtype.names)[:40]}; save one field alone")
    if any(n < 0 for n in shape) or file.tell() + math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header declares the shape {str(shape)[:60]}, but the file has {size} bytes")
    file.seek(0)


def read_npz(path: Path) -> Arrays | np.ndarray:
    """Read a .npz file of `np.savez` or `np.savez_compressed` as name -> array; return one unnamed array as it is."""
    found: Arrays = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_size(sum(entry.file_size for entry in entries), file.seek(0, io.SEEK_END))
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name == entry.filename or name in found:
                    fault = "is in it twice" if name in found else "in it is not a .npy file"
                    raise ValueError(f"{entry.filename[:60]!r} {fault}")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("its compression method differs from np.savez_compressed")
                with archive.open(entry) as stream:
                    check_npy(stream, entry.file_size)
                    found[name] = np.lib.format.read_array(stream, allow_pickle=False)
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is not a .npz file: {reason_of(error)}") from error
    return found["arr_0"] if set(found) == {"arr_0"} else found  # the name that `np.savez` gives an unnamed array


def read_h5(path: Path) -> Arrays:
    """Read the numeric datasets of an HDF5 file; compound types and text are skipped.

    If there is one numeric dataset and one list of strings, the list is also returned, as the names of the rows.
    External storage, external links and virtual datasets are refused, because they would read other files of the user.
    """
    h5py = optional("h5py", path)
    found: Arrays = {}
    with open_regular(path) as regular, h5py.File(path, "r") as file:
        datasets = list(_datasets(h5py, file, "", set()))
        for name, dataset in datasets:
            if dataset.external or dataset.is_virtual:
                raise ValueError(f"{name[:60]!r} is stored in another file")
        datasets = [(name, dataset) for name, dataset in datasets if dataset.shape is not None]
        numbers = [(name, dataset) for name, dataset in datasets if dataset.dtype.kind in "biufc"]
        size = regular.seek(0, io.SEEK_END)
        check_size(sum(dataset.nbytes for _, dataset in numbers), size)
        for name, dataset in numbers:
            found[name] = dataset[()]
        texts = [(name, each) for name, each in datasets if h5py.check_string_dtype(each.dtype) and each.ndim == 1]
        if len(numbers) == len(texts) == 1:
            found[texts[0][0]] = _texts(texts[0][1], size)
    return found


def _texts(dataset: Any, size: int) -> np.ndarray:
    """Read strings one by one up to a limit, because many elements may refer to one long string."""
    read: list[str] = []
    left = SPARE + RATIO * size
    for place in range(len(dataset)):
        read.append(dataset[place].decode())
        left -= len(read[-1])
        if left < 0:
            raise ValueError(f"its text has more than {RATIO} times the bytes of the file")
    return np.array(read)


def _datasets(h5py: Any, group: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield each dataset under each of its hard-link names (`visititems` yields one name); visit each group once."""
    seen.add(h5py.h5o.get_info(group.id).addr)
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            node = group[name]
            if isinstance(node, h5py.Dataset):
                yield prefix + name, node
            elif isinstance(node, h5py.Group) and h5py.h5o.get_info(node.id).addr not in seen:
                yield from _datasets(h5py, node, f"{prefix}{name}/", seen)


def read_tar(path: Path) -> Arrays:
    """Read the .npy files of a WebDataset shard as name -> array; other files in the shard are skipped."""
    arrays: Arrays = {}
    names: dict[str, str] = {}
    with open_regular(path) as regular, open_tar(regular) as archive:
        size = regular.seek(0, io.SEEK_END)
        regular.seek(0)
        for member in archive:
            key, kind = _key_of(member.name)
            if not kind:
                continue
            if not member.isreg() or member.issparse() or member.size > size:
                raise ValueError(f"{member.name[:60]!r} is not a complete regular file in it")
            if key in (arrays if kind == "npy" else names):
                raise ValueError(f"{member.name[:60]!r} is in it twice")
            stream = archive.extractfile(member)
            assert stream is not None  # a regular file
            if kind == "npy":
                content = io.BytesIO(stream.read())
                check_npy(content, member.size)
                arrays[key] = np.lib.format.read_array(content, allow_pickle=False)
            else:
                names[key] = stream.read().decode()
        check_tar_end(archive, regular)
    if not arrays:
        raise ValueError("it does not contain a .npy file")
    found = {names.get(key, key): array for key, array in arrays.items()}
    if len(found) < len(arrays):
        raise ValueError("two of its .npy files have the same name")
    return found


def open_tar(file: IO[bytes]) -> tarfile.TarFile:
    """Open an uncompressed tar archive. Compressed archives are refused, because their size is unknown beforehand.

    Raises:
        ValueError: if the archive is compressed.
    """
    start = file.read(6)
    file.seek(0)
    for mark, command in {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz"}.items():
        if start.startswith(mark):
            raise ValueError(f"it is compressed; decompress it with {command}")
    return tarfile.open(fileobj=file, mode="r:")


_PADDING = 64 * MIB  # zeros after the members; `tar` fills a record, whose usual size is 10 KiB


def check_tar_end(archive: tarfile.TarFile, file: IO[bytes]) -> None:
    """Check that only zeros follow the last member of an archive, whose members must have been listed.

    Python silently stops at a damaged header and at the end of the first of two concatenated archives.

    Raises:
        ValueError: if the end of the archive is missing, or other bytes follow.
    """
    file.seek(archive.offset)
    length = 0
    while block := file.read(MIB):
        length += len(block)
        if block.strip(b"\0"):
            raise ValueError(f"after byte {archive.offset} it is damaged, or another archive follows")
        if length > _PADDING:
            raise ValueError(f"more than {_PADDING // MIB} MB of zeros follow byte {archive.offset}; download it again")
    if length < tarfile.BLOCKSIZE:
        raise ValueError("its end is missing: it was not closed, or not downloaded completely")


def _key_of(member: str) -> tuple[str, str]:
    """Split a member's name into its key and its kind; the kind is "" if the member is skipped.

    Unlike in WebDataset, a key does not end at its first dot, so that "a.1.npy", "a.2.npy" and "a.mp4.npy" have the
    same keys as in a folder: "a.1", "a.2" and "a.mp4".
    """
    hidden = member.rpartition("/")[2].startswith("._")  # macOS adds one for each file
    kind = next((kind for kind in ("npy", NAMED) if member.endswith(f".{kind}")), "")
    return member.removesuffix(f".{kind}"), "" if hidden else kind


def read_parquet(path: Path) -> Arrays:
    """Read name -> features from the columns name, features (lists of numbers or of such lists) and, optionally, row.

    The vectors of a name are stacked in the order of their rows: (T, d).

    Raises:
        ConfigError: if a column is missing.
        ValueError: if a column has another type, or a value is missing or repeated.
    """
    parquet, types = optional("pyarrow.parquet", path), optional("pyarrow.types", path)
    vectors: dict[str, list[tuple[int, np.ndarray]]] = {}
    number = 0
    with open_regular(path) as regular:
        whole = parquet.ParquetFile(regular)
        columns = _columns(path, whole.schema_arrow, types)
        whole.scan_contents(
            columns, batch_size=65_536
        )  # in pieces; a damaged footer raises here, but would abort below
        check_size(sum(declared_bytes(whole.metadata, columns)), regular.seek(0, io.SEEK_END))
        file = parquet.ParquetFile(regular, read_dictionary=["name"])  # long names may repeat in every line
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            cells = [batch.column(batch.schema.get_field_index(column)) for column in columns]
            texts = cells[0].dictionary.to_pylist() if types.is_dictionary(cells[0].type) else None
            indices = cells[0].indices.to_pylist() if texts is not None else cells[0].to_pylist()
            rows = cells[2].to_pylist() if len(cells) > 2 else [0] * len(batch)
            for index, features, row in zip(indices, cells[1], rows):
                number += 1
                if index is None or row is None or (texts is not None and texts[index] is None):
                    raise ValueError(f"row {number}: {'name' if row is not None else 'row'} is missing (null)")
                name = str(index if texts is None else texts[index])
                vectors.setdefault(name, []).append((row, _numbers(features, f"row {number} ({name[:40]!r})")))
    return {name: _stack_rows(name, found, len(columns) > 2) for name, found in vectors.items()}


def _columns(path: Path, schema: Any, types: Any) -> list[str]:
    """Check the types of the columns that are read; return their names."""
    for name in ("name", "features"):
        if schema.get_all_field_indices(name) == []:
            raise ConfigError(f"{path}: column {name!r} is missing. Columns: name, features and, for frames, row.")
    columns = ["name", "features"] + (["row"] if schema.get_all_field_indices("row") else [])
    if twice := [name for name in columns if len(schema.get_all_field_indices(name)) > 1]:
        raise ValueError(f"it has two columns {twice[0]!r}")
    kind = schema.field("features").type
    while _is_list(kind, types):
        kind = kind.value_type
    if not _is_list(schema.field("features").type, types) or not (types.is_integer(kind) or types.is_floating(kind)):
        raise ValueError(f"features are {str(schema.field('features').type)[:60]}, not lists of numbers")
    if "row" in columns and not types.is_integer(schema.field("row").type):
        raise ValueError(f"column 'row' has type {str(schema.field('row').type)[:60]}, not an integer type")
    kind = schema.field("name").type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind)):
        raise ValueError(f"name is {str(kind)[:60]}, not text")
    return columns


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def declared_bytes(metadata: Any, columns: Iterable[str]) -> list[int]:
    """Return the declared bytes of the columns of each row group, counted with at least 8 bytes for each value.

    Parquet stores a repeated value once, but each repetition needs memory.
    """
    paths = [metadata.schema.column(place).path.partition(".")[0] for place in range(metadata.num_columns)]
    places, found = [place for place, path in enumerate(paths) if path in columns], []
    for group in range(metadata.num_row_groups):
        chunks = [metadata.row_group(group).column(place) for place in places]
        found.append(sum(max(8 * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks))
    return found


def _numbers(cell: Any, where: str) -> np.ndarray:
    """Convert a list of numbers, or a list of such lists of equal length, to an array."""
    values = cell.values
    if values is None or values.null_count:
        raise ValueError(f"{where}: features are missing (null)")
    if values.type.num_fields == 0:
        numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
        return numbers
    return np.stack([_numbers(each, where) for each in values])


def _stack_rows(name: str, found: list[tuple[int, np.ndarray]], has_rows: bool) -> np.ndarray:
    """Stack the vectors of a name in the order of their rows; without a column row, a name has one vector."""
    if not has_rows:
        if len(found) > 1:
            raise ValueError(f"{name[:60]!r} occurs in {len(found)} lines, but a column row is missing")
        return found[0][1]
    rows = [row for row, _ in found]
    if len(set(rows)) < len(rows):
        raise ValueError(f"{name[:60]!r} has two vectors with the value {max(rows, key=rows.count)} in the column row")
    if len({vector.shape for _, vector in found}) > 1:
        raise ValueError(f"{name[:60]!r} has vectors of different lengths")
    return np.stack([vector for _, vector in sorted(found, key=lambda each: each[0])])


def check_size(declared: int, size: int) -> None:
    """Check that a file does not need far more memory than its size.

    Raises:
        ValueError: if `declared` is more than SPARE + RATIO * `size` (all in bytes).
    """
    if declared > SPARE + RATIO * size:
        raise ValueError(
            f"it declares {declared / MIB:.0f} MB in a file of {size / MIB:.3g} MB, more than {RATIO} times as much"
        )


def optional(module: str, path: Path) -> Any:
    """Import the package that a kind of file needs.

    Raises:
        ConfigError: if the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f".{path.suffix.lstrip('.')} needs {package}: pip install {package}", path.name) from error


def reason_of(error: BaseException) -> str:
    """Return the first line of a library's error message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
