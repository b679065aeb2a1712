"""Commits are complete, verified, created once; a model is read back as it was written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from methods.clip4clip import Clip4Clip, Clip4ClipConfig
from methods.zero_shot import ZeroShot, ZeroShotConfig
from orchestrator.learning.commits import (
    Commits,
    Record,
    backbone_state,
    changed_state,
    load_state,
    read_model,
    save_model,
)
from orchestrator.store.store import Store
from tests.methods.conftest import make_small_clip


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def record(done: int) -> Record:
    return Record(done=done, own=[[1.0]] * done, union=[[1.0]] * done, metrics=[{"a": 1.0}] * done)


def test_a_frozen_backbone_costs_a_checkpoint_nothing():
    method = ZeroShot(ZeroShotConfig(), make_small_clip())
    assert changed_state(method, backbone_state(method)) == {}


def test_only_what_changed_is_kept_and_comes_back():
    method = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    pretrained = backbone_state(method)
    with torch.no_grad():
        method.backbone.vision.proj.add_(1)
    state = changed_state(method, pretrained)
    assert list(state) == ["backbone.vision.proj"]
    fresh = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    load_state(fresh, state, backbone_state(fresh))
    for a, b in zip(method.state_dict().values(), fresh.state_dict().values()):
        assert torch.equal(a, b)


class WithMemory(ZeroShot):
    def __init__(self) -> None:
        super().__init__(ZeroShotConfig(), make_small_clip())
        self.register_buffer("memory", torch.empty(0))
        self.added = nn.Parameter(torch.zeros(2))


def test_a_buffer_may_grow_but_a_parameter_may_not():
    method = WithMemory()
    pretrained = backbone_state(method)
    state = {"memory": torch.arange(6.0).view(2, 3), "added": torch.ones(2)}
    load_state(method, state, pretrained)
    assert torch.equal(method.memory, state["memory"])
    with pytest.raises(ValueError, match=r"added has shape \(3,\), expected \(2,\)"):
        load_state(method, {**state, "added": torch.ones(3)}, pretrained)


@pytest.mark.parametrize(
    "state", [{"memory": torch.zeros(1)}, {"memory": torch.zeros(1), "added": torch.zeros(2), "x": torch.zeros(1)}]
)
def test_missing_and_unknown_tensors_are_refused_by_name(state):
    method = WithMemory()
    with pytest.raises(ValueError, match=r"does not fit the method: \d unknown and \d missing tensors, for example"):
        load_state(method, state, backbone_state(method))


def test_commits_give_back_weights_galleries_and_record(store):
    commits = Commits(store, "run")
    assert commits.finished(3) == 0
    weights = {"w": torch.randn(3, 2)}
    galleries = [torch.randn(4, 2)]
    assert commits.publish(weights, galleries, record(1))
    assert commits.finished(3) == 1
    state, stored = commits.load(1)
    assert torch.equal(state["w"], weights["w"])
    assert torch.equal(stored[0], galleries[0])
    assert commits.record(1) == record(1)


def test_the_galleries_on_which_epochs_are_chosen_are_part_of_a_commit(store):
    commits = Commits(store, "run")
    searched, chosen = [torch.randn(4, 2)], [torch.randn(3, 2)]
    assert commits.publish({"w": torch.zeros(2)}, searched, record(1), selection=chosen)
    assert torch.equal(commits.galleries(1)[0], searched[0])
    assert torch.equal(commits.galleries(1, "selection")[0], chosen[0])
    (key,) = store.get_json("commits", "run/task_001")["selection"]
    store.delete("gallery", key)
    assert commits.finished(3) == 0  # a task whose choice could not be repeated is not finished


def test_a_commit_without_a_choice_has_no_galleries_for_it(store):
    commits = Commits(store, "run")
    commits.publish({"w": torch.zeros(2)}, [torch.randn(4, 2)], record(1))
    assert commits.galleries(1, "selection") == []


def test_the_first_commit_of_a_task_wins_over_a_late_one(store):
    commits = Commits(store, "run")
    first, late = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    assert commits.publish(first, [torch.zeros(1, 1)], record(1))
    assert not commits.publish(late, [torch.ones(1, 1)], record(1))
    assert torch.equal(commits.load(1)[0]["w"], first["w"])


def test_a_damaged_commit_is_not_believed_and_may_be_made_again(store, tmp_path):
    commits = Commits(store, "run")
    commits.publish({"w": torch.zeros(64)}, [torch.zeros(1, 1)], record(1))
    commits.publish({"w": torch.ones(64)}, [torch.zeros(1, 1)] * 2, record(2))
    newest = max((tmp_path / "store" / "weights").rglob("task_002*"))
    content = bytearray(newest.read_bytes())
    content[-8] ^= 1
    newest.chmod(0o644)
    newest.write_bytes(content)
    again = Commits(Store.open(tmp_path / "store"), "run")
    assert again.finished(3) == 1
    assert again.publish({"w": torch.ones(64)}, [torch.zeros(1, 1)] * 2, record(2))
    assert again.finished(3) == 2


def test_a_saved_model_is_read_back(tmp_path):
    method = ZeroShot(ZeroShotConfig(), make_small_clip())
    save_model(method, {"method": "zero_shot"}, [], tmp_path / "model")
    weights, description = read_model(tmp_path / "model")
    assert description["settings"] == {"method": "zero_shot"}
    assert all(torch.equal(weights[name], value) for name, value in method.state_dict().items())


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model.safetensors: no such file. Give a folder"):
        read_model(tmp_path)
