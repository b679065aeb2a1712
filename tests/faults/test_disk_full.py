"""A disk that is full at the n-th write: one line gives path and remedy, no finished work is lost, the run resumes."""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ctvr.orchestrator.cli import main as cli
from ctvr.orchestrator.errors import StoreError
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from tests.chaos.faults import Call, counted, no_space_from

WEIGHTS = {"w": torch.arange(300.0)}
GALLERY = torch.ones(5, 4)


def record(done: int) -> RunState:
    return RunState(done=done, own=[[1.0]] * done, union=[[1.0]] * done, metrics=[{"a": 1.0}] * done)


def publish(commits: Commits, done: int) -> bool:
    return commits.publish({"w": WEIGHTS["w"] + done}, [GALLERY + index for index in range(done)], record(done))


def test_a_commit_meets_a_full_disk_at_every_write_and_earlier_ones_stay(tmp_path):
    calls: list[Call] = []
    commits = Commits(Store.open(tmp_path / "counted"), "run")
    publish(commits, 1)
    with counted(tmp_path / "counted", calls):
        publish(commits, 2)
    writes = [call.number for call in calls if call.name != "unlink"]
    assert len(writes) >= 9
    for number in writes:
        root = tmp_path / f"full{number}"
        store = Store.open(root)
        commits = Commits(store, "run")
        publish(commits, 1)
        with no_space_from(root, number), pytest.raises(StoreError) as error:
            publish(commits, 2)
        said = str(error.value)
        assert said.startswith(f"{root}/")
        assert "disk full" in said
        assert "bytes needed" in said
        assert "Free some space and run again." in said
        assert "\n" not in said
        found = Commits(Store.open(root), "run").finished(2)
        assert found == 1 or (found == 2 and calls[number].name == "fsync")  # the name was given, the folder not synced
        assert torch.equal(commits.load(1)[0]["w"], WEIGHTS["w"] + 1)
        assert publish(commits, 2)  # space is back
        assert commits.finished(2) == 2
        assert all(problem is None for _, problem in store.verify())
        assert not list((root / ".tmp").iterdir())


def numbers(result: Result) -> tuple[object, ...]:
    record = result.record
    weights = {name: value.tolist() for name, value in result.method.state_dict().items()}
    return record.own, record.union, record.metrics, record.training, record.ranks, record.steps, weights


@pytest.mark.slow
def test_full_disk_at_every_write_changes_no_number(runs, manifest, small_stream, tmp_path):
    experiment = resolve({"method": "lora", "stream": manifest, "optim.epochs": 1}, small_stream.settings)
    unbroken, calls = tmp_path / "unbroken", []
    shutil.copytree(runs, unbroken)
    with counted(unbroken, calls):
        expected = numbers(execute(experiment, RunPaths(unbroken)))
    writes = [call.number for call in calls if call.name != "unlink"]
    assert len(writes) >= 25
    for number in writes[::3]:  # every write of one commit: the test above
        root = tmp_path / f"full{number}"
        shutil.copytree(runs, root)
        with no_space_from(root, number), pytest.raises(StoreError, match=r"disk full, \d+ bytes needed.*Free some"):
            execute(experiment, RunPaths(root))
        before = RunPaths(root).open_store()
        assert all(problem is None for _, problem in before.verify())
        result = execute(experiment, RunPaths(root))
        assert numbers(result) == expected
        shutil.rmtree(root)


@pytest.mark.slow
def test_the_command_reports_the_error_in_one_line(runs, manifest, capsys):
    words = ["run", "--runs", str(runs), "--method", "lora", "--stream", manifest, "optim.epochs=1"]
    with no_space_from(runs / "store", 12):
        status = cli.main(words)
    said = capsys.readouterr()
    assert (status, said.out) == (1, "")
    assert "Traceback" not in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith(f"ctvr: {runs / 'store'}/")
    assert "disk full" in last
    assert "Free some space and run again." in last


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 9 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "none", place]).returncode:
        pytest.skip("a file system can only be made by root")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full_keeps_what_was_finished(small_disk, runs, manifest, small_stream, caplog):
    """clip4clip changes the whole backbone, 3.6 MB a task: the third commit does not fit."""
    experiment = resolve({"method": "clip4clip", "stream": manifest, "optim.epochs": 1}, small_stream.settings)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)
    for kind in ("frames", "commits"):
        shutil.copytree(runs / "store" / kind, small_disk / kind, ignore=shutil.ignore_patterns(f"{unbroken.key}*"))
    places = RunPaths(runs, str(small_disk))
    with pytest.raises(StoreError, match=rf"{small_disk}/weights/.*disk full, \d+ bytes needed, \d+ bytes are free"):
        execute(experiment, places)
    finished = Commits(places.open_store(), unbroken.key).finished(3)
    assert finished == 2
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    with caplog.at_level(logging.INFO, "ctvr.orchestrator.learning.training.loop"):
        result = execute(experiment, places)
    assert result.resumed == finished
    assert "resumed after task 2 of 3" in caplog.text
    assert numbers(result) == numbers(unbroken)
