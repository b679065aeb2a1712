"""State of a method: the part that a commit stores, and complete models as safetensors in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Method, Task
from ctvr.methods.capabilities import overrides
from ctvr.methods.families.upgrade import Upgraded
from ctvr.methods.layers.replay.cache import VideoFeatureCache
from ctvr.orchestrator.data.batches import tasks_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.redaction import redact_data
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.stream import Stream

WEIGHT_SETTINGS = "weight_settings"  # key in model.json of the preprocessing settings of each backbone's weights


class PretrainedSnapshot(dict[str, Tensor]):
    """The backbone weights of a new method by name, which checkpoints omit while they are unchanged.

    The tensors are not copied. A weight counts as unchanged until it is trained (`drop`) or its version counter shows a
    write.
    """

    def __init__(self, method: Method) -> None:
        super().__init__(
            (f"{prefix}.{name}", value.detach())
            for prefix, module in method.named_modules()
            if isinstance(module, Clip)
            for name, value in module.state_dict().items()
        )
        self._versions = {name: value._version for name, value in self.items()}

    def drop(self, trained: Iterable[Tensor]) -> None:
        """Include these trained weights in checkpoints from now on."""
        places = {weight.data_ptr() for weight in trained}
        for name in [name for name, value in self.items() if value.data_ptr() in places]:
            del self[name]

    def has(self, name: str, value: Tensor) -> bool:
        """Return whether the weight is unchanged; `value` is its current tensor."""
        if name not in self:
            return False
        first = self[name]
        if first.data_ptr() == value.data_ptr():
            return first._version == self._versions[name]
        return torch.equal(first.cpu(), value.cpu())  # the method was moved to another device


def trained_state(method: Method, pretrained: PretrainedSnapshot) -> dict[str, Tensor]:
    """Return the method's state on the CPU, without unchanged backbone weights."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in method.state_dict().items()
        if not pretrained.has(name, value)
    }


def prepare_task(method: Method, task: Task, loader: Iterable[Batch]) -> None:
    """Call `prepare_task` if the method overrides it, and make every buffer contiguous as `finish_task` does."""
    if overrides(method, "prepare_task"):
        method.prepare_task(task, loader)
        _lay_out_buffers(method)


def finish_task(method: Method, task: Task, loader: Iterable[Batch]) -> None:
    """Call `end_task`, then make every buffer contiguous as in a resumed run, because strides change rounding."""
    method.end_task(task, loader)
    _lay_out_buffers(method)


def _lay_out_buffers(method: Method) -> None:
    for buffer in method.buffers():
        buffer.data = buffer.contiguous()


def clone_trained_state(method: Method, pretrained: PretrainedSnapshot | None = None) -> dict[str, Tensor]:
    """Clone a method's state on its device, without the weights of `pretrained`; does not synchronize a GPU."""
    return {
        name: value.detach().clone()
        for name, value in method.state_dict().items()
        if pretrained is None or not pretrained.has(name, value)
    }


def load_state(method: Method, state: Mapping[str, Tensor], pretrained: Mapping[str, Tensor]) -> None:
    """Load a saved state, from any device, into a method that has replayed `begin_task`.

    A buffer may change its shape (a replay memory, a queue); a parameter may not.

    Raises:
        ValueError: if names or parameter shapes differ; the message gives the first difference.
    """
    present = method.state_dict()
    unknown = [name for name in state if name not in present]
    missing = [name for name in present if name not in state and name not in pretrained]
    if unknown or missing:
        raise ValueError(
            f"the checkpoint does not fit the method: {len(unknown)} unknown and {len(missing)} missing tensors, "
            f"for example {(unknown + missing)[0]}. It was written with other settings or by another version."
        )
    _resize_buffers(method, state)
    full = {name: state[name] if name in state else pretrained[name] for name in present}
    for name, parameter in method.named_parameters():
        if full[name].shape != parameter.shape:
            raise ValueError(
                f"the checkpoint does not fit the method: {name} has shape {tuple(full[name].shape)}, "
                f"expected {tuple(parameter.shape)}."
            )
    # Tensors that already hold the value are not written, so that their version counters do not change
    new = {name: value for name, value in full.items() if value.data_ptr() != present[name].data_ptr()}
    method.load_state_dict(new, strict=False)


def _resize_buffers(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, buffer in list(module.named_buffers()):
        if name in state and state[name].shape != buffer.shape:
            owner, _, leaf = name.rpartition(".")
            holder = module.get_submodule(owner)
            setattr(holder, leaf, torch.empty(state[name].shape, dtype=state[name].dtype, device=buffer.device))


_BFLOAT16 = ".bfloat16"  # end of the name of a tensor that is stored as int16, because NumPy lacks bfloat16


def epoch_values(method: Method) -> dict[str, Tensor]:
    """Return the values of `EPOCH_STATE` of a method and its modules, on the CPU, by name."""
    found: dict[str, Tensor] = {}
    for name, value in _epoch_attributes(method):
        if isinstance(value, VideoFeatureCache):
            found[f"{name}.videos"], found[f"{name}.features"] = value.state()
        elif value is not None:
            found[name] = torch.as_tensor(value)
    stored = {}
    for name, value in found.items():
        value = value.detach().cpu().contiguous()
        is_narrow = value.dtype == torch.bfloat16
        stored[f"{name}{_BFLOAT16}" if is_narrow else name] = value.view(torch.int16) if is_narrow else value
    return stored


def load_epoch_values(method: Method, values: Mapping[str, Tensor], device: torch.device) -> None:
    """Load the values that `epoch_values` returned."""
    read = {
        name.removesuffix(_BFLOAT16): (value.view(torch.bfloat16) if name.endswith(_BFLOAT16) else value).to(device)
        for name, value in values.items()
    }
    for name, value in _epoch_attributes(method):
        path, _, attribute = name.rpartition(".")
        if isinstance(value, VideoFeatureCache):
            value.load(read[f"{name}.videos"], read[f"{name}.features"])
        elif name in read:
            is_number = isinstance(value, int | float)
            new = type(value)(read[name].item()) if is_number else read[name]
            setattr(method.get_submodule(path), attribute, new)


def _epoch_attributes(method: Method) -> list[tuple[str, Any]]:
    return [
        (f"{path}.{name}" if path else name, getattr(part, name))
        for path, part in method.named_modules()
        for name in getattr(part, "EPOCH_STATE", ())
    ]


def save_model(method: Method, settings: Mapping[str, Any], stream: Stream, folder: Path) -> None:
    """Write a method as `model.safetensors` and `model.json`; `load_trained` reads them back.

    Weights are complete, the backbone included. Secrets in the settings are redacted.

    Args:
        stream: stream of the tasks that the method has learned (after an upgrade, `Stream.after`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.detach().cpu().contiguous().clone() for name, value in method.state_dict().items()},
        str(folder / "model.safetensors"),
    )
    described: dict[str, Any] = {"settings": redact_data(dict(settings)), "tasks": list(map(vars, tasks_of(stream)))}
    if stream.learned:  # tasks of the old model before an upgrade, which the method contains
        described["earlier_tasks"] = list(map(vars, tasks_of(replace(stream, learned=0))[: stream.learned]))
    towers = {"backbone": method.old, "upgrade": method.base} if isinstance(method, Upgraded) else {"backbone": method}
    described[WEIGHT_SETTINGS] = {
        group: asdict(found)
        for group, part in towers.items()
        for found in [each.weight_settings for each in part.modules() if isinstance(each, Clip)][:1]
        if found
    }
    (folder / "model.json").write_text(json.dumps(described, indent=1), encoding="utf-8")


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read weights and description that `save_model` wrote.

    Raises:
        FileNotFoundError: if the folder does not contain a model.
        ConfigError: if one of its files is damaged.
    """
    for name in ("model.safetensors", "model.json"):
        if not os.path.lexists(folder / name):
            raise FileNotFoundError(f"{folder / name}: no such file. Pass a folder that contains a saved model.")
    about = read_json(folder / "model.json")
    if not (folder / "model.safetensors").is_file():  # opening a FIFO would block
        raise ConfigError("is not a file", folder / "model.safetensors", remedy="Save the model again.")
    tasks = about.get("tasks") if isinstance(about, dict) else None
    if not isinstance(tasks, list) or not isinstance(about.get("settings"), dict):
        raise ConfigError(
            "settings or tasks of the model are missing", folder / "model.json", remedy="Save the model again."
        )
    try:
        return load_file(str(folder / "model.safetensors")), about
    except SafetensorError as error:
        raise ConfigError(
            f"file is damaged ({error})", folder / "model.safetensors", remedy="Save the model again."
        ) from error


def start_upgrade(method: Method, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of the last commit into the old model of an `Upgraded` method, and measure its scale."""
    assert isinstance(method, Upgraded)
    load_state(method, {f"old.{name}": value for name, value in weights.items()}, method.state_dict())
    method.eval().measure_old(method.old_pairs())
