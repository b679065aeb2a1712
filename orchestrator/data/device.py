"""The device that computes: how CUDA is asked for the same numbers twice, and what is said when it cannot go on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from ctvr.orchestrator.errors import ConfigError, OutOfMemory

# fp32: full float32. tf32: products of matrices in TF32 on a GPU, float32 elsewhere. bf16: autocast to bfloat16.
Precision = Literal["fp32", "tf32", "bf16"]


def set_determinism(device: torch.device, is_deterministic: bool = True, precision: Precision = "fp32") -> None:
    """Set torch up before anything is computed on a device; on a CPU there is nothing to set.

    Whatever computes on a GPU calls it: runs, features made ahead, the measurements. TF32 is on only for
    `precision="tf32"`; Ray's processes serve several runs, so it is set either way. If `is_deterministic`, only kernels
    that give the same numbers twice are used: an operator without such a kernel is then an error of torch. Nothing
    less: a mere warning (`warn_only`) leaves the backward pass of attention as it is.

    `CUBLAS_WORKSPACE_CONFIG` must be set before CUDA starts. Ray gives it to its workers as they start
    (`on_ray.connection.worker_environment`); a process of its own has used no CUDA before this.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(is_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # unread
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def autocast_for(precision: Precision, device_type: str) -> AbstractContextManager[object]:
    """Return the context in which a forward pass of this precision runs."""
    return torch.autocast(device_type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def numerics_flags(device: torch.device) -> dict[str, bool]:
    """What `set_determinism` decides and a GPU's results depend on, as it stands now. Empty for a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }


def require_gpu() -> None:
    """Refuse to compute on the CPU of a place whose GPU was asked for.

    Raises:
        ConfigError: with this node's name, if torch finds no GPU here.
    """
    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise ConfigError(
            f"--gpus-per-trial: torch finds no GPU on {platform.node()}, where one was given to this process. Torch "
            f"{built}: look at `nvidia-smi` and the driver there, or write --gpus-per-trial 0 to train on CPUs."
        )


@contextmanager
def memory_of(device: torch.device) -> Iterator[None]:
    """Say what helps where the device's memory is too small. It would be too small again.

    Raises:
        OutOfMemory: in place of torch's own error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else str(device)
        raise OutOfMemory(
            f"data.batch_size: the memory of {name} on {platform.node()} is too small for a step. Write "
            "optim.activation_checkpointing=true (same results), precision=bf16, or a smaller data.batch_size with "
            "optim.accumulation_steps, which keeps the step. Torch said: " + str(error).splitlines()[0][:150]
        ) from error
