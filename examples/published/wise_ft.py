"""WiSE-FT and EMA: averaged weights for evaluation and raw weights for training, for any retriever.

    WiSE-FT    average = (1 - alpha) theta_0 + alpha theta       (Wortsman et al., arXiv:2109.01903)
    EMA        average <- decay average + (1 - decay) theta      after every step, from theta_0 on

theta are the trained weights and theta_0 the initial ones; for parameters of CLIP these are the pre-trained weights.
Galleries, evaluations and the saved model use the average, and the next task continues from theta. What we changed:
WiSE-FT is for one task; here the average is updated in every task, and theta_0 does not change. EMA is that of torch's
`get_ema_avg_fn`; Polyak and Juditsky (1992) instead give all steps equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ctvr import Method, Strategy, Task, require, setting


@dataclass(frozen=True, kw_only=True)
class WiseFtConfig:
    """Settings of WiSE-FT."""

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    average: Literal["wise", "ema"] = setting("wise", doc="kind of average: wise (WiSE-FT) or ema")
    alpha: float = setting(0.5, doc="share of the trained weights in WiSE-FT's average")
    decay: float = setting(0.99, doc="decay of the EMA in each step")

    def __post_init__(self) -> None:
        require(self, "in [0, 1]", "alpha", hint="Use 0.5.")
        require(self, "in [0, 1]", "decay", hint="Use 0.99.")


class WiseFt(Strategy):
    """A strategy that uses averaged weights in evaluation mode and the trained weights in training mode."""

    Config = WiseFtConfig
    PRESETS = {"ema": {"method.average": "ema"}}

    def __init__(self, config: WiseFtConfig, base: Method) -> None:
        super().__init__(config, base)
        self.names: list[str] = []  # names of the parameters that have been trained

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        trained = {id(p) for group in self.base.param_groups() for p in group["params"]}
        for name, p in self.base.named_parameters():
            if id(p) in trained and name not in self.names:
                self.names.append(name)
                for kind in ("raw", "average"):  # the average of `wise` is theta_0 until the first epoch ends
                    self.register_buffer(_buffer(kind, name), p.detach().clone())
                self.register_buffer(_buffer("start", name), p.detach().clone())

    @torch.no_grad()
    def train(self, mode: bool = True) -> WiseFt:
        if mode != self.training:
            for p, raw, average, start in self._weights():
                if mode:
                    p.copy_(raw)
                    continue
                raw.copy_(p)
                if self.config.average == "wise":
                    average.copy_(torch.lerp(start, raw, self.config.alpha))
                p.copy_(average)
        super().train(mode)
        return self

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        if self.config.average == "ema":
            for p, _, average, _ in self._weights():
                average.lerp_(p, 1 - self.config.decay)

    def _weights(self) -> list[tuple[Tensor, ...]]:
        kinds = ("raw", "average", "start")
        own = dict(self.base.named_parameters())
        return [(own[n], *(self.get_buffer(_buffer(kind, n)) for kind in kinds)) for n in self.names]


def _buffer(kind: str, name: str) -> str:
    return f"{kind}-{name.replace('.', '-')}"
