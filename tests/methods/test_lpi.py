"""LPI: it equals its authors' code, and keeps its guarantees about stored videos."""

import copy

import numpy as np
import pytest
import torch

from ctvr.methods.lpi import LPI, LPIConfig
from ctvr.methods.lpi.prompts import LowRankPrompts, alignment, k_means, nearest_task, relatedness
from ctvr.orchestrator.learning.evaluation.cost import sizes_only
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.released import pairs, shape_of, tiny_clip
from tests.methods.steps import train_stream, train_task

SHAPE = shape_of((64, 3, 1), (64, 3, 1), embed=32, image=32, patch=8, context=77, vocab=512)
NAMES = {  # theirs -> ours
    "dim_1_share": "shared",
    "dim_2_visual": "vision_places",
    "dim_2_textual": "text_places",
    "dim_3_visual": "vision_widths",
    "dim_3_textual": "text_widths",
}


# ------------------------------------------------------------------------------- the released code


@pytest.fixture(scope="module")
def file(shared):
    return {key: torch.from_numpy(value) for key, value in np.load(shared / "reference/lpi/lpi_basic.npz").items()}


@pytest.fixture
def released(shared, file) -> LPI:
    """Return the released form with the reference's weights and four tasks."""
    found = np.load(shared / "reference" / "lpi" / "lpi_state.npz")
    clip = tiny_clip(SHAPE, {key.removeprefix("state/"): torch.from_numpy(found[key]).float() for key in found})
    word, stop = int(file["tokens_prefixed"][0, 1]), int(file["tokens_prefixed"][1, 7])
    clip.tokenize = lambda texts: torch.tensor([[510, word, 511], [510, stop, 511]])
    method = LPI(LPIConfig(num_prompts=4, depth=1, route="query", task_weight=0.1, double_sigmoid=True), clip)
    for task in range(4):
        method.begin_task(make_task(task, 4))
        load(method.prompts[task], {ours: file[f"prompts/{task}.{theirs}"] for theirs, ours in NAMES.items()})
    return method.eval()


def load(prompts: LowRankPrompts, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            getattr(prompts, name).copy_(value)


def until(method: LPI, task: int) -> LPI:
    """Return the method while `task` is trained."""
    method.prompts = method.prompts[: task + 1]
    return method.train()


def unit(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def test_prompts_and_features_equal_the_released_code(shared, released, file, compared):
    frames, tokens = file["images"][:, None], file["tokens_plain"]
    with torch.no_grad():
        compared("lpi", "forward", released._frozen_videos(frames), unit(file["plain/visual"]))
        compared("lpi", "forward", released._frozen_texts(tokens), unit(file["plain/textual"]))
        for task, prompts in enumerate(released.prompts):
            compared("lpi", "forward", prompts.vision(), file[f"prompt_full/{task}/visual"])
            compared("lpi", "forward", prompts.text(), file[f"prompt_full/{task}/textual"])
        for task in range(4):
            now = until(copy.deepcopy(released), task)
            compared("lpi", "forward", now.encode_video(frames), unit(file[f"task{task}/visual"]))
            compared("lpi", "forward", now.encode_text(tokens), unit(file[f"task{task}/textual"]))


def test_items_of_several_tasks_are_encoded_in_one_batch_as_released(shared, released, file, compared):
    """Centers are placed so that each item gets its released selection."""
    frames, tokens = file["images"][:, None], file["tokens_plain"]
    for kind, features in enumerate((released._frozen_videos(frames), released._frozen_texts(tokens))):
        for item, task in enumerate(file["mixed/selection"].tolist()):
            released.keys[kind, task, item] = features[item]
    with torch.no_grad():
        compared("lpi", "forward", released.encode_video(frames), unit(file["mixed/visual"]))
        compared("lpi", "forward", released.encode_text(tokens), unit(file["mixed/textual"]))


def test_losses_and_gradients_equal_the_released_code(shared, released, file, compared):
    batch = pairs(file["images"][:, None], file["tokens_plain"])
    for task in range(3):
        now = until(copy.deepcopy(released), task)
        similar = torch.eye(task + 1, dtype=torch.bool)
        now._similar = lambda present, similar=similar: similar
        terms = now.losses(batch)
        theirs = file[f"loss/task{task}/base_loss"]  # 8, in float32
        compared("lpi", "loss", terms["contrastive"] / theirs, 1.0)
        compared("lpi", "loss", terms["alignment"], file[f"loss/task{task}/alignment_loss"])
        if task:
            compared("lpi", "loss", terms["tasks"], file[f"loss/task{task}/task_loss"])
            continue
        for term, theirs in (("contrastive", "base_loss"), ("alignment", "alignment_loss")):
            now.zero_grad()
            terms[term].backward(retain_graph=True)
            for name, ours in NAMES.items():
                expected = file[f"grad/task0/{theirs}/prompts.0.{name}"]
                found = getattr(now.prompts[0], ours).grad
                size = float(expected.abs().max())
                compared("lpi", "gradients", found / size, expected / size)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.001])
def test_the_loss_over_tasks_equals_the_released_function(shared, file, compared, temperature):
    x = file["nt_bxent/x"].clone().requires_grad_()
    loss = relatedness(x, file["nt_bxent/target"].bool(), temperature, twice=True)
    loss.backward()
    compared("lpi", "loss", loss, file[f"nt_bxent/T{temperature}/loss"])
    compared("lpi", "gradients", x.grad, file[f"nt_bxent/T{temperature}/grad"])


# -------------------------------------------------------------------------------------- invariants


@pytest.fixture
def make(small_clip):
    return maker(LPI, small_clip)


def features(method: LPI, task: int) -> torch.Tensor:
    batch = make_batch(5, 2, seed=task)
    with torch.no_grad():
        return torch.stack([method.encode_video_for_task(batch.frames, task), method.encode_text(batch.tokens, task)])


def test_a_task_trains_5284_numbers_at_vit_b():
    with torch.device("meta"):
        method = LPI(LPIConfig(), sizes_only())
        method.begin_task(make_task(0))
        assert sum(p.numel() for p in method.prompts.parameters()) == 9 * 4 + 2 * 16 * 4 + 768 * 4 + 512 * 4 == 5284


def test_features_of_a_learned_task_never_change(make):
    method, stored = make(), []
    for index in range(3):
        train_task(method, make_task(index), [make_batch(4, 2, seed=10 * index + step) for step in range(2)])
        stored.append(features(method, index))
        assert all(torch.equal(features(method, task), former) for task, former in enumerate(stored))


@pytest.mark.parametrize("depth", [1, 3, 9])
def test_layers_act_up_to_the_depth_and_to_that_of_the_tower(make, depth):
    method = make(depth=depth)
    method.begin_task(make_task(0))
    terms = method.train().losses(make_batch(4, 2))
    terms["contrastive"].backward(retain_graph=True)
    moved = method.prompts[0].shared.grad.abs().amax(dim=1) > 0
    assert moved.tolist() == [layer < min(depth, 4) for layer in range(9)]  # 4 blocks
    method.zero_grad()
    terms["alignment"].backward()
    assert bool((method.prompts[0].shared.grad.abs().amax(dim=1) > 0).all())


def test_the_shared_factor_learns_from_both_towers(make):
    method = make()
    method.begin_task(make_task(0))
    batch = make_batch(4, 2)
    target = torch.randn(4, 16)
    parts = []
    for features in (method.encode_video(batch.frames), method.encode_text(batch.tokens)):
        method.zero_grad()
        (features * target).sum().backward()
        parts.append(method.prompts[0].shared.grad.clone())
    assert all(float(part.abs().max()) > 0 for part in parts)
    assert not torch.equal(*parts)


def test_losses_over_prompts_have_no_gradient_for_former_tasks(make):
    method = make(task_weight=1.0, task_temperature=1.0)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    method.requires_grad_(True).zero_grad()
    terms = method.train().losses(make_batch(4, 2))
    (terms["alignment"] + terms["tasks"]).backward()
    assert all(p.grad is None for p in method.prompts[0].parameters())
    assert all(p.grad is not None for p in method.prompts[1].parameters())


def test_one_task_is_routed_to_itself_and_each_of_two_to_its_centres(make):
    method = make(route="query", centres=2)
    train_stream(method, tasks=1)
    batch = make_batch(6, 2, seed=3)
    assert not nearest_task(method._frozen_videos(batch.frames), method.keys[0, :1]).any()
    trained = [make_batch(4, 2, seed=30 + task) for task in range(2)]
    method = make(route="query", centres=4)
    for index in range(2):
        train_task(method, make_task(index), [trained[index]])
    for index in range(2):
        for kind, found in enumerate(
            (method._frozen_videos(trained[index].frames), method._frozen_texts(trained[index].tokens))
        ):
            assert nearest_task(found, method.keys[kind, :2]).tolist() == [index] * 4


def test_a_routed_item_is_encoded_by_the_prompts_of_its_task(make):
    method = make(route="query", centres=4)
    batch = make_batch(4, 2, seed=30)
    train_task(method, make_task(0), [batch])
    before = features(method, 0)
    train_task(method, make_task(1), [make_batch(4, 2, seed=31)])
    with torch.no_grad():
        expected = method._encode_frames(batch.frames, 0)
        torch.testing.assert_close(method.encode_video(batch.frames), expected, rtol=0, atol=1e-5)
    assert before.shape == features(method, 0).shape


def test_centres_are_the_means_of_separate_clouds():
    torch.manual_seed(0)
    places = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    clouds = places[:, None] + 0.1 * torch.randn(3, 20, 2)
    found = k_means(clouds.flatten(0, 1), 3)
    expected = clouds.mean(dim=1)
    assert torch.cdist(expected, found).amin(dim=1).max() < 1e-5
    assert torch.equal(k_means(clouds.flatten(0, 1), 3), found)
    assert k_means(torch.ones(2, 3), 5).shape == (5, 3)


def test_distances_to_centres_are_l1():
    keys = torch.tensor([[[1.5, 1.5]], [[2.2, 0.0]]])  # L2 would choose the first
    assert nearest_task(torch.zeros(1, 2), keys).tolist() == [1]


def test_alignment_is_least_where_layers_agree_and_finite_for_one_row():
    a = torch.eye(4)[:, :, None].expand(-1, -1, 3)
    assert alignment(a, a, 0.1) < 1e-4 < alignment(a, a.roll(1, 0), 0.1)
    rows = torch.randn(2, 5)
    assert torch.isfinite(relatedness(rows, torch.ones(2, 2, dtype=torch.bool), 0.1))
    assert torch.isfinite(relatedness(rows, torch.eye(2, dtype=torch.bool), 0.1))


def test_a_long_caption_loses_words_and_keeps_its_end(make):
    method = make()
    method.begin_task(make_task(0))
    long = torch.full((1, 16), 7)
    long[0, 0], long[0, -1] = 98, 99
    short = torch.tensor([[98, 7, 99, 0, 0]])
    written = method._rewrite(long)[0].tolist()
    assert (len(written), written[0], written[-1]) == (16, 98, 99)
    word, stop = method._marks
    assert method._rewrite(short)[0].tolist() == [98, *[word] * 4, 7, stop, 99, 0, 0]
