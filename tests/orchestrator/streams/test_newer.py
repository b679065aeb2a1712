from dataclasses import replace

import pytest

from ctvr.orchestrator.streams.newer import find_first_difference, require_same, with_newer
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from tests.refusing import missing_from, refuses


def stream(folder="old"):
    def item(name):
        return Item(name, f"/{folder}/{name}.npy", None, "c", (f"{name} one", f"{name} two"))

    parts = [[item(f"{split}{task}{n}") for n in range(2)] for task in (1, 2) for split in ("train", "test")]
    tasks = [
        StreamTask(f"task_0{task}", ("c",), tuple(train), (), tuple(test))
        for task, train, test in ((1, *parts[:2]), (2, *parts[2:]))
    ]
    return Stream(folder, tuple(tasks), "ctvr", False, text_features=f"/{folder}/texts.npz", features=folder)


def changed(task, split, row, **fields):
    def items(each):
        return tuple(replace(item, **fields) if n == row else item for n, item in enumerate(each))

    made = stream("new")
    tasks = list(made.tasks)
    tasks[task] = replace(tasks[task], **{split: items(getattr(tasks[task], split))})
    return replace(made, tasks=tuple(tasks))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (changed(1, "test", 0, video="x"), ["task_02", "test", "'x'", "'test20'"]),
        (changed(0, "train", 1, captions=("train11 one", "y")), ["task_01", "train", "'train11'", "'y'", "two"]),
        (changed(0, "train", 1, captions=("train11 one",)), ["task_01", "train", "'train11'", "1", "2"]),
        (changed(1, "train", 0, category="d"), ["task_02", "train", "'d'"]),
        (replace(stream("new"), tasks=stream("new").tasks[:1]), ["1 tasks", "2"]),
        (replace(stream("new"), tasks=stream("new").tasks[::-1]), ["task_01", "train", "'train20'", "'train10'"]),
        (replace(stream("new"), protocol="cvlm"), ["cvlm", "ctvr"]),
    ],
)
def test_the_first_difference_is_named(new, words):
    said = find_first_difference(stream(), new)
    assert not missing_from(said, *words)
    with refuses(*words, where="upgrade.stream"):
        require_same(stream(), new, "new")


def test_two_sets_of_the_same_items_do_not_differ():
    assert find_first_difference(stream(), stream("new")) == ""


def test_tasks_after_an_upgrade_read_the_new_files_and_keep_name_and_digest():
    whole = replace(stream(), newer=stream("new"))
    after = whole.after(1)
    assert [item.path for task in after.tasks for item in task.train] == [
        item.path for task in stream("new").tasks for item in task.train
    ]
    assert after.text_features == "/new/texts.npz"
    assert (after.name, after.digest, after.learned) == (whole.name, stream().digest, 1)
    fewer = replace(whole, tasks=(replace(whole.tasks[0], train=whole.tasks[0].train[:1]), *whole.tasks[1:]))
    assert len(fewer.after(1).tasks[0].train) == 1  # a dropped video is dropped from both


def test_without_a_name_a_stream_is_unchanged(tmp_path):
    old = stream()
    assert with_newer(old, "", tmp_path) is old
