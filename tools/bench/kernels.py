"""Number of kernels of one training step, which the host must launch on a GPU.

At the papers' batch of 8 pairs, the GPU waits for the host, which launches one kernel after the other. The time of a
step therefore depends on the number of kernels, not on their work. Each operator that torch dispatches counts as one
kernel, except views and allocations. The step is from the second task and includes losses, backward pass, gradient
clipping, optimizer, `after_step` and metrics of the batch. The optimizer uses the operators that it uses on a GPU.

The count depends on the towers' depth, not on their width, so it is taken on a CPU with narrow towers of ViT-B/32's
12 + 12 blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ctvr.methods.backbone.frozen_casts import frozen_casts
from ctvr.methods.tiny_models import make_small_clip
from ctvr.orchestrator.data.device import Precision, autocast_for
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer
from ctvr.orchestrator.learning.training.step import total_of
from ctvr.orchestrator.learning.training.unique_videos import Losses
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tools.bench.work import random_batch, second_task

DEPTH, PAIRS, FRAMES = 12, 8, 12
WARM_UP = 5  # steps, because the optimizer has no state of an expert before a caption is routed to it
COUNTED = (
    "clip4clip",
    "framefusion_moe",
    "structalign",
    "tempme",
    "bmu_moco",
    "xpool",
    "clip_vip",
    "camoe",
    "mv_adapter",
    "dgl",
)
# Operators without a kernel that torch does not mark as views
_FREE = {
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_has_same_storage_numel",
}


class KernelCounter(TorchDispatchMode):
    """Counts the kernels that a `with` block launches."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        self.kernels += space == "aten" and not func.is_view and name not in _FREE
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class StepKernels:
    """Numbers of kernels in the three parts of a step."""

    forward: int
    backward: int
    update: int  # clipping, optimizer, `after_step`, metrics of the batch

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.update


def count_kernels(name: str, precision: Precision) -> StepKernels:
    """Count the kernels of a method's step, after steps that create the optimizer's state and cast frozen weights.

    Args:
        name: a retriever; its settings are those of its preset `paper`.
        precision: bf16 counts the casts of CPU autocast, which casts fewer results back to float32 than CUDA's.
    """
    clip = make_small_clip(DEPTH)
    method, batch = second_task(name, clip), random_batch(clip, PAIRS, FRAMES)
    groups, optim = method.param_groups(), OptimConfig()
    parameters = freeze_except(method, groups)
    optimizer, losses = make_optimizer(groups, optim, method), Losses(method)
    method.train()

    def update() -> None:
        method.before_step()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        method.after_step()
        method.batch_metrics()

    def step() -> StepKernels:
        with KernelCounter() as forward, autocast_for(precision, "cpu"):
            total = total_of(losses(batch))
        return StepKernels(forward.kernels, _count_kernels_of(total.backward), _count_kernels_of(update))

    with frozen_casts():
        for _ in range(WARM_UP):
            step()
        return step()


def _count_kernels_of(work: Callable[[], object]) -> int:
    with KernelCounter() as counter:
        work()
    return counter.kernels


def kernel_table(names: tuple[str, ...] = COUNTED) -> str:
    """Return a Markdown table of the number of kernels in a step of each method, in fp32 and bf16."""
    lines = [
        "| kernels of a step | fp32: forward | backward | update | all | bf16: forward | backward | update | all |",
        "|---|" + "--:|" * 8,
    ]
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    for name in names:
        found = [count_kernels(name, precision) for precision in precisions]
        cells = [f"{n:,}" for each in found for n in (each.forward, each.backward, each.update, each.total)]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)
