"""Reader of pickled checkpoints that calls only the functions with which torch builds tensors.

A checkpoint often holds more than weights: the arguments of a training script, a numpy scalar, an optimizer, a whole
module. Every name in the file that does not build a tensor becomes an `Inert` object, which records its parts and does
not run code. So reading the weights needs neither the packages nor the code that the file names.

The child process of weights.py uses this reader.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_OBJECTS = 200_000  # maximum number of dictionaries, modules and tensors in a file; large checkpoints have thousands
Place = tuple[str, ...]  # path of a tensor: names of the dictionaries and modules that contain it, then its own name
_ZIP = b"PK\x03\x04"
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # with which files of torch before 1.6 begin
_BUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
_NOT_WEIGHTS = ("optim", "scheduler", "lr_sched", "scaler", "loss_scaler", "amp")  # prefixes of names that are skipped
# Weights do not need these names. A name would not run a program here, but a file with one of them is refused anyway
_PROGRAMS = {
    "os",
    "posix",
    "nt",
    "sys",
    "subprocess",
    "pty",
    "shutil",
    "runpy",
    "importlib",
    "ctypes",
    "socket",
    "commands",
}
_CALLS = {"eval", "exec", "execfile", "compile", "open", "__import__", "input", "breakpoint"}


class Inert:
    """Replacement for a named object that does not build a tensor; it records the object's parts."""

    def __new__(cls, *_: Any, **__: Any) -> Inert:
        made = super().__new__(cls)
        made.state, made.entries = None, {}
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any
        self.entries: dict[Any, Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, name: Any, value: Any) -> None:
        self.entries[name] = value

    def append(self, value: Any) -> None:
        """Accept and drop an element of a list-like object that is not a Python list."""

    def extend(self, values: Any) -> None:
        """Accept and drop elements of a list-like object that is not a Python list."""


class Reader(pickle.Unpickler):
    """An unpickler that replaces names that do not build tensors by `Inert`, and rejects names of programs."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _PROGRAMS or (module in {"builtins", "__builtin__"} and name in _CALLS):
            raise pickle.UnpicklingError(f"it refers to the program {module}.{name}; do not use this file")
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in {("builtins", "set"), ("__builtin__", "set")}:
            return set
        if module == "torch._utils" and name in _BUILDERS:
            return getattr(torch._utils, name)
        if module == "torch._utils" and name == "_rebuild_parameter_with_state":
            return _build_parameter
        if module == "torch._tensor" and name == "_rebuild_from_type_v2":
            return _build_from_type
        found = getattr(torch, name, None) if module == "torch" else None
        is_plain = isinstance(found, torch.dtype) or found is torch.Size
        is_storage = name.endswith("Storage") and isinstance(found, type)
        return found if is_plain or is_storage else Inert


def _build_parameter(data: Any, requires_grad: bool, hooks: Any, _: Any) -> Any:
    return torch._utils._rebuild_parameter(data, requires_grad, hooks)


def _build_from_type(build: Any, _: Any, arguments: Any, __: Any) -> Any:
    return build(*arguments)


def read(content: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors of a torch.save or torch.jit.save file by their dotted names.

    The tensors may be in nested dictionaries and in pickled modules. If the file is a single tensor, its name is empty.

    Args:
        content: bytes of the file.

    Raises:
        Exception: any exception that pickle, zipfile and torch raise for a damaged file.
        ValueError: for a file without a tensor, with two tensors of one name, or with more than `MAX_OBJECTS` objects.
    """
    found = _read_archive(content) if content[:4] == _ZIP else _read_legacy(content)
    if isinstance(found, torch.Tensor):
        return {"": found}
    tensors: dict[Place, torch.Tensor] = {}
    names: dict[str, torch.Tensor] = {}
    for number, (place, value) in enumerate(_flatten(found, (), ())):
        if number > MAX_OBJECTS:
            raise ValueError(f"it holds more than {MAX_OBJECTS} objects")
        if value is None:
            continue
        if names.setdefault(".".join(place), value) is not value:  # {1: x, "1": y}, {"a.b": x, "a": {"b": y}}
            raise ValueError(f"it holds two tensors named {'.'.join(place)}")
        tensors[place] = value
    if not tensors:
        kind = "an object" if isinstance(found, Inert) else f"a {type(found).__name__}"
        raise ValueError(f"it holds {kind} and no tensor")
    while len({place[0] for place in tensors}) == 1 and all(len(place) > 1 for place in tensors):
        tensors = {place[1:]: value for place, value in tensors.items()}  # one dictionary contains all weights
    return {".".join(place): value for place, value in tensors.items()}


def _flatten(found: Any, place: Place, around: tuple[int, ...]) -> Iterator[tuple[Place, torch.Tensor | None]]:
    """Yield (path, tensor) for each tensor, and (path, None) for each dictionary and module.

    Optimizers, schedulers and gradient scalers are skipped.

    Args:
        found: the unpickled object, or a part of it.
        place: dotted path of `found`.
        around: ids of the objects that contain `found`, which are not visited again.
    """
    yield place, None
    around = (*around, id(found))
    for name, value in _parts(found):
        if isinstance(value, torch.Tensor):
            yield (*place, name), value
        is_open = isinstance(value, Mapping | Inert) and id(value) not in around
        if is_open and (place or not name.startswith(_NOT_WEIGHTS)):
            yield from _flatten(value, (*place, name), around)


def _parts(found: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of a dictionary, a whole module or a scripted module."""
    state = found.state if isinstance(found, Inert) else found
    if isinstance(state, tuple) and state and isinstance(state[0], Mapping):
        state = state[0]  # the attributes in `__dict__`; state[1] has the slots
    if isinstance(found, Inert) and isinstance(state, Mapping) and isinstance(state.get("_modules"), Mapping):
        passing = state.get("_non_persistent_buffers_set")
        passing = passing if isinstance(passing, set) else set()
        for kind in ("_parameters", "_buffers", "_modules"):
            held = state.get(kind)
            named = held.items() if isinstance(held, Mapping) else ()
            yield from ((str(name), value) for name, value in named if str(name) not in passing)
        return
    if isinstance(state, Mapping):
        yield from ((str(name), value) for name, value in state.items())
    if isinstance(found, Inert):
        yield from ((str(name), value) for name, value in found.entries.items())


def _read_archive(content: bytes) -> Any:
    """Unpickle the data of a zip archive. The code in a TorchScript archive is not read."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        described = next((name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")), None)
        if described is None:
            raise ValueError("it is a zip archive, but torch did not write it")
        root = described.removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")
        storages: dict[str, Any] = {}

        def load(word: Any) -> Any:
            _, kind, key, _, _ = word
            if key not in storages:
                raw = torch.frombuffer(bytearray(archive.read(f"{root}data/{key}")) or bytearray(1), dtype=torch.uint8)
                storages[key] = raw.untyped_storage()
            return _make_typed(storages[key], _dtype_of(kind))

        reader = Reader(io.BytesIO(archive.read(described)))
        reader.persistent_load = load  # type: ignore[method-assign]
        return reader.load()


def _dtype_of(kind: Any) -> torch.dtype:
    """Return the dtype of a storage class from a private attribute, because the public one emits a warning."""
    found: torch.dtype = getattr(kind, "_dtype", torch.uint8)
    return found


def _make_typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _read_legacy(content: bytes) -> Any:
    """Unpickle a file of torch before 1.6: it has the format's version, the object, storage names and storage bytes."""
    file = io.BytesIO(content)
    try:
        is_torch = Reader(file).load() == _MAGIC and Reader(file).load() == _PROTOCOL
        system = Reader(file).load() if is_torch else {}
    except Exception:  # any exception that other bytes cause in pickle
        is_torch = False
    if not is_torch:
        raise ValueError("it is not a torch file")
    if not system.get("little_endian", True):
        raise ValueError("it was written on a big-endian machine")
    storages: dict[str, Any] = {}

    def load(word: Any) -> Any:
        _, kind, key, _, count, view = word
        dtype = _dtype_of(kind)
        if key not in storages:
            if not 0 <= count * dtype.itemsize <= len(content):
                raise ValueError("it is truncated")
            storages[key] = torch.UntypedStorage(count * dtype.itemsize), dtype
        whole, _ = storages[key]
        start, end = (0, count) if view is None else (view[1], view[1] + view[2])
        return _make_typed(whole if view is None else whole[start * dtype.itemsize : end * dtype.itemsize], dtype)

    reader = Reader(file)
    reader.persistent_load = load  # type: ignore[method-assign]
    found = reader.load()
    for key in Reader(file).load():
        storage, dtype = storages[key]
        head = file.read(8)
        count = int.from_bytes(head, "little")
        if len(head) < 8 or count * dtype.itemsize != storage.nbytes():
            raise ValueError("it is truncated")
        if count:
            into = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            if file.readinto(into.data) != len(into):
                raise ValueError("it is truncated")
    return found
