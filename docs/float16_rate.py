"""Effect of a published rate for float16 weights on float32 weights: `python docs/float16_rate.py`.

CLIP4Clip's command trains CLIP at 1e-7 with weights, gradients and both moments in float16. Here its optimizer, its
schedule and its decay move 100,000 weights N(0, 0.02) for 700 steps of noise N(0, 8e-5), about what a gradient of unit
norm is over the 1.5e8 weights of ViT-B/32, in both precisions.
"""

from __future__ import annotations

import sys

import torch

from ctvr.methods.base import ParamGroup
from ctvr.orchestrator.learning.training.optimizer import lr_factor, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig

WEIGHTS, STEPS = 100_000, 700


def moved(rate: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the share of weights that changed at all, and the root mean square of the change."""
    torch.manual_seed(0)
    start = (0.02 * torch.randn(WEIGHTS)).to(dtype)
    module = torch.nn.ParameterDict({"weight": torch.nn.Parameter(start.clone())})
    optim = OptimConfig(
        name="bert_adam",
        betas=(0.9, 0.98),
        decay_parameters="no_bias",
        schedule="cosine_uncorrected_warmup",
        warmup_from="zero",
        warmup=0.1,
    )
    groups = [ParamGroup(name="weight", params=list(module.parameters()), lr=rate)]
    optimizer = make_optimizer(groups, optim, module)
    for step in range(STEPS):
        module["weight"].grad = (8e-5 * torch.randn(WEIGHTS)).to(dtype)
        set_learning_rates(optimizer, lr_factor(step, STEPS, STEPS, True, optim))
        optimizer.step()
    change = module["weight"].detach().float() - start.float()
    return float((change != 0).float().mean()), float(change.square().mean().sqrt())


if __name__ == "__main__":
    for rate, dtype in ((1e-7, torch.float16), (1e-7, torch.float32), (1e-6, torch.float32), (5e-6, torch.float32)):
        share, size = moved(rate, dtype)
        precision = str(dtype).removeprefix("torch.")
        sys.stdout.write(f"rate {rate:g} in {precision}: {share:.0%} of weights moved, rms {size:.1e}\n")
