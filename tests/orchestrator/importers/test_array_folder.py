"""An import of arrays becomes visible at once, when its manifest is written; before, the earlier stream is whole."""

import errno
import json
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.importers import features as importer
from ctvr.orchestrator.importers.array_folder import current_arrays, new_arrays
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.streams.load import load_stream
from tests.in_subprocess import in_subprocess
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
    with refuses(where=str(place), remedy=True), new_arrays(place) as new:
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
