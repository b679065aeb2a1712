"""Streams with blurry boundaries: a share of the training videos changes its task, and all else is unchanged."""

from pathlib import Path

import pytest

from ctvr.orchestrator.execution import find_manifest
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream


@pytest.mark.parametrize(("name", "percent"), [("shapes-5", 25), ("shapes-10", 10)])
def test_a_share_of_each_tasks_training_videos_is_learned_in_other_tasks(tmp_path, name, percent):
    plain, blurred = (load_stream(each, tmp_path, render=False) for each in (name, f"{name}_blurry{percent}"))
    assert blurred.name == f"{name}_blurry{percent}"
    assert blurred.digest != plain.digest
    assert blurred.settings == plain.settings
    of = {item.video: task for task, each in enumerate(plain.tasks) for item in each.train}
    for task, (before, after) in enumerate(zip(plain.tasks, blurred.tasks, strict=True)):
        assert (after.val, after.test, after.name) == (before.val, before.test, before.name)
        foreign = [item for item in after.train if of[item.video] != task]
        assert len(after.train) - len(foreign) == len(before.train) - len(before.train) * percent // 100
        assert {item.category for item in after.train} <= set(after.categories)
        if len(before.train) * percent // 100 >= len(plain.tasks) - 1:
            assert len({of[item.video] for item in foreign}) == len(plain.tasks) - 1  # of every other task
    assert sorted(of) == sorted(item.video for task in blurred.tasks for item in task.train)
    again = load_stream(f"{name}_blurry{percent}@3", tmp_path, render=False)
    assert {task.name: task.train for task in again.tasks} == {task.name: task.train for task in blurred.tasks}


def test_a_manifest_keeps_its_blur_where_its_path_is_made_absolute(tmp_path, manifest, monkeypatch):
    monkeypatch.chdir(Path(manifest).parent)
    assert find_manifest("small.json_blurry25@2") == f"{manifest}_blurry25@2"
    assert load_stream(f"{manifest}_blurry25", tmp_path).name == "small_blurry25"


@pytest.mark.parametrize("method", ["structalign", "framefusion_moe"])
def test_methods_learn_a_blurry_stream(manifest, small_stream, runs, method):
    """A task may contain categories of other tasks."""
    name = f"{manifest}_blurry50"
    blurred = load_stream(name, runs)
    made = resolve({"method": method, "stream": name, "optim.epochs": 1}, small_stream.settings)
    found = execute(made, RunPaths(runs), reuse=False)
    assert found.record.done == len(blurred.tasks)
    assert found.key != made.key(small_stream)
