"""Changes of a method are saved and restored; a state that does not fit is refused with names."""

import os

import pytest
import torch
from torch import nn

from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.record.method_state import (
    PretrainedSnapshot,
    load_state,
    read_model,
    save_model,
    trained_state,
)
from ctvr.orchestrator.streams.stream import Stream
from tests.methods.conftest import make_small_clip
from tests.refusing import refuses


def test_a_frozen_backbone_costs_a_checkpoint_nothing():
    method = ZeroShot(ZeroShotConfig(), make_small_clip())
    assert trained_state(method, PretrainedSnapshot(method)) == {}


def test_only_what_changed_is_kept_and_comes_back():
    method = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    pretrained = PretrainedSnapshot(method)
    with torch.no_grad():
        method.backbone.vision.proj.add_(1)
    state = trained_state(method, pretrained)
    assert list(state) == ["backbone.vision.proj"]
    fresh = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    load_state(fresh, state, PretrainedSnapshot(fresh))
    for a, b in zip(method.state_dict().values(), fresh.state_dict().values()):
        assert torch.equal(a, b)


def test_backbone_weights_are_not_copied_and_trained_ones_are_kept():
    method = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    pretrained = PretrainedSnapshot(method)
    state = method.state_dict()
    assert {name: value.data_ptr() for name, value in pretrained.items()} == {
        name: value.data_ptr() for name, value in state.items() if name.startswith("backbone.")
    }
    proj = method.backbone.vision.proj
    pretrained.drop([proj])  # a fused optimizer writes without a new version
    assert list(trained_state(method, pretrained)) == ["backbone.vision.proj"]
    proj.data = proj.detach().clone()
    method.backbone.vision.conv1.weight.data = method.backbone.vision.conv1.weight.detach().clone()  # it moved
    assert list(trained_state(method, pretrained)) == ["backbone.vision.proj"]
    method.backbone.vision.conv1.weight.data[0] += 1
    assert "backbone.vision.conv1.weight" in trained_state(method, pretrained)
    fresh = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    own = PretrainedSnapshot(fresh)
    load_state(fresh, trained_state(method, pretrained), own)
    assert list(trained_state(fresh, own)) == list(trained_state(method, pretrained))


class WithMemory(ZeroShot):
    def __init__(self) -> None:
        super().__init__(ZeroShotConfig(), make_small_clip())
        self.register_buffer("memory", torch.empty(0))
        self.added = nn.Parameter(torch.zeros(2))


def test_a_buffer_may_grow_but_a_parameter_may_not():
    method = WithMemory()
    pretrained = PretrainedSnapshot(method)
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
        load_state(method, state, PretrainedSnapshot(method))


def test_a_saved_model_is_read_back(tmp_path):
    method = ZeroShot(ZeroShotConfig(), make_small_clip())
    save_model(method, {"method": "zero_shot"}, Stream("none", (), "ctvr", has_val=False), tmp_path / "model")
    weights, description = read_model(tmp_path / "model")
    assert description["settings"] == {"method": "zero_shot"}
    assert all(torch.equal(weights[name], value) for name, value in method.state_dict().items())


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model.safetensors: no such file. Pass a folder"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_pipe_as_a_model_file_is_refused_at_once(tmp_path, name):
    (tmp_path / "model.json").write_text('{"settings": {}, "tasks": []}')
    (tmp_path / "model.safetensors").touch()
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with refuses(name):
        read_model(tmp_path)
    with refuses(name):
        load(str(tmp_path), ExecutionConfig(tmp_path))
