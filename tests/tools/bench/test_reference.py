"""The plain implementations compute the same values as ours."""

import pytest
import torch

from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Batch, Method
from ctvr.methods.layers.experts import drop_unchosen
from ctvr.orchestrator.learning.training.unique_videos import Losses
from tools.bench.paths import repeating
from tools.bench.reference import as_released, nothing_known, with_plain_attention
from tools.bench.work import freeze_except, random_batch, second_task


def step(method: Method, batch: Batch) -> dict[str, torch.Tensor]:
    freeze_except(method, method.param_groups())
    method.train()
    torch.manual_seed(0)  # the router's noise and dropout
    torch.stack(list(Losses(method)(batch).values())).sum().backward()
    drop_unchosen(method)
    return {name: p.grad for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("frames", [1, 3])
def test_a_step_as_released_has_the_gradients_of_ours(frames: int) -> None:
    backbone = load_backbone(TINY, "shipped")
    batch = nothing_known(repeating(random_batch(backbone, 4, frames), 3))
    method = second_task("framefusion_moe", backbone)
    for name, parameter in method.named_parameters():
        if ".B." in name:  # experts as they are born add nothing
            torch.nn.init.normal_(parameter, std=0.05)
    released = as_released(method)
    ours, theirs = step(method, batch), with_plain_attention(lambda: step(released, batch))()
    assert ours.keys() == theirs.keys()
    assert all(gradient.abs().max() > 0 for name, gradient in ours.items() if name.endswith(".A"))
    for name, gradient in ours.items():
        torch.testing.assert_close(theirs[name], gradient, rtol=1e-4, atol=2e-6, msg=name)
