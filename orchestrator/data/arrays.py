"""Named arrays in files of other programs: .npy, .npz, .pt, .h5, .parquet, .tar, .pkl, and folders of them.

Files cannot execute code: .npy and .npz files with Python objects are refused, and .pkl and .pt files are read by
restricted unpicklers (`pickled_arrays.py`, `torch_arrays.py`).
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from ctvr.orchestrator.data.array_files import (
    CANARIES,
    NAMED,
    Arrays,
    load_npy,
    optional,
    read_h5,
    read_npz,
    read_parquet,
    read_tar,
    reason_of,
)
from ctvr.orchestrator.data.pickled_arrays import read_pickled_arrays
from ctvr.orchestrator.data.torch_arrays import read_torch_arrays
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.text_files import open_regular

FORMS = ("npy", "npz", "pt", "h5", "parquet", "tar")
# Kinds of files in a folder; the first that occur are read, so weights or labels next to arrays are ignored
FOLDERS = ((".npy", ".npz", ".tar"), (".pt", ".pth"), (".h5", ".hdf5"), (".pkl", ".pickle"), (".parquet",))
SHARDS = {".tar", ".parquet"}  # kinds of files that contain several names each
FEATURES = ("features", "last_hidden_state")  # names of the array that is read from a file with several arrays
COLUMNS = ("name", "row", "features")  # columns of .parquet, which has one row for each vector


def read_arrays(path: Path, join_ids: bool = True) -> Arrays | np.ndarray:
    """Read a file or folder as name -> array, or as one array if it lacks names (.npy, or a .pt with one tensor).

    Args:
        path: a file or a folder, by extension:
            .npy: one array.
            .npz: arrays by name, or an array of names and an array of features in the same order.
            .pt, .pth: a tensor, or a dictionary of tensors.
            .h5, .hdf5: datasets by name.
            .parquet: columns name, features and, for several vectors of a name, row.
            .tar: a WebDataset shard with KEY.npy, and with KEY.name.txt if the name is not the key.
            .pkl, .pickle: a dictionary of numpy arrays, or one array or list.
            folder: shards (.tar, .parquet), or one file per name: NAME.npy, or another kind of file with one array or
                with an array that is named as in FEATURES.
        join_ids: whether to combine an array of names and an array of features, if a file has only these two arrays.

    Raises:
        ConfigError: for an unknown kind of file, an unreadable file, contents other than arrays, or a missing package.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such file. Pass one that ends in {_list_endings()}, or a folder of .npy files.")
    open_regular(path).close()
    readers: dict[str, Callable[[Path], Arrays | np.ndarray]] = {
        "npy": _read_npy,
        "npz": read_npz,
        "pt": read_torch_arrays,
        "pth": read_torch_arrays,
        "h5": read_h5,
        "hdf5": read_h5,
        "parquet": read_parquet,
        "tar": read_tar,
        "pkl": read_pickled_arrays,
        "pickle": read_pickled_arrays,
    }
    reader = readers.get(path.suffix.lstrip(".").lower())
    if reader is None:
        raise ConfigError("unknown file format", path, remedy=f"Use {_list_endings()}, or a folder of .npy files.")
    try:
        found = reader(path)
        return _join_ids(found) if join_ids else found
    except ConfigError:
        raise
    except Exception as error:  # five libraries with their own exception classes
        remedy = "Save it again (docs/vectors.md lists the formats)."
        raise ConfigError(f"cannot be read as arrays ({reason_of(error)})", path, remedy=remedy) from error


def _read_folder(folder: Path) -> Arrays:
    """Read all files of one kind below a folder as name -> array; a name is a relative path without its extension."""
    every = [file for file in sorted(folder.rglob("[!.]*")) if file != folder / CANARIES and not file.is_dir()]
    every = [file for file in every if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    chosen = ([file for file in every if file.suffix.lower() in kinds] for kinds in FOLDERS)
    files = next((found for found in chosen if found), [])
    kinds = {file.suffix.lower() for file in files}
    if ".tar" in kinds and len(kinds) > 1:
        remedy = "Use a folder that contains either shards or files of single videos."
        raise ConfigError("has shards (.tar) next to files of single videos", folder, remedy=remedy)
    if kinds & SHARDS:
        shards = [read_arrays(file) for file in files]
        found = [(name, array) for shard in shards if isinstance(shard, dict) for name, array in shard.items()]
    else:
        found = [(file.relative_to(folder).with_suffix("").as_posix(), _read_video_file(file)) for file in files]
    if not found:
        remedy = "Use a file, one file for each video (NAME.npy, .npz, .pt, .h5 or .pkl), or shards (.tar, .parquet)."
        raise ConfigError("does not contain an array", folder, remedy=remedy)
    if len(arrays := dict(found)) < len(found):
        twice = next(name for name, count in Counter(name for name, _ in found).items() if count > 1)
        raise ConfigError(f"{twice[:60]!r} is in two files", folder, remedy="Keep one of them.")
    return arrays


def _read_video_file(file: Path) -> np.ndarray:
    """Return the features of one video from its own file."""
    found = read_arrays(file, join_ids=False)
    if isinstance(found, np.ndarray):
        return found
    name = next(iter(found)) if len(found) == 1 else next((name for name in FEATURES if name in found), None)
    if name is None:
        raise ConfigError(
            f"{file}: has {len(found)} arrays ({', '.join(found)[:80]}). Rename one of them to 'features'."
        )
    return found[name]


def _join_ids(found: Arrays | np.ndarray) -> Arrays | np.ndarray:
    """Convert an array of names and an array of features in the same order to name -> array; return others unchanged.

    Names are strings, or integers in an array whose name ends in "id" or "ids".

    Raises:
        ValueError: if a name occurs twice, or a row has no name.
    """
    if isinstance(found, np.ndarray) or len(found) != 2:
        return found
    names, values = sorted(found.values(), key=lambda array: (array.dtype.kind not in "US", array.ndim))
    kinds = "USiu" if any(key.lower().endswith(("id", "ids")) and found[key] is names for key in found) else "US"
    if names.dtype.kind not in kinds or names.ndim != 1 or values.ndim < 2:
        return found
    if len(names) != len(values):
        raise ValueError(f"it has {len(names)} names and {len(values)} feature vectors")
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]
    if len(set(texts)) < len(texts):
        raise ValueError(f"{next(name for name in texts if texts.count(name) > 1)!r:.60} occurs twice")
    return dict(zip(texts, values))


def read_features(path: str) -> np.ndarray:
    """Read the vectors (T, d) float32 of a video.

    Raises:
        VideoError: if the file is not an array (T, d) or (d,) of finite numbers.
    """
    return validate_features(load_npy(path), path)


def validate_features(found: np.ndarray, name: str) -> np.ndarray:
    """Return features as (T, d) float32; a single vector (d,) has T = 1.

    Raises:
        VideoError: if the features are not finite in float32, or have another shape than (T, d) or (d,).
    """
    vectors = found[None] if found.ndim == 1 else found
    if vectors.ndim != 2 or not vectors.size or vectors.dtype.kind not in "fiu":
        raise VideoError(
            name, f"features have shape {found.shape} of {found.dtype}, not (frames, d) or (d,) of numbers"
        )
    with np.errstate(over="ignore"):  # overflow of float64, detected below
        features = np.ascontiguousarray(vectors, dtype=np.float32)
    if not np.isfinite(features).all():
        raise VideoError(name, "features contain NaN or infinite values, or values outside the float32 range")
    return features


def write_arrays(path: Path, arrays: Iterable[tuple[str, np.ndarray]]) -> Path:
    """Write arrays in a format that `read_arrays` reads; return the path of the file or, for .npy, of the folder.

    Args:
        path: the file, whose extension (one of FORMS) determines the format; for .npy, the folder with this extension.
        arrays: names and arrays; .npy, .npz, .h5 and .tar keep one at a time in memory, .pt and .parquet keep all.

    Raises:
        ConfigError: for an unknown extension, a missing package, or a name that points outside the folder.
    """
    form = path.suffix.lstrip(".")
    if form not in FORMS:
        raise ConfigError("cannot write this file format", path, remedy=f"Use one of {', '.join(FORMS)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "npy":
        folder = path.with_suffix("")
        folder.mkdir(exist_ok=True)
        for name, array in arrays:
            file = folder / f"{name}.npy"
            if not file.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(f"{name!r}: as a file name it points outside its folder. Use .npz, or rename it.")
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, array, allow_pickle=False)
        return folder
    if form == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    elif form == "pt":
        import torch

        torch.save({name: torch.from_numpy(np.array(array)) for name, array in arrays}, path)
    elif form == "h5":
        with optional("h5py", path).File(path, "w") as hdf:
            for name, array in arrays:
                hdf.create_dataset(name, data=array)
    elif form == "tar":
        _write_tar(path, arrays)
    else:
        _write_parquet(path, dict(arrays))
    return path


def _read_npy(path: Path) -> np.ndarray:
    try:
        return load_npy(path)
    except VideoError as error:
        raise ConfigError(error, remedy="Save it again.") from error


def _write_tar(path: Path, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a WebDataset shard. Its keys are consecutive integers, because a dot in a name would end the key."""
    with tarfile.open(path, "w") as archive:
        for number, (name, array) in enumerate(arrays):
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(array), allow_pickle=False)
            for kind, content in (("npy", data.getvalue()), (NAMED, name.encode())):
                entry = tarfile.TarInfo(f"{number:06d}.{kind}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def _write_parquet(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    parquet, arrow = optional("pyarrow.parquet", path), optional("pyarrow", path)
    lines = [
        (name, row, vector)
        for name, array in arrays.items()
        for row, vector in enumerate(np.atleast_2d(array).reshape(-1, array.shape[-1]).tolist())
    ]
    is_half = all(array.dtype == np.float16 for array in arrays.values())
    kind = arrow.list_(arrow.float16() if is_half else arrow.float32())
    columns = [arrow.array([line[0] for line in lines]), arrow.array([line[1] for line in lines])]
    columns.append(arrow.array([line[2] for line in lines], type=kind))
    parquet.write_table(arrow.table(dict(zip(COLUMNS, columns))), path)


def _list_endings() -> str:
    return ", ".join(f".{form}" for form in (*FORMS, "pkl"))
