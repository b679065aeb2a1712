"""No code in a pickle is executed; plain containers are read as `pickle` would read them."""

import collections
import contextlib
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.data.pickles import read_pickle
from ctvr.orchestrator.errors import ConfigError
from tests.refusing import refuses

PLAIN: list[Any] = [
    {"train": {1: {"0": ["video1", "é"]}}, "val": {}},
    [[], {}, -1, 0, 255, 65_535, 2**31 - 1, "a" * 300, ["x"]],
    {"v": collections.defaultdict(list, {"a": ["b"], "c": []})},
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", PLAIN, ids=["split", "values", "defaultdict"])
def test_plain_containers_read_as_pickle_reads_them(tmp_path: Path, value: Any, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value, protocol))
    assert read_pickle(tmp_path / "x.pkl") == value


class _Call:
    """Object whose pickle is a call of `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


class _Plain:
    def __init__(self, command: str) -> None:
        self.command = command


def hostile(command: str) -> dict[str, bytes]:
    """Return pickles that would run `command`, build objects or fill memory if they were loaded."""
    text = command.encode()
    long = struct.pack("<I", 0x7FFFFFFF)
    gadgets = {
        f"reduce os.system, protocol {n}": pickle.dumps(_Call(os.system, command), n)
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    }
    gadgets |= {
        "reduce eval": pickle.dumps(_Call(eval, f"__import__('os').system({command!r})")),
        "inside a split": pickle.dumps({"train": {1: {"0": [_Call(os.system, command)]}}, "val": {}}),
        "as a dictionary key": b"\x80\x04}cos\nsystem\nX" + struct.pack("<I", len(text)) + text + b"\x85RK\x01s.",
        "global os.system": b"cos\nsystem\n(S'" + text + b"'\ntR.",
        "global posix": b"cposix\nsystem\n(S'" + text + b"'\ntR.",
        "inst": b"(S'" + text + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + text + b"'\no.",
        "build": pickle.dumps(_Plain(command)),
        "newobj": pickle.dumps(collections.OrderedDict(a=1), 2),
        "reduce with state": pickle.dumps(_Call(collections.defaultdict, list, state={"x": 1})),
        "ext1": b"\x82\x01.",
        "ext2": b"\x83\x01\x00.",
        "ext4": b"\x84\x01\x00\x00\x00.",
        "persistent id": b"Pevil\n.",
        "binary persistent id": b"X\x04\x00\x00\x00evilQ.",
        "stack global from numbers": b"\x80\x04K\x01K\x02\x93.",
        "stack global os.system": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        "dotted global": b"\x80\x04\x8c\x0bcollections\x8c\x0fabc.sys.modules\x93.",
        "defaultdict of a defaultdict": pickle.dumps(collections.defaultdict(collections.defaultdict)),
        "defaultdict of int": pickle.dumps(collections.defaultdict(int)),
        "defaultdict class as a value": pickle.dumps([collections.defaultdict]),
        "call of list": pickle.dumps(_Call(list, "abc")),
        "call of text": b"X\x01\x00\x00\x00a)R.",
        "tuple": pickle.dumps((1, 2)),
        "set": pickle.dumps({1}),
        "float": pickle.dumps(1.5),
        "none": pickle.dumps(None),
        "boolean, protocol 0": pickle.dumps(True, 0),
        "huge integer": pickle.dumps(1 << 100_000),
        "bytes": pickle.dumps(b"x"),
        "out-of-band buffer": b"\x80\x05\x97.",
        "deep tuples": b"(" + b"\x85" * 100_000 + b".",
        "tuple key": pickle.dumps({("a",): 1}),
        "append to a dictionary": b"}K\x01a.",
        "set on a list": b"]K\x01K\x02s.",
        "memo of 2 GB": b"]r" + long + b"K\x01h\x07.",
        "text of 2 GB": b"X" + long + b"a.",
        "bytes of 16 EB": b"\x8e" + b"\xff" * 8 + b"a.",
        "frame of 16 EB": b"\x80\x04\x95" + b"\xff" * 8 + b"X.",
        "long of 2 GB": b"\x8b" + long + b"a.",
        "digits": b"I" + b"9" * 100_000 + b"\n.",
        "empty": b"",
        "only stop": b".",
        "nothing on the stack": b"a.",
        "no mark": b"]e.",
        "memo never set": b"h\x01.",
        "values left over": b"K\x01K\x02.",
        "odd entries": b"}(K\x01u.",
        "zip": b"PK\x03\x04" + bytes(100),
        "text": b"hello, I am a text file\n",
    }
    return gadgets


@pytest.mark.parametrize("name", sorted(hostile("x")))
def test_hostile_pickles_are_refused_in_one_line_and_run_nothing(tmp_path: Path, name: str) -> None:
    canary, path = tmp_path / "canary", tmp_path / "x.pkl"
    path.write_bytes(hostile(f"touch {canary}")[name])
    with refuses(path) as error:
        read_pickle(path)
    assert not canary.exists()
    assert len(str(error.value)) < 400 + len(str(path))


def test_the_message_names_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(_Call(os.system, "true")))
    with refuses("x.pkl", f"{os.name}.system"):
        read_pickle(tmp_path / "x.pkl")


def test_every_truncation_of_a_split_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps({"train": {1: {"a": ["v1", "v2"]}}, "val": {1: {"a": ["v3"]}}})
    for length in range(len(whole)):
        (tmp_path / "x.pkl").write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"damaged|refused"):
            read_pickle(tmp_path / "x.pkl")


def test_random_damage_is_read_as_plain_data_or_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = pickle.dumps({"train": {1: collections.defaultdict(list, {"a": ["v1", "v2"]})}, "val": {1: {"a": ["v3"]}}})
    for _ in range(1_000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / "x.pkl").write_bytes(damaged)
        with contextlib.suppress(ConfigError):  # any other error fails
            assert type(read_pickle(tmp_path / "x.pkl")) in (dict, list, str, int)


def test_a_list_that_holds_itself_ends(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(value))
    found = read_pickle(tmp_path / "x.pkl")
    assert found[0] is found


def test_long_absent_and_endless_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(["a" * 5_000_000]))
    with refuses("4", "MB", where="x.pkl"):
        read_pickle(tmp_path / "x.pkl")
    for path in (tmp_path / "none.pkl", tmp_path, Path("/dev/zero")):
        with refuses(path):
            read_pickle(path)


@pytest.mark.parametrize("name", ["MSRVTT_10", "MSRVTT_20", "ACTNET_10", "ACTNET_20"])
def test_the_benchmark_files_read_as_pickle_reads_them(shared: Path, name: str) -> None:
    path = shared / "data" / "splits" / f"{name}_dataset.pkl"
    assert read_pickle(path) == pickle.loads(path.read_bytes())
