"""A reader in a bounded child: its arrays come back as they were; whatever a file does to it is one line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from ctvr.sandbox import reader
from ctvr.sandbox.measure import measure
from ctvr.sandbox.reader import read_arrays

MIB = 1 << 20
HERE = "tests.ctvr.sandbox.test_reader"


def two_arrays(file: Path) -> dict[str, np.ndarray]:
    return {"a/b": np.load(file), "n": np.array([1, 2])}


def refuses(file: Path) -> dict[str, np.ndarray]:
    raise ValueError("is not a list of arrays\nand more")


def takes_memory(file: Path) -> dict[str, np.ndarray]:
    return {"a": np.ones(200 * MIB, np.uint8)}


def writes_much(file: Path) -> dict[str, np.ndarray]:
    return {"a": np.ones(12 * MIB, np.uint8)}


def crashes(file: Path) -> dict[str, np.ndarray]:
    os.abort()


def hangs(file: Path) -> dict[str, np.ndarray]:
    time.sleep(100)
    return {}


def looks_around(file: Path) -> dict[str, np.ndarray]:
    (file.parent / "secret").read_text()
    return {}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call a reader of this file on an array of four numbers."""
    np.save(tmp_path / "x.npy", np.arange(4.0, dtype=np.float16))
    (tmp_path / "secret").write_text("secret")
    main = "from ctvr.sandbox.reader import main"  # this file is imported before: an isolated child cannot read it
    monkeypatch.setattr(reader, "_START", reader._START.replace(main, f"import {HERE}; {main}"))
    return lambda function, **limits: read_arrays(
        f"{HERE}:{function.__name__}", tmp_path / "x.npy", **{"memory": 16 * MIB, **limits}
    )


def test_arrays_come_through_the_child_as_they_were(call):
    found = call(two_arrays)
    assert found.keys() == {"a/b", "n"}
    np.testing.assert_array_equal(found["a/b"], np.arange(4.0))
    assert found["a/b"].dtype == np.float16


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (refuses, r"x\.npy: is not a list of arrays\.$"),
        (takes_memory, r"x\.npy: needs more than 16 MiB of memory\.$"),
        (writes_much, r"x\.npy: (needs more than|.*(File too large|File size)|reading it ended with)"),
        (crashes, r"x\.npy: reading it ended with signal 6\.$"),
    ],
)
def test_what_a_file_does_to_its_reader_is_one_line(call, function, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        call(function)
    assert "\n" not in str(caught.value)


def test_a_reader_that_hangs_is_ended(call):
    with pytest.raises(ValueError, match="could not be read within 2 s"):
        call(hangs, seconds=2)


def test_a_reader_sees_its_file_alone(call):
    if not measure("files").isolation.files:
        pytest.skip("this system has neither Landlock nor namespaces")
    with pytest.raises(ValueError, match="Permission denied|No such file"):
        call(looks_around)
