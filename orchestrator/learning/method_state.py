"""The state of a method: what a commit keeps of it, and all of it as safetensors in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.redaction import redact_data
from ctvr.orchestrator.streams.manifest import read_json


class PretrainedSnapshot(dict[str, Tensor]):
    """Name -> backbone weight of a fresh method: what a checkpoint need not hold while it is as it was.

    These are no copies: they lie where the method has them. So a weight is as it was while it is not trained (`drop`)
    and nothing has written to it, which its version tells.
    """

    def __init__(self, method: Method) -> None:
        super().__init__(
            (name, value.detach())
            for prefix, module in method.named_modules()
            if isinstance(module, Clip)
            for name, value in _prefixed(prefix, module.state_dict())
        )
        self._versions = {name: value._version for name, value in self.items()}

    def drop(self, trained: Iterable[Tensor]) -> None:
        """Checkpoints hold these from now on."""
        places = {weight.data_ptr() for weight in trained}
        for name in [name for name, value in self.items() if value.data_ptr() in places]:
            del self[name]

    def has(self, name: str, value: Tensor) -> bool:
        """Whether the weight is as it was; `value` is its present one."""
        if name not in self:
            return False
        first = self[name]
        if first.data_ptr() == value.data_ptr():
            return first._version == self._versions[name]
        return torch.equal(first.cpu(), value.cpu())  # the method lies elsewhere now


def _prefixed(prefix: str, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(f"{prefix}.{name}" if prefix else name, value) for name, value in state.items()]


def trained_state(method: Method, pretrained: PretrainedSnapshot) -> dict[str, Tensor]:
    """The method's state without the backbone weights that still are what they were, on the CPU."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in method.state_dict().items()
        if not pretrained.has(name, value)
    }


def clone_trained_state(method: Method, pretrained: PretrainedSnapshot | None = None) -> dict[str, Tensor]:
    """A method's state where it lies, without what `pretrained` has: on a GPU the host waits for nothing."""
    return {
        name: value.detach().clone()
        for name, value in method.state_dict().items()
        if pretrained is None or not pretrained.has(name, value)
    }


def load_state(method: Method, state: Mapping[str, Tensor], pretrained: Mapping[str, Tensor]) -> None:
    """Put a saved state, of any device, into a method that has replayed `begin_task`.

    A buffer may change its shape (a memory, a queue); a parameter may not.

    Raises:
        ValueError: if names or parameter shapes do not fit; the message says which.
    """
    present = method.state_dict()
    unknown = [name for name in state if name not in present]
    missing = [name for name in present if name not in state and name not in pretrained]
    if unknown or missing:
        raise ValueError(
            f"the checkpoint does not fit the method: {len(unknown)} unknown and {len(missing)} missing tensors, "
            f"for example {(unknown + missing)[0]}. It was written with other settings or another version."
        )
    _resize_buffers(method, state)
    full = {name: state[name] if name in state else pretrained[name] for name in present}
    for name, parameter in method.named_parameters():
        if full[name].shape != parameter.shape:
            raise ValueError(
                f"the checkpoint does not fit the method: {name} has shape {tuple(full[name].shape)}, "
                f"expected {tuple(parameter.shape)}."
            )
    # What is there already stays untouched, and is as it was
    new = {name: value for name, value in full.items() if value.data_ptr() != present[name].data_ptr()}
    method.load_state_dict(new, strict=False)


def _resize_buffers(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    for name, buffer in list(module.named_buffers()):
        if name in state and state[name].shape != buffer.shape:
            owner, _, leaf = name.rpartition(".")
            holder = module.get_submodule(owner)
            setattr(holder, leaf, torch.empty(state[name].shape, dtype=state[name].dtype, device=buffer.device))


def save_model(method: Method, settings: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write a method as `model.safetensors` and `model.json`; `load_model` reads them back.

    Only what differs from the pre-trained backbone is written if the backbone is frozen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.detach().cpu().contiguous().clone() for name, value in method.state_dict().items()},
        str(folder / "model.safetensors"),
    )
    described = {"settings": redact_data(dict(settings)), "tasks": list(tasks)}
    (folder / "model.json").write_text(json.dumps(described, indent=1), encoding="utf-8")


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and description that `save_model` wrote.

    Raises:
        FileNotFoundError: if the folder holds no model.
        ConfigError: if one of its files is damaged.
    """
    for name in ("model.safetensors", "model.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name}: no such file. Give a folder that holds a saved model.")
    about = read_json(folder / "model.json")
    tasks = about.get("tasks") if isinstance(about, dict) else None
    if not isinstance(tasks, list) or not isinstance(about.get("settings"), dict):
        raise ConfigError(f"{folder / 'model.json'}: holds no settings and tasks of a model. Save the model again.")
    try:
        return load_file(str(folder / "model.safetensors")), about
    except SafetensorError as error:
        raise ConfigError(f"{folder / 'model.safetensors'}: is damaged ({error}). Save the model again.") from error
