"""Set-up of the device: deterministic kernels, precision, and errors about missing GPUs or memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ctvr.orchestrator.errors import ConfigError, OutOfMemory

# fp32: full float32. tf32: matrix products in TF32 on a GPU, float32 elsewhere. bf16: autocast to bfloat16.
Precision = Literal["fp32", "tf32", "bf16"]


def set_determinism(device: torch.device, is_deterministic: bool = True, precision: Precision = "fp32") -> None:
    """Set torch's determinism and precision before a computation on a GPU; does nothing for a CPU.

    All code that computes on a GPU calls it: runs, precomputed features, measurements. TF32 is on only for
    `precision="tf32"`. It is turned off otherwise, because Ray's processes serve several runs. If `is_deterministic`,
    torch raises an error for an operator without a deterministic kernel. `warn_only` would leave the backward pass of
    attention nondeterministic.

    `CUBLAS_WORKSPACE_CONFIG` must be set before CUDA starts. Ray passes it to its workers at their start
    (`on_ray.connection.worker_environment`); other processes have not used CUDA before this call.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(is_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it is never read
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def stacked(parts: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Stack arrays of one shape to a CPU tensor (N, ...), in pinned memory if `device` is a GPU.

    Pinned memory allows asynchronous copies to a GPU. The arrays are stacked directly in it, because another copy would
    take longer than stacking.
    """
    if device.type != "cuda":
        return torch.from_numpy(np.stack(parts))
    dtype = torch.from_numpy(np.empty(0, parts[0].dtype)).dtype
    made = torch.empty((len(parts), *parts[0].shape), dtype=dtype, pin_memory=True)
    np.stack(parts, out=made.numpy())
    return made


def autocast_for(precision: Precision, device_type: str) -> AbstractContextManager[object]:
    """Return the context for forward passes of this precision."""
    return torch.autocast(device_type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def numerics_flags(device: torch.device) -> dict[str, bool]:
    """Return the current torch flags that affect results on a GPU. Empty for a CPU."""
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
    """Check that torch finds the requested GPU, so that a run does not fall back to the CPU.

    Raises:
        ConfigError: if torch finds no GPU; the message names this node.
    """
    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        raise ConfigError(
            f"--gpus-per-trial: torch finds no GPU on {platform.node()}, although Ray assigned one to this process. "
            f"Torch {built}: check `nvidia-smi` and the driver there, or use --gpus-per-trial 0 to train on CPUs."
        )


@contextmanager
def memory_of(device: torch.device) -> Iterator[None]:
    """Context manager that replaces torch's out-of-memory error by a permanent error that states the remedies.

    Raises:
        OutOfMemory: instead of torch's out-of-memory error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else str(device)
        raise OutOfMemory(
            f"data.batch_size: the memory of {name} on {platform.node()} is too small for a step. Use "
            "optim.activation_checkpointing=true (same results), precision=bf16, or a smaller data.batch_size with "
            "optim.accumulation_steps, which keeps the step. Torch's error: " + str(error).splitlines()[0][:150]
        ) from error


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory of a GPU. Does nothing for a CPU, since the peak of a process cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory in MB (10^6 bytes): of tensors on a GPU since `reset_peak_memory`, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
