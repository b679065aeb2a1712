"""Commits are noted as they appear, and reported if they change."""

import time
from pathlib import Path

from tests.chaos.watch import Watch


def put(file: Path, text: str) -> None:
    """Write a whole file under a new inode, as the store does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".tmp").write_text(text)
    file.with_suffix(".tmp").replace(file)


def test_commits_are_noted_once_and_those_that_change_are_reported(tmp_path):
    watch = Watch(tmp_path)
    folder = tmp_path / "store" / "commits"
    started = time.monotonic()
    watch.start()
    put(folder / "zero-a" / "task_001.json", "1")
    put(folder / "a" / "task_001.json", "1")
    put(folder / "b" / "task_001.json", "1")
    while len(watch.seen) < 2:
        time.sleep(0.01)
    put(folder / "a" / "task_001.json", "2")
    while not watch.wrong:
        time.sleep(0.01)
    watch.stop()
    assert set(watch.seen) == {"a/task_001.json", "b/task_001.json"}
    assert watch.wrong == ["commit a/task_001.json was written again"]
    recovery = watch.recovery(started)
    assert recovery == max(watch.seen.values()) - started
    assert watch.recovery(time.monotonic()) is None
