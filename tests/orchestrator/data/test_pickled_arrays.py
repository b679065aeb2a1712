"""Pickled arrays are read as numpy reads them, and no code in a pickle is executed."""

import collections
import contextlib
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctvr.orchestrator.data import array_files
from ctvr.orchestrator.data.arrays import read_arrays
from ctvr.orchestrator.data.pickled_arrays import read_pickled_arrays
from ctvr.orchestrator.errors import ConfigError
from tests.orchestrator.data.test_pickles import hostile
from tests.refusing import refuses

A = np.arange(6, dtype=np.float32).reshape(2, 3)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def written(folder: Path, value: Any, protocol: int = 4) -> Path:
    (folder / "x.pkl").write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return folder / "x.pkl"


READ: dict[str, tuple[Any, dict[str, Any]]] = {
    "types": (
        {code: A.astype(code) for code in ("<f2", "<f4", ">f4", "<f8", "i1", "<i8", "<u2", "?")},
        {code: A.astype(code) for code in ("<f2", "<f4", ">f4", "<f8", "i1", "<i8", "<u2", "?")},
    ),
    "orders": ({"f": np.asfortranarray(A), "t": A.T, "s": A[:, ::2]}, {"f": A, "t": A.T, "s": A[:, ::2]}),
    "keys": ({1: A, np.int64(2): A, np.str_("c"): A, b"d": A}, {"1": A, "2": A, "c": A, "d": A}),
    "lists": (
        {"a": [A[0], A[1]], "b": A.tolist(), "c": (1, 2.5), "d": list(A[0]), "e": []},
        {"a": A, "b": A.astype(float), "c": [1, 2.5], "d": A[0], "e": []},
    ),
    "nested": (
        {"train": {"a": {"feature": A, "seconds": 1.5, "url": "x"}}, "made by": None},
        {"train/a/feature": A},
    ),
    "ordered": (collections.OrderedDict(a=A), {"a": A}),
    "defaultdict": (collections.defaultdict(list, {"a": A}), {"a": A}),
    "shared": (dict.fromkeys("ab", A), {"a": A, "b": A}),
    "names": ({"ids": ["a", "b"], "features": A}, {"a": A[0], "b": A[1]}),
    "array of names": ({"ids": np.array(["a", "b"]), "features": A}, {"a": A[0], "b": A[1]}),
    "empty": ({"a": np.zeros((0, 3))}, {"a": np.zeros((0, 3))}),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", READ)
def test_pickled_arrays_have_the_names_numbers_and_types_of_the_dictionary(
    tmp_path: Path, name: str, protocol: int
) -> None:
    value, expected = READ[name]
    found = read_arrays(written(tmp_path, value, protocol))
    assert isinstance(found, dict)
    assert list(found) == list(expected)
    for each, array in found.items():
        np.testing.assert_array_equal(array, expected[each])
        if isinstance(expected[each], np.ndarray):
            assert array.dtype == expected[each].dtype


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [A, [A[0], A[1]], A.tolist()], ids=["array", "arrays", "numbers"])
def test_a_pickle_without_names_is_one_array(tmp_path: Path, value: Any, protocol: int) -> None:
    np.testing.assert_array_equal(read_arrays(written(tmp_path, value, protocol)), A)


@pytest.mark.parametrize("protocol", [2, 4])
def test_names_of_old_numpy_and_text_of_python_2_are_read(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"a": A}, protocol)
    for new, old in ((b"numpy._core.", b"numpy.core."),):
        content = content.replace(b"\x8c" + bytes([len(new) + 10]) + new, b"\x8c" + bytes([len(old) + 10]) + old)
        content = content.replace(new, old)
    if protocol == 4:  # the frame is a byte shorter
        content = content[:2] + b"\x95" + (len(content) - 11).to_bytes(8, "little") + content[11:]
    np.testing.assert_array_equal(read_arrays(written(tmp_path, content))["a"], A)
    raw = A.tobytes()
    python2 = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U" + bytes([len(raw)]) + raw + b"tbs."
    )
    np.testing.assert_array_equal(read_arrays(written(tmp_path, python2))["a"], A)


READABLE = {"none", "float", "boolean, protocol 0", "tuple", "huge integer", "call of list"}  # then not an array


@pytest.mark.parametrize("name", sorted(hostile("x")))
@pytest.mark.parametrize("is_inside", [False, True])
def test_hostile_pickles_are_refused_in_one_line_and_run_nothing(tmp_path: Path, name: str, is_inside: bool) -> None:
    canary = tmp_path / "canary"
    content = hostile(f"touch {canary}")[name]
    path = written(tmp_path, b"\x80\x04}X\x01\x00\x00\x00a" + content[:-1] + b"s." if is_inside else content)
    before = set(tmp_path.iterdir())
    with contextlib.ExitStack() as stack:
        if name not in READABLE | {"newobj", "tuple key", "bytes", "only stop"}:
            stack.enter_context(refuses(path))
        else:
            stack.enter_context(contextlib.suppress(ConfigError))
        read_pickled_arrays(path)
    assert set(tmp_path.iterdir()) == before


class _Built:
    """An object whose pickle is a call with a state."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def _globals(module: str, name: str, arguments: bytes) -> bytes:
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n" + arguments


OBJECTS: dict[str, Any] = {
    "objects": {"a": np.array([{}], object)},
    "dates": {"a": np.array(["2020-01-01"], "M8[D]")},
    "complex": {"a": A.astype(complex)},
    "structure": {"a": np.zeros(3, [("a", "f4")])},
    "masked": {"a": np.ma.array(A)},
    "set": {"a": {1}},
    "objects in a list": {"a": [A, {}]},
    "bytes": {"a": b"xx"},
    "long numbers": {"a": [1 << 70]},
    "other shapes": {"a": [A, A[0]]},
    "mixed list": {"a": [1, "x"]},
    "deep": {"a": [[[[[[1]]]]]]},
    "deep dictionaries": {"a": {"a": {"a": {"a": {"a": {"a": A}}}}}},
    "names twice": {1: A, "1": A},
    "a whole class": _globals("numpy", "ndarray", b"."),
    "a whole type": _globals("numpy", "dtype", b"."),
    "the state of a list": b"\x80\x02](K\x01K\x02tb.",
    "the state of a function": _globals("_codecs", "encode", b"}U\x01aK\x01sb."),
    "the code of a function": _globals("_codecs", "encode", b"N}U\x0c__defaults__)s\x86b."),
    "numpy's loader": _globals("numpy", "load", b"U\x01a\x85R."),
    "ctypes": _globals("numpy.ctypeslib", "load_library", b"U\x01aU\x01b\x86R."),
    "dotted": b"\x80\x04\x8c\x15numpy._core.multiarray\x8c\x0bscalar.load\x93.",
    "more rows than bytes": _globals(
        "numpy.core.numeric", "_frombuffer", b"(U\x04aaaacnumpy\ndtype\nU\x02f4\x85RJ\xff\xff\xff\x7f\x85U\x01CtR."
    ),
    "negative length": _globals(
        "numpy.core.numeric", "_frombuffer", b"(U\x04aaaacnumpy\ndtype\nU\x02f4\x85RJ\xff\xff\xff\xff\x85U\x01CtR."
    ),
    "an array without numbers": _globals("numpy.core.multiarray", "_reconstruct", b"cnumpy\nndarray\n\x85R."),
    "bytes of 16 EB": b"\x80\x05\x96" + b"\xff" * 7 + b"\x7fa.",
    "zip": b"PK\x03\x04" + bytes(99),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_anything_but_arrays_of_numbers_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with refuses(where="x.pkl", remedy=True):
        read_arrays(written(tmp_path, OBJECTS[name]))


def test_torch_tensors_are_refused_with_the_form_that_holds_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with refuses("torch", where="x.pkl", remedy=True) as error:
        read_arrays(written(tmp_path, {"a": torch.ones(2)}))
    assert ".pt" in str(error.value)


def test_references_do_not_expand_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "SPARE", 1 << 16)
    large = np.zeros(1000)
    line = [0.5] * 300
    for value in (
        dict.fromkeys(range(500), large),
        {"a": [line] * 300},
        {"a": [[line] * 50] * 50},
        {"a": dict.fromkeys(range(200), dict.fromkeys(range(200), 1))},
        {"a": ["x" * 2000] * 2000},
    ):
        with refuses("64", where="x.pkl"):
            read_arrays(written(tmp_path, value))


def test_damage_gives_arrays_or_one_line(tmp_path: Path) -> None:
    rng = random.Random(0)
    for protocol in PROTOCOLS:
        whole = pickle.dumps({"a": A, "b": [A[0], A[1]], "c": {"d": [1.5, 2]}}, protocol)
        for length in range(len(whole)):
            with refuses(where="x.pkl"):
                read_arrays(written(tmp_path, whole[:length]))
        for _ in range(400):
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            with contextlib.suppress(ConfigError):  # any other error fails
                found = read_arrays(written(tmp_path, bytes(damaged)))
                arrays = found.values() if isinstance(found, dict) else [found]
                assert all(type(array) is np.ndarray and array.dtype.kind in "biufUS" for array in arrays)
