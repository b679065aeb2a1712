"""Monitoring of a task's loss: sums of the loss terms, and checks that they are finite.

Reading a value from a GPU makes the host wait. Sums and flags therefore remain on the device and are read once every
`SYNC_EVERY` steps and at the end of an epoch; on a CPU, where reading is free, in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method
from ctvr.orchestrator.errors import NonFiniteLoss
from ctvr.orchestrator.learning.training.distributed import all_reduce_min
from ctvr.orchestrator.processes import record_position

SYNC_EVERY = 20  # steps between checks on a GPU; at most 20 steps use non-finite values, which are never committed
REMEDY = "Lower the learning rates, for example by optim.lr_scale."


class EpochMetrics:
    """Accumulates loss terms and metrics of an epoch and checks them.

    Args:
        device: device of the training.
        where: task and epoch, for messages.
    """

    def __init__(self, device: torch.device, where: str) -> None:
        self._where, self._every = where, SYNC_EVERY if device.type == "cuda" else 1
        self._sums: dict[str, float | Tensor] = {}
        self._flags: list[tuple[str, Tensor]] = []  # (term name, or "" for the gradient; whether it is finite)
        self._count = self._steps = 0
        record_position(f"{where}, step 1")

    def add(self, terms: Mapping[str, Tensor], batch_metrics: Mapping[str, float | Tensor]) -> None:
        """Add a batch's loss terms and the method's batch metrics."""
        self._flags += [(name, torch.isfinite(term.detach())) for name, term in terms.items()]
        for name, value in {**{f"loss/{name}": term for name, term in terms.items()}, **batch_metrics}.items():
            number = value.detach().double() if isinstance(value, Tensor) else value
            self._sums[name] = self._sums.get(name, 0.0) + number
        self._count += 1

    def step(self, norm: Tensor) -> None:
        """Record whether a step's gradient is finite, before the step is made.

        Raises:
            NonFiniteLoss: if the flags are read in this step and show a value that is not finite.
        """
        self._flags.append(("", torch.isfinite(norm)))
        self._steps += 1
        record_position(f"{self._where}, step {self._steps + 1}")
        if self._steps % self._every == 0:
            self.check()

    def check(self) -> None:
        """Read the flags.

        Raises:
            NonFiniteLoss: if a value was not finite; the message names the loss terms of the first such batch, or the
                gradient.
        """
        self._read([])

    def means(self) -> dict[str, float]:
        """Return the mean over batches of every loss term and metric, as `train/...`; empty without a batch.

        Raises:
            NonFiniteLoss: see `check`.
        """
        on_device = {name: value for name, value in self._sums.items() if isinstance(value, Tensor)}
        sums = {**self._sums, **dict(zip(on_device, self._read(list(on_device.values()))))}
        return {f"train/{name}": float(value) / self._count for name, value in sums.items()}

    def _read(self, numbers: list[Tensor]) -> list[float]:
        """Read values (float64) from the device together with the flags, in one synchronization."""
        names, flags = [name for name, _ in self._flags], [flag.double() for _, flag in self._flags]
        self._flags = []
        if flags:
            # All workers stop together, because otherwise the others would wait in a collective
            flags = list(all_reduce_min(torch.stack(flags)).unbind())
        read = torch.stack([*flags, *numbers]).tolist() if flags or numbers else []
        is_finite, found = read[: len(names)], read[len(names) :]
        if not all(is_finite):
            first = is_finite.index(0.0)
            last = next((i for i in range(first, len(names)) if not names[i]), len(names))
            bad = [names[i] for i in range(first, last) if not is_finite[i]]
            what = f"loss ({', '.join(dict.fromkeys(bad))})" if names[first] else "gradient"
            raise NonFiniteLoss(f"{self._where}: the {what} is not finite. {REMEDY}")
        return list(found)


@torch.no_grad()
def mean_losses(
    method: Method, batches: Iterable[Batch], autocast: Callable[[], Any], device: torch.device, where: str
) -> dict[str, float]:
    """Return the mean of every loss over batches, like `EpochMetrics.means`, without training."""
    progress = EpochMetrics(device, where)
    for batch in batches:
        with autocast():  # ids of pairs and videos would clash with those of training
            terms = method.losses(replace(batch, pair_ids=None, unaugmented_video_ids=None))
        progress.add(terms, {})
    return progress.means()
