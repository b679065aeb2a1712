"""CTP: its terms equal those of its authors' code, and preserve the topology of a batch but not an index."""

import numpy as np
import pytest
import torch

from ctvr.methods.ctp import CTP, cross_topology, follow, momentum_contrast, same_topology
from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.replay.queues import KeyQueue, Pair
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import begin, moved, step, train_stream, weights

MODELS = ("student", "reference", "momentum")


@pytest.fixture
def make(base):
    return maker(CTP, base, queue_size=10)


# ------------------------------------------------------------------------------- the released code


@pytest.fixture(scope="module")
def file(shared):
    return {key: torch.from_numpy(value) for key, value in np.load(shared / "reference/ctp/ctp_basic.npz").items()}


def features(file, model: str) -> Pair:
    return Pair(*(file[f"ctp/features/{model}/{kind}"].float() for kind in ("image", "text")))


def queued(file) -> Pair:
    return Pair(file["state/image_queue"].float().mT, file["state/text_queue"].float().mT)


def test_terms_equal_the_released_code(shared, file, compared):
    new, old, keys = (features(file, model) for model in MODELS)
    compared("ctp", "loss", contrastive(new.text @ new.video.mT / 0.07), file["ctp/loss_ita"])
    terms = (
        momentum_contrast(new, keys, queued(file), 0.07),
        cross_topology(new, old, 0.07),
        same_topology(new, old, 0.07),
    )
    assert [round(float(term), 5) for term in terms] == [14.74595, 0.06983, 0.04758]
    compared("ctp", "loss", sum(terms), file["ctp/loss_ita_dis"], 2e-5)  # of 14.9, in float32


def test_the_queue_and_the_momentum_model_equal_the_released_ones(shared, file, compared):
    queue = KeyQueue(1024, 16)
    queue.reset(random=True)
    queue.enqueue(features(file, "momentum"), torch.arange(8))
    assert int(queue.pointer) == int(file["ctp/queue_ptr"])
    compared("ctp", "forward", queue.video[:8].mT, file["ctp/queue_image_after"][:, :8])
    compared("ctp", "forward", queue.text[:8].mT, file["ctp/queue_text_after"][:, :8])
    names = [f"{tower}_proj.{part}" for tower in ("vision", "text") for part in ("weight", "bias")]
    student, former = ([file[f"{state}/{name}"].float() for name in names] for state in ("state_student", "state"))
    momentum = [x.clone() for x in former]  # a step of a new task
    follow(momentum, student, former, 0.9)
    for name, found in zip(names, momentum, strict=True):
        compared("ctp", "state", found, file[f"ctp/momentum_after/{name}"])


# -------------------------------------------------------------------------------------- the terms


def pair(seed: int, count: int = 5, size: int = 6) -> Pair:
    torch.manual_seed(seed)
    return Pair(*torch.nn.functional.normalize(torch.randn(2, count, size), dim=-1))


def rotated(x: Pair, turn: torch.Tensor) -> Pair:
    return Pair(x.video @ turn, x.text @ turn)


def test_at_the_old_model_the_topology_is_zero_and_has_no_gradient():
    old = pair(0)
    new = Pair(*(x.clone().requires_grad_() for x in old))
    for term in (cross_topology(new, old, 0.07), same_topology(new, old, 0.07)):
        (gradient,) = torch.autograd.grad(term, [new.video])
        assert abs(float(term.detach())) < 1e-6
        assert float(gradient.abs().max()) < 1e-5
    assert float(cross_topology(pair(1), old, 0.07)) > 0.01
    assert float(same_topology(pair(1), old, 0.07)) > 0.01


def test_an_items_similarity_to_itself_does_not_count():
    new, old = pair(0), pair(1)
    by_hand = []
    for x, z in zip(new, old, strict=True):
        keep = ~torch.eye(5, dtype=torch.bool)
        a, b = ((y @ y.mT / 0.07)[keep].view(5, 4).log_softmax(dim=1) for y in (x, z))
        by_hand.append((b.exp() * (b - a)).sum(dim=1).mean())
    torch.testing.assert_close(same_topology(new, old, 0.07), (by_hand[0] + by_hand[1]) / 2, rtol=1e-4, atol=1e-6)


def test_turning_both_towers_keeps_the_topology_and_changes_the_contrast():
    """The terms do not preserve an index."""
    new, old, keys, former = (pair(seed) for seed in range(4))
    torch.manual_seed(9)
    turn = torch.linalg.qr(torch.randn(6, 6))[0]
    for term in (cross_topology, same_topology):
        torch.testing.assert_close(term(rotated(new, turn), old, 0.07), term(new, old, 0.07), rtol=1e-4, atol=1e-5)
    plain, turned = (momentum_contrast(x, keys, former, 0.07) for x in (new, rotated(new, turn)))
    assert abs(float(plain - turned)) > 0.1


# --------------------------------------------------------------------------------------- the model


def test_the_first_task_has_no_topology_and_later_ones_have(make):
    method = make()
    method.begin_task(make_task(0))
    assert set(method.losses(make_batch())) == {"contrastive", "momentum"}
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    assert set(method.losses(make_batch())) == {"contrastive", "momentum", "cross", "same"}
    assert torch.equal(weights(method.former.module), weights(method.base))
    assert torch.equal(weights(method.momentum.module), weights(method.base))


@pytest.mark.parametrize("index", [0, 1])
def test_the_momentum_model_follows_by_its_share(make, index):
    method = make(m=0.8, m_first=0.6)
    for task in range(index + 1):
        begin(method, task)
    before, old = weights(method.momentum.module), weights(method.momentum.module)
    moved(method)
    method.after_step()
    now = weights(method.base)
    expected = 0.6 * before + 0.4 * now if index == 0 else 0.8 * before + 0.1 * now + 0.1 * old
    torch.testing.assert_close(weights(method.momentum.module), expected)
    if index:
        assert torch.equal(weights(method.former.module), old)


def test_queues_hold_unit_keys_of_steps_alone_and_stay_for_the_next_task(make):
    method = begin(make())
    torch.testing.assert_close(method.queue.video.norm(dim=1), torch.ones(10))
    parameters = [p for group in method.param_groups() for p in group["params"]]
    start = method.queue.video.clone()
    with torch.no_grad():
        method.losses(make_batch(4, 2))
    method.after_step()
    assert torch.equal(method.queue.video, start)
    for seed in range(3):
        step(method.train(), parameters, make_batch(4, 2, seed=seed))
    assert not (method.queue.videos == -1).any()  # 12 keys in 10 places
    torch.testing.assert_close(method.queue.text.norm(dim=1), torch.ones(10))
    kept = method.queue.video.clone()
    method.begin_task(make_task(1))
    assert torch.equal(method.queue.video, kept)
