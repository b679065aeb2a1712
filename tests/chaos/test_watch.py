"""A commit that changes after it appeared is reported."""

import time

from tests.chaos.watch import Watch


def test_a_commit_that_is_written_again_is_reported(tmp_path):
    watch = Watch(tmp_path)
    file = tmp_path / "store" / "commits" / "a" / "task_001.json"
    file.parent.mkdir(parents=True)
    watch.start()
    for text in ("1", "2"):
        file.with_suffix(".tmp").write_text(text)
        file.with_suffix(".tmp").replace(file)  # under a new inode, as the store does
        while not (watch.wrong if text == "2" else watch.seen):
            time.sleep(0.01)
    watch.stop()
    assert set(watch.seen) == {"a/task_001.json"}
    assert watch.wrong == ["commit a/task_001.json was written again"]
