"""A video that occurs several times in a batch is encoded once, and nothing else changes."""

from contextlib import nullcontext
from dataclasses import fields, replace

import pytest
import torch
from torch import nn

from ctvr.methods.base import Batch, Method
from ctvr.orchestrator.learning.training.grad_cache import backward
from ctvr.orchestrator.learning.training.unique_videos import Losses
from tests.methods.conftest import make_batch
from tests.orchestrator.learning.training.test_grad_cache import made

ONCE = ["clip4clip", "framefusion_moe", "structalign", "camoe", "base_moco", "lwf", "vr_lwf"]
NEVER = ["noisy", "moe_adapter", "lump"]


def repeated(is_plain: bool) -> Batch:
    """Return six pairs of four videos."""
    batch, videos = make_batch(6, frames=4, seed=5), (0, 1, 0, 2, 3, 1)
    frames = batch.frames[torch.tensor(videos)]
    return replace(
        batch, frames=frames, video_ids=torch.tensor(videos), unaugmented_video_ids=videos if is_plain else None
    )


def gradients(method: Method) -> dict[str, torch.Tensor]:
    return {key: p.grad for key, p in method.named_parameters() if p.grad is not None}


def step(name: str, is_plain: bool) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Return the videos of each pass through a trained image tower, and the results of one step."""
    method, passed = made(name if name != "noisy" else "clip4clip"), []
    if name == "noisy":
        method.backbone.vision.ln_post = nn.Sequential(method.backbone.vision.ln_post, nn.Dropout(0.5))
    method.train()

    def count(module, given):
        if torch.is_grad_enabled():
            passed.append(len(given[0]) // 4)

    for key, module in method.named_modules():
        if key.endswith("conv1"):
            module.register_forward_pre_hook(count)
    torch.manual_seed(3)
    terms = Losses(method)(repeated(is_plain))
    torch.stack(list(terms.values())).sum().backward()
    found = {**{f"loss {key}": value.detach() for key, value in terms.items()}, **gradients(method)}
    return passed, {**found, "random": torch.rand(3)}


@pytest.mark.parametrize("name", ONCE)
def test_losses_and_gradients_are_those_of_all_rows(name):
    passed, found = step(name, is_plain=True)
    everything, expected = step(name, is_plain=False)
    assert (set(passed), set(everything)) == ({4}, {6})
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(
            value, expected[key], rtol=1e-4, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", NEVER)
def test_what_draws_counts_or_mixes_frames_gets_every_row(name):
    found = step(name, True)[1]
    for key, value in step(name, False)[1].items():
        assert torch.equal(found[key], value), key


def test_several_batches_of_one_step_share_their_videos():
    terms = []
    for is_plain in (True, False):
        method, whole = made("clip4clip"), repeated(is_plain)
        given = {field.name: getattr(whole, field.name) for field in fields(Batch)}
        known = {name: value for name, value in given.items() if value is not None}
        halves = [Batch(**{name: value[rows] for name, value in known.items()}) for rows in (slice(0, 3), slice(3, 6))]
        found = backward(method, halves, nullcontext)
        terms.append({**{name: value.detach() for name, value in found.items()}, **gradients(method)})
    for key, value in terms[0].items():
        torch.testing.assert_close(value, terms[1][key], rtol=1e-4, atol=2e-6)
