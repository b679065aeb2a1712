"""Bundles from commits: settings without folders, and the commits of adopted tasks."""

import re

import pytest

from ctvr.orchestrator.bundles.from_commits import _find_commit, without_folders
from ctvr.orchestrator.errors import MissingObject
from ctvr.orchestrator.store.store import Store


@pytest.mark.parametrize(
    "path",
    ["/home/alice/w.pt", "~/w.pt", "../alice/w.pt", "file:///home/alice/w.pt", r"C:\Users\alice\w.pt", "/alice/w.pt/"],
)
def test_settings_are_published_without_folders(path):
    found = without_folders(path)
    assert re.fullmatch(r"w\.pt#[0-9a-f]{6}", found)
    assert without_folders(f"shapes-5,{path}") == f"shapes-5,{found}"
    assert without_folders(f"{path}@3") == f"{found}@3"  # the task order of a stream, which tables read


def test_settings_without_folders_are_kept_and_other_paths_stay_different():
    for value in ("0.9,0.999", "shapes-5", "mine:Mine", "small.json", "1e-4", ""):
        assert without_folders(value) == value
    assert without_folders("/d/a/model.safetensors") != without_folders("/d/b/model.safetensors")


def test_the_commit_of_adopted_tasks_is_that_of_the_run_that_trained_them(tmp_path):
    store = Store.open(str(tmp_path / "store"))
    for name, weights in (("b/task_001", "b/x"), ("b/task_002", "b/y"), ("a/task_002", "b/y"), ("a/task_003", "a/z")):
        store.create_json("commits", name, {"weights": weights, "name": name})
    found = [_find_commit("a", done, 3, store)["name"] for done in (1, 2, 3)]
    assert found == ["b/task_001", "a/task_002", "a/task_003"]
    with pytest.raises(MissingObject):
        _find_commit("c", 1, 3, store)
