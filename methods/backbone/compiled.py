"""`torch.compile` for blocks without active hook points, which are called seams (`compile=true`).

LayerNorm, biases, activation and residual sums of a block are fused into fewer kernels. A block with active seams is
not compiled, because seams run code of the method. All blocks of a tower share one compiled function, which takes
their weights as arguments. A copy of a tower keeps the setting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

RECOMPILATIONS = 64  # limit per function: it serves both towers, with and without gradients, all or only class tokens


class CompileFailed(ValueError):
    """Error: torch cannot compile on this machine."""


@cache
def _compile(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    import torch._dynamo  # slow import (seconds)

    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    return torch.compile(function, dynamic=True)


def run_compiled(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Compile a function in its first call, and return the result of the compiled function.

    Raises:
        CompileFailed: if torch cannot compile the function.
    """
    compiled = _compile(function)
    from torch._dynamo.exc import TorchDynamoException

    try:
        return compiled(*arguments)
    except (TorchDynamoException, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if not line.endswith("raised:")), type(error).__name__)
        raise CompileFailed(
            f"compile: torch cannot compile here ({reason[:200]}). Use compile=false, or install a C++ compiler (on "
            "Debian: apt-get install g++) and Python's headers."
        ) from error


def compile_blocks(backbone: nn.Module, device: torch.device) -> None:
    """Let a backbone compile its blocks without active seams; a small function is compiled first as a test.

    Raises:
        CompileFailed: if torch cannot compile for the device.
    """
    run_compiled(_probe, torch.ones(64, device=device))
    for module in backbone.modules():
        if hasattr(module, "is_compiled"):
            module.is_compiled = True  # type: ignore[assignment]


def is_compiled(tower: nn.Module) -> bool:
    """Return whether the blocks of a tower are compiled if they have no active seams."""
    return any(getattr(module, "is_compiled", False) for module in tower.modules())


def _probe(x: Tensor) -> Tensor:
    return x.sin() + x
