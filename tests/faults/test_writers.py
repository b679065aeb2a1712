"""Several processes write one key and some are killed; one is stopped and continues after its replacement."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.training import loop
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from tests.chaos.faults import Call, counted, killed_at, watched
from tests.chaos.lifecycle import digest_of_run

FORK = multiprocessing.get_context("fork")
PROCESSES, ROUNDS, KEYS = 8, 24, 4


def start(work: Callable[..., None], *arguments: Any) -> Any:
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


# ------------------------------------------------------------------------------------ writers of one key


def content(key: int) -> dict[str, np.ndarray]:
    return {"x": np.full(3000, key, np.int64)}


def write_and_read(root: Path, me: int, gate: Any) -> None:
    """Put, read and claim the same keys as all other processes; odd ones die at a call of their own."""
    store = Store.open(root)
    won = os.open(root.parent / f"won{me}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    gate.wait()

    def rounds() -> None:
        for number in range(ROUNDS):
            key = (number + me) % KEYS
            store.put("k", f"{key}", content(key), {"key": key})
            found = store.get("k", f"{(key + 1) % KEYS}") if number else store.get("k", f"{key}")
            assert (found["x"] == found.meta["key"]).all()
            if store.create_json("lease", f"{number}", me):
                os.write(won, f"{number}\n".encode())
            assert store.get_json("lease", f"{number}") in range(PROCESSES)
            store.put_json("runs", "last", {"who": me, "number": number})
            assert set(store.get_json("runs", "last")) == {"who", "number"}
        assert store.counters["damaged"] == 0

    if me % 2:
        with killed_at(root, 20 + 9 * me, "before" if me % 4 == 1 else "after"):
            rounds()
    else:
        rounds()


def test_one_of_eight_writers_wins_each_key(tmp_path):
    root = tmp_path / "store"
    Store.open(root)
    for key in range(KEYS):
        Store.open(root).put("k", f"{key}", content(key), {"key": key})
    gate = FORK.Barrier(PROCESSES)
    writers = [start(write_and_read, root, me, gate) for me in range(PROCESSES)]
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [-signal.SIGKILL if me % 2 else 0 for me in range(PROCESSES)]
    store = Store.open(root)
    assert all(problem is None for _, problem in store.verify())
    claims = {me: (tmp_path / f"won{me}").read_text().split() for me in range(PROCESSES)}
    for number in range(ROUNDS):
        told = [me for me, won in claims.items() if str(number) in won]
        owner = store.get_json("lease", f"{number}")
        assert told in ([owner], [])
        assert told or owner % 2  # no process recorded it: the winner died before it could
    for key in range(KEYS):
        np.testing.assert_array_equal(store.get("k", f"{key}")["x"], content(key)["x"])


def publish_one(root: Path, me: int, gate: Any) -> None:
    commits = Commits(Store.open(root), "run")
    gate.wait()
    is_mine = commits.publish(
        {"w": torch.full((9,), float(me))}, [torch.ones(2, 2)], RunState(done=1, own=[[float(me)]])
    )
    (root.parent / f"told{me}").write_text(json.dumps(is_mine))


def test_one_of_eight_different_commits_wins(tmp_path):
    root = tmp_path / "store"
    Store.open(root)
    gate = FORK.Barrier(PROCESSES)
    writers = [start(publish_one, root, me, gate) for me in range(PROCESSES)]
    for writer in writers:
        writer.join()
    told = [json.loads((tmp_path / f"told{me}").read_text()) for me in range(PROCESSES)]
    assert told.count(True) == 1
    commits = Commits(Store.open(root), "run")
    winner = told.index(True)
    assert commits.record(1).own == [[float(winner)]]
    assert commits.load(1)[0]["w"].tolist() == [float(winner)] * 9


# ------------------------------------------------------------------------------------ a zombie


At = Callable[[Call], bool]


def run_and_stop(manifest: str, root: Path, out: Path, at: At | None, differs: bool = False) -> None:
    """Run until the first durable call that is `at`, then stop by SIGSTOP; write the digest at the end.

    `differs`: compute different numbers, as on another GPU.
    """
    if differs:
        factor = loop.lr_factor
        loop.lr_factor = lambda *step: factor(*step) / 2

    waits = [at] if at is not None else []

    def stop(call: Call) -> None:
        if waits and waits[0](call):
            waits.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    experiment = resolve(
        {"method": "lora", "stream": manifest, "optim.epochs": 1}, load_stream(manifest, root).settings
    )
    with watched(root, stop, lambda call: None):
        result = execute(experiment, RunPaths(root))
        galleries = Commits(RunPaths(root).open_store(), result.key).galleries(3)
    out.write_text(digest_of_run(result.record, result.method, galleries))


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def commit_files(root: Path) -> dict[str, tuple[int, int]]:
    """Return every commit with its inode and time."""
    files = (root / "store" / "commits").rglob("*.json")
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def revive(manifest: str, root: Path, at: At, differs: bool = False) -> None:
    """Stop a run at a call, let another take over, and continue the first: nothing changes, and both results are
    equal.
    """
    before = commit_files(root)
    zombie = start(run_and_stop, manifest, root, root / "zombie", at, differs)
    try:
        until = time.monotonic() + 60
        while not is_stopped(zombie.pid):
            assert zombie.is_alive()
            assert time.monotonic() < until
            time.sleep(0.01)
        heir = start(run_and_stop, manifest, root, root / "heir", None)
        heir.join()
        committed = commit_files(root)
        assert len(committed.keys() - before.keys()) == 3
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.join(60)
        assert zombie.exitcode == heir.exitcode == 0
    finally:
        zombie.kill()
    assert commit_files(root) == committed
    assert (root / "zombie").read_text() == (root / "heir").read_text()
    assert all(problem is None for _, problem in Store.open(root / "store").verify())


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["gallery", "commits", "reads"])
def test_a_late_writer_in_its_commit_ends_with_the_winners_numbers(runs, manifest, folder):
    """This includes its first commit: by then the other run's commit exists, without the weights of an old task."""
    revive(manifest, runs, lambda call: f"/store/{folder}/" in call.target, differs=True)


@pytest.mark.slow
def test_a_zombie_writer_may_resume_at_any_write(runs, manifest, tmp_path):
    calls: list[Call] = []
    shutil.copytree(runs, tmp_path / "counted")
    with counted(tmp_path / "counted", calls):
        run_and_stop(manifest, tmp_path / "counted", tmp_path / "digest", None)
    assert len(calls) > 30
    for call in calls[::6]:
        root = tmp_path / f"at{call.number}"
        shutil.copytree(runs, root)
        revive(manifest, root, lambda reached, number=call.number: reached.number == number)
        assert (root / "heir").read_text() == (tmp_path / "digest").read_text()
        shutil.rmtree(root)


def test_a_zombie_writer_of_another_version_is_refused(tmp_path):
    """Its numbers differ: at whichever write it continues, the commit that replaced its own stays."""
    reference = Commits(Store.open(tmp_path / "reference"), "run")
    calls: list[Call] = []
    with counted(tmp_path / "reference", calls):
        reference.publish({"w": torch.zeros(4)}, [torch.zeros(1, 2)], RunState(done=1))
    links = [call.number for call in calls if call.name == "link"]
    for number in (call.number for call in calls):
        store = Store.open(tmp_path / f"store{number}")
        commits, told = Commits(store, "run"), []

        def take_over(call: Call, number: int = number, told: list[bool] = told, root: Path = Path(store.uri)) -> None:
            if call.number == number:
                other = Commits(Store.open(root), "run")
                told.append(other.publish({"w": torch.ones(4)}, [torch.ones(1, 2)], RunState(done=1)))

        with watched(Path(store.uri), take_over, lambda call: None):
            was_first = commits.publish({"w": torch.zeros(4)}, [torch.zeros(1, 2)], RunState(done=1))
        assert told == [number <= links[0]]  # before the commit has its name, the other one is first
        assert was_first is (number > links[0])
        assert commits.load(1)[0]["w"].tolist() == [float(told[0])] * 4
        assert commits.finished(1) == 1
        with pytest.raises(MissingObject):
            commits.record(2)
