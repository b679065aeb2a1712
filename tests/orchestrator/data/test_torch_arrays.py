"""Tensors are read as torch reads them, without torch, and no code in a file is executed."""

import contextlib
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctvr.orchestrator.data import array_files
from ctvr.orchestrator.data.arrays import read_arrays
from ctvr.orchestrator.data.torch_arrays import read_torch_arrays
from ctvr.orchestrator.errors import ConfigError, RefusedPickle
from tests.orchestrator.data.test_pickled_arrays import READABLE
from tests.orchestrator.data.test_pickles import hostile
from tests.refusing import refuses

X = torch.arange(24, dtype=torch.float32).reshape(4, 3, 2) / 7
KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
FORMS = [True, False]  # archives, and the files of torch before 1.6


def written(folder: Path, value: Any, is_archive: bool = True) -> Path:
    torch.save(value, folder / "x.pt", _use_new_zipfile_serialization=is_archive)
    return folder / "x.pt"


@pytest.mark.parametrize("is_archive", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_every_type_are_those_that_were_saved(kind: str, is_archive: bool, tmp_path: Path) -> None:
    dtype = getattr(torch, kind)
    tensors = {"whole": X.to(dtype), "scalar": X[1, 1, 1].to(dtype), "empty": X[:0].to(dtype), "a/b": X[0].to(dtype)}
    found = read_torch_arrays(written(tmp_path, tensors | {"epoch": 3, "made by": None}, is_archive))
    assert isinstance(found, dict)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = (tensor.float() if kind == "bfloat16" else tensor).numpy()
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize("is_archive", FORMS)
def test_views_of_one_storage_keep_their_places(is_archive: bool, tmp_path: Path) -> None:
    views = {"row": X[2], "turned": X.mT, "step": X[::2, :, 1:], "learned": torch.nn.Parameter(X[1]), "wide": X[:1]}
    views["wide"] = views["wide"].expand(3, 3, 2)
    found = read_torch_arrays(written(tmp_path, views, is_archive))
    assert isinstance(found, dict)
    for name, view in views.items():
        np.testing.assert_array_equal(found[name], view.detach().numpy())


@pytest.mark.parametrize("is_archive", FORMS)
def test_a_tensor_a_list_and_a_list_of_ids_are_read(is_archive: bool, tmp_path: Path) -> None:
    for value in (X, list(X)):
        np.testing.assert_array_equal(read_arrays(written(tmp_path, value, is_archive)), X.numpy())  # type: ignore[arg-type]
    found = read_arrays(written(tmp_path, {"ids": ["d", "c", "b", "a"], "features": X}, is_archive))
    assert isinstance(found, dict)
    assert [(name, float(array[0, 0])) for name, array in found.items()] == [
        (n, float(x[0, 0])) for n, x in zip("dcba", X)
    ]
    with refuses("3", "4", where=str(tmp_path / "x.pt"), remedy=True):
        read_arrays(written(tmp_path, {"ids": ["d", "c", "b"], "features": X}, is_archive))


class _Call:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("is_archive", FORMS)
@pytest.mark.parametrize("what", ["call", "module", "state", "complex", "float8"])
def test_anything_but_tensors_is_refused_and_runs_nothing(what: str, is_archive: bool, tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    objects = {"module": module, "state": module.state_dict(), "call": _Call(f"touch {tmp_path / 'canary'}")}
    objects |= {"complex": X.to(torch.complex64), "float8": X.to(torch.float8_e4m3fn)}
    path = written(tmp_path, {"a": X, "b": objects[what]}, is_archive)
    with refuses(where=str(path), remedy=True) as caught:
        read_torch_arrays(path)
    assert isinstance(caught.value.__cause__, RefusedPickle)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", sorted(set(hostile("x")) - READABLE - {"newobj", "tuple key", "bytes", "only stop"}))
def test_a_hostile_pickle_in_an_archive_is_refused_and_runs_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", hostile(f"touch {tmp_path / 'canary'}")[name])
    with refuses(where=str(path), remedy=True):
        read_torch_arrays(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_archive", FORMS)
def test_a_view_does_not_expand_beyond_the_limit(
    is_archive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_files, "SPARE", 1 << 16)
    with refuses("64", where="x.pt"):
        read_torch_arrays(written(tmp_path, {"a": X[:1].expand(100_000, 3, 2)}, is_archive))


@pytest.mark.parametrize("is_archive", FORMS)
def test_damage_gives_arrays_or_one_line(is_archive: bool, tmp_path: Path) -> None:
    rng = random.Random(0)
    path = written(tmp_path, {"a": X, "b": X[1].half(), "ids": ["x", "y"]}, is_archive)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with refuses(where="x.pt"):
            read_arrays(path)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(ConfigError):  # any other error fails
            found = read_arrays(path)
            assert all(type(array) is np.ndarray for array in (found.values() if isinstance(found, dict) else [found]))


@pytest.mark.slow
def test_torch_is_not_imported(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from ctvr.orchestrator.data.arrays import read_arrays; "
    code += "print(read_arrays(Path(sys.argv[1])).shape, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(written(tmp_path, X))], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "(4, 3, 2) False"
