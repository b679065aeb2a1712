from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.vectors import CaptionTable
from ctvr.methods.base import l2_normalize
from ctvr.methods.dns import DNS, DNSConfig, project_on
from tests.methods.conftest import make_task
from tests.methods.vectors import batch, drawn, towers

RELEASED = {"temperature": 1.0, "similarity": "dot", "directions": "text_to_video"}
FIXTURE = Path(__file__).parent / "fixtures" / "dns_released.npz"


def made(table, **settings):
    return DNS(DNSConfig(**settings), towers(table))


def step(method, pairs, lr=1e-2):
    for parameter in method.parameters():
        parameter.grad = None
    loss = sum(method.losses(pairs).values())
    loss.backward()
    method.before_step()
    with torch.no_grad():
        for parameter in method.param_groups()[0]["params"]:
            parameter -= lr * parameter.grad
    return float(loss.detach())


def test_it_projects_on_the_directions_above_the_threshold():
    u = torch.linalg.qr(torch.randn(4, 4))[0]
    found = project_on(u @ torch.diag(torch.tensor([1.0, 0.5, 0.05, 0.0])) @ u.mT, 0.1)
    torch.testing.assert_close(found, u[:, :2] @ u[:, :2].mT, rtol=0, atol=1e-5)


def test_the_first_task_is_free_and_later_steps_keep_scores_of_former_pairs():
    frames, table = drawn()
    method, plain = (made(table, threshold=0.0, similarity="dot", temperature=1.0) for _ in range(2))
    previous = batch(frames, range(6), 0)  # half of the videos' twelve directions
    for each in (method, plain):
        each.begin_task(make_task(0))
        step(each, previous)
    assert all(torch.equal(a, b) for a, b in zip(method.parameters(), plain.parameters(), strict=True))
    method.end_task(make_task(0), [previous])
    for each in (method, plain):
        each.begin_task(make_task(1))

    def scores(each):
        with torch.no_grad():
            weights = [each.heads[side].weight for side in ("text", "video")]
            x = l2_normalize(each.backbone.text.vectors(previous.tokens)) @ weights[0].mT
            return x @ (l2_normalize(previous.frames[:, :, 0].mean(dim=1)) @ weights[1].mT).mT

    before = scores(method), scores(plain)
    for each in (method, plain):
        step(each, batch(frames, range(20, 30), 1), lr=1e-3)
    kept, lost = (float((scores(each) - was).abs().max()) for each, was in zip((method, plain), before, strict=True))
    assert kept < 0.02 * lost


def test_two_workers_would_add_the_same_moments_in_one_or_several_batches():
    frames, table = drawn()
    whole, parted = made(table), made(table)
    whole.end_task(make_task(0), [batch(frames, range(10), 0)])
    parted.end_task(make_task(0), [batch(frames, range(4), 0), batch(frames, range(4, 10), 0)])
    for name, value in whole.named_buffers():
        torch.testing.assert_close(value, parted.get_buffer(name), rtol=0, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.1, 0.02])
def test_two_tasks_equal_the_released_code(threshold, compared):
    """Losses and weights of two tasks of three steps of SGD on one width."""
    file = np.load(FIXTURE)
    frames, texts = torch.from_numpy(file["frames"]), torch.from_numpy(file["texts"])
    method = made(CaptionTable(texts, torch.arange(len(texts) + 1)), threshold=threshold, **RELEASED)
    losses = []
    for task, rows in enumerate((range(12), range(12, 24))):
        method.begin_task(make_task(task))
        for _ in range(3):
            losses.append(step(method, batch(frames, rows, task), lr=0.5))
        method.end_task(make_task(task), [batch(frames, rows, task)])
        weights = torch.stack([method.heads[side].weight for side in ("text", "video")])
        compared("dns", "steps", weights, file[f"weights/{threshold:g}"][task], 1e-5)
    biases = torch.stack([method.heads[side].bias for side in ("text", "video")])
    compared("dns", "steps", biases, file[f"biases/{threshold:g}"], 1e-5)
    compared("dns", "loss", torch.tensor(losses), file[f"losses/{threshold:g}"], 1e-5)
