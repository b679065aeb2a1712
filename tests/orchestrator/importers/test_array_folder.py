"""An import of arrays becomes visible at once, when its manifest is written; before, the earlier stream is whole."""

import errno
import itertools
import json
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from ctvr.orchestrator.importers import features as importer
from ctvr.orchestrator.importers import shards
from ctvr.orchestrator.importers.array_folder import current_arrays, new_arrays
from ctvr.orchestrator.importers.command import import_stream
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import iter_items
from tests.in_subprocess import in_subprocess
from tests.orchestrator.importers.test_shards import tar
from tests.refusing import refuses

TABLE = "video,caption,split,task\na,one,train,1\nb,two,test,1\n"


def run(folder: Path, number: float) -> None:
    (folder / "t.csv").write_text(TABLE)
    np.savez(folder / "f.npz", a=np.full((2, 3), number), b=np.full((2, 3), number))
    np.savez(folder / "texts.npz", one=np.full(3, number), two=np.full(3, number))
    import_features(folder / "t.csv", folder / "f.npz", folder / "texts.npz", folder / "streams" / "mine.json", "mine")


def numbers(folder: Path) -> set[float]:
    """Return the numbers of the stream's arrays, of videos and captions."""
    stream = load_stream(folder / "streams" / "mine.json", folder)
    paths = [stream.tasks[0].train[0].path, stream.tasks[0].test[0].path]
    assert stream.text_features is not None
    arrays = [np.load(path) for path in paths] + [np.load(stream.text_features)["features"]]
    return {float(number) for array in arrays for number in array.ravel()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "streams" / "mine").iterdir())


def run_and_die(folder: Path, number: float, function: str) -> None:
    owner, _, name = function.rpartition(".")
    setattr({"np": np, "importer": importer}[owner], name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    run(folder, number)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["np.save", "importer.store_set", "importer.write_manifest"])
def test_an_earlier_stream_stays_whole_after_a_kill_and_the_next_import_removes_the_rest(
    function: str, tmp_path: Path
) -> None:
    run(tmp_path, 1)
    with pytest.raises(BrokenProcessPool):
        in_subprocess(run_and_die, tmp_path, 2, function)
    assert numbers(tmp_path) == {1}
    assert names(tmp_path) == ["1", "2"]
    run(tmp_path, 3)
    assert numbers(tmp_path) == {3}
    assert names(tmp_path) == ["3"]


def run_kind(folder: Path, kind: str, number: int) -> None:
    """Import the files of `written`; `number` is a content of theirs."""
    import_stream(kind, {"folder": str(folder / f"{kind} {number}")}, None, folder, "mine")


def written(folder: Path, kind: str, number: int) -> None:
    """Write the files of a benchmark of images, or a data set of shards with videos."""
    files = folder / f"{kind} {number}"
    if kind == "cifar-10":
        files.mkdir()
        for stem in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
            record = np.full((10, 3073), number, np.uint8)
            record[:, 0] = np.arange(10)
            (files / f"{stem}.bin").write_bytes(record.tobytes())
        return
    for split in ("train", "test"):
        videos = {f"{split}{n}__mp4": f"{split} {number} {n}" for n in range(3)}
        tar(files / split / "0.tar", **videos, **{f"{split}{n}__txt": "a dog" for n in range(3)})


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of the stream by item; also those of runs folders without a stream."""
    stream = load_stream("mine", folder)
    return {item.video: Path(item.path).read_bytes() for _, _, item in iter_items(stream)}


def kill_at(count: int, function: str) -> None:
    """Replace a function by one that kills this process at its `count`-th call."""
    owner, name = {"np.save": (np, "save"), "write_in_runs": (shards, "write_in_runs")}[function]
    calls, whole = itertools.count(1), getattr(owner, name)

    def counted(*arguments: object, **named: object) -> object:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **named)

    setattr(owner, name, counted)


def run_kind_and_die(folder: Path, kind: str, number: int) -> None:
    kill_at(4, "np.save" if kind == "cifar-10" else "write_in_runs")
    run_kind(folder, kind, number)


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["cifar-10", "hf"])
def test_a_killed_import_of_images_or_shards_leaves_no_half_and_is_repeated(
    kind: str, is_first: bool, tmp_path: Path
) -> None:
    for number in (1, 2):
        written(tmp_path, kind, number)
    if not is_first:
        run_kind(tmp_path, kind, 1)
        before = contents(tmp_path)
    with pytest.raises(BrokenProcessPool):
        in_subprocess(run_kind_and_die, tmp_path, kind, 2)
    if is_first:
        assert not (tmp_path / "streams/mine.json").exists()
    else:
        assert contents(tmp_path) == before
    run_kind(tmp_path, kind, 2)
    after = contents(tmp_path)
    assert len(after) == (20 if kind == "cifar-10" else 6)
    if not is_first:
        assert all(after[name] != before.get(name) for name in after)
    assert sorted(path.name for path in (tmp_path / "streams").iterdir()) == ["mine", "mine.json"]
    (place,) = (tmp_path / "streams/mine").iterdir()
    assert {path.read_bytes() for path in place.rglob("*") if path.is_file()} == set(after.values())


def run_slowly(folder: Path) -> None:
    """Import number 1; after the first array tell it, and wait for the answer."""
    whole = np.save

    def paused(*arguments: object, **named: object) -> None:
        whole(*arguments, **named)  # type: ignore[arg-type]
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)

    np.save = paused
    run(folder, 1)


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_imports_at_once_one_is_whole_and_the_other_is_refused(is_first: bool, tmp_path: Path) -> None:
    if not is_first:
        run(tmp_path, 7)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        slow = pool.submit(run_slowly, tmp_path)
        while not (tmp_path / "begun").exists():
            assert not slow.done()
            time.sleep(0.02)
        with refuses("mine", where="stream mine", remedy=True):
            run(tmp_path, 2)
        assert is_first or numbers(tmp_path) == {7}
        (tmp_path / "go").touch()
        slow.result()
    assert numbers(tmp_path) == {1}
    run(tmp_path, 3)
    assert numbers(tmp_path) == {3}
    assert sorted(path.name for path in (tmp_path / "streams").iterdir()) == ["mine", "mine.json"]


@pytest.mark.parametrize("kind", ["hf", "cifar-10"])
def test_a_source_in_the_folder_that_is_replaced_is_refused_and_kept(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "streams/mine"
    written(tmp_path, kind, 1)
    place.parent.mkdir(exist_ok=True)
    (tmp_path / f"{kind} 1").rename(place)
    (tmp_path / f"{kind} 1").symlink_to(place)
    before = sorted(place.rglob("*"))
    with refuses(remedy=True):
        run_kind(tmp_path, kind, 1)
    assert sorted(place.rglob("*")) == before


def test_shards_without_videos_inside_leave_no_folder(tmp_path: Path) -> None:
    written(tmp_path, "hf", 1)
    run_kind(tmp_path, "hf", 1)
    (tmp_path / "hf 2").mkdir()
    for split in ("train", "test"):
        (tmp_path / "hf 2" / f"{split}.mp4").touch()
        table = arrow.table({"video": [f"{split}.mp4"], "caption": ["a cat"]})
        parquet.write_table(table, tmp_path / "hf 2" / f"{split}.parquet")
    run_kind(tmp_path, "hf", 2)
    assert contents(tmp_path) == {"train": b"", "test": b""}
    assert names(tmp_path) == []


def test_arrays_of_an_earlier_version_are_replaced_and_other_files_are_kept(tmp_path: Path) -> None:
    run(tmp_path, 1)
    place, manifest = tmp_path / "streams" / "mine", tmp_path / "streams" / "mine.json"
    for path in (place / "1").iterdir():
        path.rename(place / path.name)
    (place / "1").rmdir()
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"videos": "mine"}))
    (place / "notes.txt").write_text("mine")
    assert current_arrays(place) == place
    assert numbers(tmp_path) == {1}
    run(tmp_path, 2)
    assert numbers(tmp_path) == {2}
    assert names(tmp_path) == ["1", "notes.txt"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "streams" / "mine"
    with refuses(where=str(place), remedy=True), new_arrays(place, tmp_path / "source") as new:
        (new / "000000.npy").write_bytes(b"x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_an_error_after_the_manifest_keeps_the_new_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(importer, "describe", fail)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 1)
    assert numbers(tmp_path) == {1}
