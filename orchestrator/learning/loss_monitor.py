"""What a training step tells the host: the terms of its loss, and that they are finite.

Every number that the host reads of a GPU is a wait. So both stay on the device and are read once in `EVERY` steps and
before an epoch ends; on a CPU, where reading is free, in every step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ctvr.orchestrator.errors import NonFiniteLoss
from ctvr.orchestrator.learning.distributed import all_reduce_min
from ctvr.orchestrator.learning.pulse import at

SYNC_EVERY = 20  # steps, on a GPU: so many more may be trained on numbers that are none, and no commit is made of them
REMEDY = "Lower the learning rates, for example by optim.lr_scale."


class EpochMetrics:
    """The sums of an epoch.

    Args:
        device: that computes.
        where: task and epoch, for messages.
    """

    def __init__(self, device: torch.device, where: str) -> None:
        self._where, self._every = where, SYNC_EVERY if device.type == "cuda" else 1
        self._sums: dict[str, float | Tensor] = {}
        self._flags: list[tuple[str, Tensor]] = []  # what is finite: a term's name, or "" for the gradient
        self._count = self._steps = 0
        at(f"{where}, step 1")

    def add(self, terms: Mapping[str, Tensor], batch_metrics: Mapping[str, float | Tensor]) -> None:
        """Take note of a batch's loss terms and of what else the method tells."""
        self._flags += [(name, torch.isfinite(term.detach())) for name, term in terms.items()]
        for name, value in {**{f"loss/{name}": term for name, term in terms.items()}, **batch_metrics}.items():
            number = value.detach().double() if isinstance(value, Tensor) else value
            self._sums[name] = self._sums.get(name, 0.0) + number
        self._count += 1

    def step(self, norm: Tensor) -> None:
        """Take note of a step's gradient, before it is made.

        Raises:
            Diverged: if what is read now is no finite number.
        """
        self._flags.append(("", torch.isfinite(norm)))
        self._steps += 1
        at(f"{self._where}, step {self._steps + 1}")
        if self._steps % self._every == 0:
            self.check()

    def check(self) -> None:
        """Read the flags.

        Raises:
            Diverged: naming the loss terms of the first batch that were no finite numbers, or the gradient.
        """
        self._read([])

    def means(self) -> dict[str, float]:
        """Mean over batches of every number, as `train/...`; empty without a batch.

        Raises:
            Diverged: as `check`.
        """
        on_device = {name: value for name, value in self._sums.items() if isinstance(value, Tensor)}
        sums = {**self._sums, **dict(zip(on_device, self._read(list(on_device.values()))))}
        return {f"train/{name}": float(value) / self._count for name, value in sums.items()}

    def _read(self, numbers: list[Tensor]) -> list[float]:
        """Numbers (float64) of the device together with the flags: one wait."""
        names, flags = [name for name, _ in self._flags], [flag.double() for _, flag in self._flags]
        self._flags = []
        if flags:
            # All workers end, or none: the others would wait for one
            flags = list(all_reduce_min(torch.stack(flags)).unbind())
        read = torch.stack([*flags, *numbers]).tolist() if flags or numbers else []
        is_finite, found = read[: len(names)], read[len(names) :]
        if not all(is_finite):
            first = is_finite.index(0.0)
            last = next((i for i in range(first, len(names)) if not names[i]), len(names))
            bad = [names[i] for i in range(first, last) if not is_finite[i]]
            what = f"loss ({', '.join(dict.fromkeys(bad))})" if names[first] else "gradient"
            raise NonFiniteLoss(f"{self._where}: the {what} is no finite number. {REMEDY}")
        return list(found)
