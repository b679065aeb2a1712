"""Results of divyam3897/UCL@cfaa81d for BMU-MoCo's Table 4: losses, training steps, memories, neighbors."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method
from ctvr.methods.images.knn import accuracy, forgetting, mean_accuracy, released_k, votes
from ctvr.methods.images.replay import ImageBuffer, ImageDER, ImageLUMP, ImageReplayConfig
from ctvr.methods.images.resnet import ResNet18
from ctvr.methods.images.si import ImageSI, ImageSIConfig
from ctvr.methods.images.siamese import FIRST, Siamese, SiameseConfig, barlow_twins, simsiam
from tests.methods.conftest import make_task
from tests.methods.released import FIXTURES, Compared, Weights, draw, read
from tests.refusing import refuses

LR, SEED = 3 * 6 / 256, 7


class SmallBackbone(nn.Module):
    """The network of the reference runs."""

    width = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu().mean(dim=(2, 3))


@pytest.fixture(scope="module")
def released() -> Weights:
    return read(FIXTURES / "ucl_released.npz")


def part(released: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in released.items() if name.startswith(prefix)}


def small(released: Weights, **settings: object) -> Siamese:
    model = Siamese(SiameseConfig(width=12, bottleneck=6, lr=LR, **settings), SmallBackbone())  # type: ignore[arg-type]
    model.load_state_dict(part(released, "data/state/"))
    return model.train()


def again(plain: Tensor) -> Tensor:
    return (plain - 0.45) / 0.25


def made(name: str, base: Siamese) -> Method:
    replay = ImageReplayConfig(buffer_size=8, rows=6)
    strategies: dict[str, Callable[[], Method]] = {
        "finetune": lambda: base,
        "lump": lambda: ImageLUMP(replay, base, again, SEED),
        "der": lambda: ImageDER(replay, base, again, SEED),
        "si": lambda: ImageSI(ImageSIConfig(rate=3.0), base),
    }
    return strategies[name]()


def batch_of(released: Weights, step: int) -> Batch:
    frames = torch.stack([released[f"data/step{step}/{name}"] for name in ("view1", "view2", "plain")], dim=1)
    none = torch.zeros(len(frames), 0, dtype=torch.int64)
    return Batch(frames, none, torch.arange(len(frames)), torch.zeros(len(frames), dtype=torch.int64))


def equal(found: Tensor, expected: Tensor | float, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found.detach(), torch.as_tensor(expected).to(found.dtype), rtol=0, atol=atol)


def test_both_losses_and_their_gradients_are_the_released_ones(released, compared):
    def held(what: str, ours: Tensor | None, theirs: Tensor) -> None:
        compared("image_finetune", what, ours, theirs, 1e-4 if what == "gradients" else 1e-5)

    given = part(released, "losses/")
    p, z = given["D/p"].clone().requires_grad_(), given["D/z"].clone().requires_grad_()
    away = simsiam(p, p, z, z)
    away.backward()
    held("loss", away, given["D/original"])
    held("gradients", p.grad, given["D/grad_p_original"])
    assert z.grad is None
    za, zb = (given[f"barlow/a/{name}"].clone().requires_grad_() for name in ("za", "zb"))
    twins = barlow_twins(za, zb)
    twins.backward()
    held("loss", twins, given["barlow/a/loss"])
    held("gradients", za.grad, given["barlow/a/grad_za"])
    held("gradients", zb.grad, given["barlow/a/grad_zb"])
    for mode in ("train", "eval"):
        model = small(released).train(mode == "train")
        loss = model.alike(given["x1"], given["x2"])
        held("loss", loss, given[f"simsiam2/{mode}/loss"])
        if mode == "eval":
            held("forward", model.project(given["x1"]), given["simsiam2/eval/z1"])
            continue
        loss.backward()
        for name, parameter in model.named_parameters():
            held("gradients", parameter.grad, given[f"simsiam2/grad/{name}"])
        for name, value in part(given, "simsiam2/after/").items():
            held("forward", model.state_dict()[name], value)
    assert SiameseConfig(loss="barlow").off_diagonal == 0.005
    assert small(released, loss="barlow").alike(given["x1"], given["x1"]).isfinite()


def test_steps_from_the_reference_weights_are_the_released_ones(released, compared):
    for name in ("finetune", "lump", "der", "si"):
        steps(released, name, compared)


def steps(released: Weights, name: str, compared: Compared) -> None:
    """Run all steps of a strategy over two tasks, and compare weights and further state."""

    def held(what: str, ours: Tensor | None, theirs: Tensor, atol: float = 1e-5) -> None:
        compared(f"image_{name}", what, ours, theirs, atol)

    base = small(released)
    method, expected = made(name, base), part(released, f"{name}/")
    optimizer = torch.optim.SGD(method.param_groups(), momentum=0.9, weight_decay=5e-4)
    method.begin_task(make_task(0))
    for step, loss_told in enumerate(expected["told_loss"]):
        if step == 3:
            method.end_task(make_task(0), [])
            held("steps", method.importance, expected["omega_task0"], 1e-4)
            held("steps", method.anchor, expected["checkpoint_task0"])
            method.begin_task(make_task(1))
        terms = method.losses(batch_of(released, step))
        held("loss", terms["views"], loss_told)
        if name == "der":
            held("loss", terms.get("distillation", torch.tensor(0.0)), expected["told_penalty"][step])
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        if name == "si":
            method.before_step()
        for key, parameter in base.named_parameters():
            if f"step{step}/grad/{key}" in expected:
                held("gradients", parameter.grad, expected[f"step{step}/grad/{key}"], 1e-4)
        optimizer.step()
        method.after_step()
        for key, value in part(expected, f"step{step}/after/").items():
            held("steps", base.state_dict()[key], value)
        if f"step{step}/small_omega" in expected:
            held("steps", method.path, expected[f"step{step}/small_omega"], 1e-4)
        if f"step{step}/buffer_logits" in expected:
            kept = method.memory.kept
            held("steps", method.memory.images[:, 0, 0], expected[f"step{step}/buffer_examples00"][: len(kept)])
            held("steps", kept if name == "der" else kept[:, 0, 0], expected[f"step{step}/buffer_logits"][: len(kept)])


def test_a_memory_keeps_draws_and_resumes_as_released(released):
    for seed, offered, room in ((0, 200, 20), (1, 60, 7)):
        memory, places = ImageBuffer(room, seed), released[f"buffers/reservoir/seed{seed}_N{offered}_M{room}/index"]
        numbers = torch.arange(offered)
        memory.write(numbers[:9], numbers[:9])
        other = ImageBuffer(room, 5)
        other.images, other.kept = torch.empty_like(memory.images), torch.empty_like(memory.kept)
        other.load_state_dict(memory.state_dict())
        expected = torch.full((room,), -1)
        for number, place in enumerate(places.tolist()):
            if place >= 0:
                expected[place] = number
        for each in (memory, other):
            each.write(numbers[9:], numbers[9:])
            assert torch.equal(each.images, expected)
    lambdas = np.random.RandomState(12).beta(0.4, 0.4, 50)
    equal(torch.from_numpy(lambdas), released["buffers/lump/beta04_seed12_first"], 1e-12)
    with refuses(">=", "1", "0", "256", kind=ValueError, settings=("buffer_size",)):
        ImageBuffer(0)


def test_a_mixture_without_a_partner_for_every_image_is_refused(released):
    method = ImageLUMP(ImageReplayConfig(buffer_size=4, rows=6), small(released), again)
    batch = batch_of(released, 0)
    assert method.mixed(batch)[0] is not None  # the first step has no past
    method.losses(batch)
    method.after_step()
    with refuses("4", "6", kind=ValueError, settings=("buffer_size",)):
        method.losses(batch)


def test_si_holds_weights_that_moved_and_no_others(released):
    """The pull is 2 c Omega times the distance from the anchor."""
    method = ImageSI(ImageSIConfig(strength=0.4), small(released))
    method.begin_task(make_task(1))
    method.importance.fill_(2.0)
    assert method.losses(batch_of(released, 0))["held"].item() == 0
    with torch.no_grad():
        method.base.backbone.bn1.bias += 0.5
    held = method.losses(batch_of(released, 0))["held"]
    equal(held, 0.4 * 2.0 * 6 * 0.25)
    (pull,) = torch.autograd.grad(held, [method.base.backbone.bn1.bias])
    equal(pull, torch.full((6,), 0.4 * 2 * 2.0 * 0.5))


def test_si_adds_what_each_task_needed(released):
    """One number of a gradient counts at most `clip`, whatever the others are; tasks add up."""
    method = ImageSI(ImageSIConfig(rate=0.5, clip=1.0), small(released))
    for index in range(2):
        method.begin_task(make_task(index))
        for parameter in method.base.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        method.before_step()
        assert all(parameter.grad.eq(1).all() for parameter in method.base.parameters())
        method.end_task(make_task(index), [])
        equal(method.importance, torch.full_like(method.importance, 0.5 * (index + 1)))
        assert not method.path.any()


def test_resnet_18_for_small_images_is_the_released_one(released, compared):
    backbone = ResNet18()
    assert sum(parameter.numel() for parameter in backbone.parameters()) == 11_168_832
    model = Siamese(SiameseConfig(), backbone)
    model.load_state_dict({name: by_recipe(name, value) for name, value in model.state_dict().items()})
    first, second = (torch.from_numpy(images(seed)) for seed in (52, 53))
    expected = part(released, "resnet18/resnet32/")
    with torch.no_grad():
        compared("image_finetune", "forward", model.eval().encode_video(first[:, None]), expected["features_eval"])
        compared("image_finetune", "loss", model.train().alike(first, second), expected["simsiam_loss"])


def images(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((4, 3, 32, 32)).astype(np.float32)


def by_recipe(name: str, value: Tensor) -> Tensor:
    """Return a tensor of the reference model; see the README of the fixtures."""
    if name.endswith("num_batches_tracked"):
        return value
    z = draw(name, tuple(value.shape))
    if name.endswith("running_mean"):
        found = 0.1 * z
    elif name.endswith("running_var"):
        found = 1 + 0.2 * np.abs(z)
    elif value.ndim == 1:
        found = 0.1 * z if name.endswith("bias") else 1 + 0.2 * z
    else:
        found = 1.4 * z / np.sqrt(np.prod(value.shape[1:]))
    return torch.from_numpy(np.asarray(found, dtype=np.float32))


@pytest.mark.parametrize("case", ["task0", "two_classes"])
def test_knn_vote_equals_the_release(released, case):
    given = part(released, f"knn/{case}/")
    first = int(given["bank_targets"].min())
    labels, targets = given["bank_targets"] - first, given["test_targets"] - first
    classes = int(labels.max()) + 1
    for place, k in enumerate(given["k"].tolist()):
        found = votes(given["test"], given["bank"], labels, k, classes)
        if f"scores_k{k}" in given:
            torch.testing.assert_close(found, given[f"scores_k{k}"], rtol=1e-5, atol=1e-4)
            assert torch.equal(found.argmax(dim=1), given[f"prediction_k{k}"] - first)
        assert accuracy(found, targets) == pytest.approx(float(given["accuracy"][place]))
        wider = votes(given["test"], given["bank"], labels + 2, k, classes + 4)
        assert accuracy(wider, targets + 2) == pytest.approx(float(given["accuracy_masked"][place]))
    with refuses(kind=ValueError, settings=("k",)):
        votes(given["test"], given["bank"], labels, len(labels) + 1, classes)


def test_k_accuracy_and_forgetting_over_tasks_are_the_released_ones(released):
    expected = part(released, "protocol/")
    assert [released_k(tasks) for tasks in expected["tasks"].tolist()] == expected["k"].tolist()
    assert [released_k(tasks, 3) for tasks in expected["tasks"].tolist()] == expected["k_of_3"].tolist()
    rows = [row[: number + 1] for number, row in enumerate(expected["table"].tolist())]
    for number in range(len(rows)):
        assert mean_accuracy(rows[: number + 1]) == pytest.approx(float(expected["accuracy"][number]))
        if number:
            assert forgetting(rows[: number + 1]) == pytest.approx(float(expected["forgetting"][number]))
    assert math.isnan(forgetting(rows[:1]))


def test_votes_do_not_depend_on_the_order_of_the_bank_or_on_lengths():
    generator = torch.Generator().manual_seed(3)
    bank, test = torch.randn(20, 6, generator=generator), torch.randn(5, 6, generator=generator)
    labels = torch.arange(20) % 3
    order = torch.randperm(20, generator=generator)
    found = votes(test, bank, labels, 4, 3)
    torch.testing.assert_close(votes(7 * test, bank[order] / 3, labels[order], 4, 3), found, rtol=1e-4, atol=0)
    assert votes(bank, bank, labels, 1, 3).argmax(dim=1).tolist() == labels.tolist()  # each is its own neighbor


def test_views_are_normalised_each_by_its_own_batch(released):
    batch = batch_of(released, 0)
    model, joint = small(released), small(released)
    model.losses(batch)
    joint.project(torch.cat([batch.frames[:, FIRST], batch.frames[:, FIRST]]))
    assert int(model.backbone.bn1.num_batches_tracked) == int(joint.backbone.bn1.num_batches_tracked) + 1
