"""Two thousand damaged objects: all are detected, none is served, and each lost one is recomputed once."""

import logging
import shutil
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.video.pool import Decoder

SEED, OBJECTS = 4, 2000
SMALL = {"x": np.arange(6, dtype=np.int16)}
LARGE = {"frames": np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3)).astype(np.uint8), "times": np.arange(4.0)}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "ctvr.orchestrator.store.store")  # one warning for each object, otherwise


def flipped(good: bytes, position: int, bit: int) -> bytes:
    damaged = bytearray(good)
    damaged[position] ^= 1 << bit
    return bytes(damaged)


def damages(good: bytes) -> Iterator[bytes]:
    """Yield every byte with one of its bits flipped, and every length that is too short."""
    rng = np.random.default_rng(SEED)
    for position in range(len(good)):
        yield flipped(good, position, int(rng.integers(8)))
        yield good[:position]


def random_damages(good: bytes) -> Iterator[bytes]:
    """Yield damage anywhere in a larger object, endlessly."""
    rng = np.random.default_rng(SEED)
    while True:
        position, bit = int(rng.integers(len(good))), int(rng.integers(8))
        yield flipped(good, position, bit)
        yield good[:position]
        yield good[:position] + bytes(len(good) - position)  # blocks that never reached the disk
        yield good + good[:position]


@pytest.mark.slow
def test_all_of_two_thousand_are_found_and_none_is_served(tmp_path):
    store, count = Store.open(tmp_path / "store"), 0
    root = tmp_path / "store" / "k"
    store.put("k", "small", SMALL, {"n": 1})
    store.put_json("k", "record", {"done": 3, "list": [1.5, None]})
    store.put("k", "large", LARGE, {})
    every = [root / "small.safetensors", root / "record.json", root / "large.safetensors"]
    for file in every:
        good = file.read_bytes()
        for content in damages(good) if file.stem != "large" else islice(random_damages(good), OBJECTS - count):
            if content == good:  # zeros in the place of zeros
                continue
            file.unlink(missing_ok=True)
            file.write_bytes(content)
            with pytest.raises(MissingObject):
                (store.get_json if file.suffix == ".json" else store.get)("k", file.stem)
            assert not file.exists()
            count += 1
            assert store.counters["damaged"] == count
        file.write_bytes(good)
    assert count >= OBJECTS - 10
    np.testing.assert_array_equal(store.get("k", "large")["frames"], LARGE["frames"])
    np.testing.assert_array_equal(store.get("k", "small")["x"], SMALL["x"])
    assert store.get_json("k", "record")["done"] == 3


def test_an_object_under_another_ones_name_is_not_served(tmp_path):
    store = Store.open(tmp_path / "store")
    for key in ("a", "b"):
        store.put("k", key, {"x": np.full(9, ord(key))}, {})
        store.put_json("j", key, key)
    for folder, ending in (("k", "safetensors"), ("j", "json")):
        shutil.copy(tmp_path / "store" / folder / f"a.{ending}", tmp_path / "store" / folder / f"b.{ending}")
    for get, kind in ((store.get, "k"), (store.get_json, "j")):
        with pytest.raises(MissingObject):
            get(kind, "b")
    assert store.counters["damaged"] == 2


def test_a_check_of_the_store_finds_exactly_the_damaged_ones(tmp_path):
    store, rng = Store.open(tmp_path / "store"), np.random.default_rng(SEED)
    hurt = set()
    for number in range(60):
        store.put("k", f"{number}", SMALL, {"n": number})
        file = tmp_path / "store" / "k" / f"{number}.safetensors"
        if number % 3 == 0:
            good = file.read_bytes()
            file.write_bytes(flipped(good, int(rng.integers(len(good))), int(rng.integers(8))))
            hurt.add(f"k/{number}.safetensors")
    assert {name for name, problem in store.verify() if problem} == hurt


@pytest.mark.slow
def test_damaged_frames_are_decoded_once_to_the_same_numbers(runs, manifest, small_stream, monkeypatch):
    experiment = resolve({"method": "clip4clip", "stream": manifest, "optim.epochs": 1}, small_stream.settings)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)
    source = FrameSource(RunPaths(runs).open_store(), experiment.data, 64)
    decoded: list[str] = []
    for split in ("train", "test"):
        item = small_stream.items(0, split)[0]
        file = runs / "store" / "frames" / f"{source.key(item)}.safetensors"
        good = file.read_bytes()
        file.unlink()
        file.write_bytes(flipped(good, len(good) - 7, 0))
    decode = Decoder.decode
    monkeypatch.setattr(Decoder, "decode", lambda self, path, *rest: decoded.append(path) or decode(self, path, *rest))
    again = execute(experiment, RunPaths(runs), fresh=True)
    assert sorted(decoded) == sorted(small_stream.items(0, split)[0].path for split in ("train", "test"))
    assert again.record.metrics == unbroken.record.metrics
    assert again.record.training == unbroken.record.training
