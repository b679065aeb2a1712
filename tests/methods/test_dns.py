from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.backbone.vectors import CaptionTable
from ctvr.methods.base import l2_normalize
from ctvr.methods.dns import DNS, DNSConfig, project_on
from tests.methods.conftest import make_task
from tests.methods.vector_equations import captions_of, info_nce, same, unit, values, videos_of
from tests.methods.vectors import TEXT, batch, drawn, towers

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


def projection(moment, threshold):
    eigenvalues, u = torch.linalg.eigh(moment)
    return u[:, eigenvalues > threshold] @ u[:, eigenvalues > threshold].mT


def test_two_tasks_equal_the_equations_in_float64_on_two_widths():
    threshold, tau, lr = 0.02, 0.2, 0.3
    frames, table = drawn(several=3)
    method = made(table, threshold=threshold, temperature=tau)
    w = values(method, "heads.")
    assert [w[f"{side}.weight"].shape for side in ("text", "video")] == [(12, TEXT), (12, 12)]
    seen, moments = 0, {"text": (0.0, 0.0), "video": (0.0, 0.0)}  # C' and C
    for task, rows in enumerate((range(14), range(20, 32))):
        method.begin_task(make_task(task))
        x = {"text": unit(captions_of(rows).mean(dim=1)), "video": unit(videos_of(rows).mean(dim=1))}
        for _ in range(2):
            found = step(method, batch(frames, rows, task), lr)
            leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
            z = {side: unit(x[side] @ leaves[f"{side}.weight"].mT + leaves[f"{side}.bias"]) for side in x}
            loss = info_nce(z["text"] @ z["video"].mT / tau)
            same(found, loss.detach())
            for name, gradient in zip(w, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                if task and name.endswith("weight"):
                    of_others, of_inputs = moments[name.removesuffix(".weight")]
                    used = projection(of_inputs, threshold)
                    assert 0 < used.trace().round() < len(used)
                    gradient = gradient - projection(of_others, 0.0) @ gradient @ used
                w[name] = w[name] - lr * gradient
            for name, value in values(method, "heads.").items():
                same(value, w[name])
        method.end_task(make_task(task), [batch(frames, rows, task)])
        for side, other in (("text", "video"), ("video", "text")):
            out = x[other] @ w[f"{other}.weight"].mT
            new = out.mT @ out, x[side].mT @ x[side]
            moments[side] = [(seen * a + b) / (seen + len(rows)) for a, b in zip(moments[side], new, strict=True)]
            same(method.get_buffer(f"others_{side}"), moments[side][0])
            same(method.get_buffer(f"inputs_{side}"), moments[side][1])
        seen += len(rows)
