"""DAR: the worked example of its routing, and its guarantees about stored videos."""

import copy
import json

import numpy as np
import pytest
import torch

from ctvr.methods.base import Batch, l2_normalize
from ctvr.methods.dar import DAR, DARConfig, mixture
from ctvr.methods.layers.tower_lora import weighted_seams
from ctvr.orchestrator.learning.evaluation.cost import sizes_only
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_task


@pytest.fixture
def make(small_clip):
    return maker(DAR, small_clip, rank=4, alpha=8.0)


def pairs_of(task: int) -> Batch:
    return make_batch(4, 2, seed=30 + task)


def taught(method: DAR, tasks: int, like: int | None = None) -> DAR:
    """Return the method after some tasks; with `like`, all of them have the pairs of that task."""
    for index in range(tasks):
        train_task(method, make_task(index), [pairs_of(index if like is None else like)] * 2)
    return method.eval()


def features(method: DAR, task: int) -> torch.Tensor:
    batch = pairs_of(task)
    with torch.no_grad():
        return torch.stack([method.encode_video_for_task(batch.frames, task), method.encode_text(batch.tokens, task)])


# ------------------------------------------------------------------------------- numbers of the sheet


def test_scores_and_weights_are_those_of_the_worked_example(shared):
    file = {key: torch.from_numpy(value).float() for key, value in np.load(shared / "reference/dar/toy.npz").items()}
    facts = json.loads((shared / "reference/dar/toy.json").read_text())
    images, texts = file["image"] @ file["image_prototypes"].mT, file["text"] @ file["text_prototypes"].mT
    torch.testing.assert_close(images, file["S_image"], rtol=0, atol=1e-5)
    torch.testing.assert_close(texts, file["S_text"], rtol=0, atol=1e-5)
    both = (images + texts) / 2  # as the paper routes: never for a search
    torch.testing.assert_close(both, file["S"], rtol=0, atol=1e-5)
    torch.testing.assert_close(mixture(both, 0.05, 0.07), file["weights_pair"], rtol=0, atol=1e-5)
    torch.testing.assert_close(mixture(texts, 0.05, 0.07), torch.tensor(facts["weights text"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(mixture(texts, 0.05, 0.07).sum(dim=1), torch.ones(3))


def test_a_task_has_1_474_560_numbers_at_vit_b():
    with torch.device("meta"):
        method = DAR(DARConfig(), sizes_only())
        method.begin_task(make_task(0))
    counts = {name: sum(p.numel() for p in tower.parameters()) for name, tower in method.sets[0].items()}
    assert counts == {"vision": 884_736, "text": 589_824}


# ----------------------------------------------------------------------------------------- routing


def test_no_margin_mixes_nothing_and_a_margin_of_2_everything():
    scores = torch.tensor([[0.9, 0.9, 0.1], [0.5, 0.2, 0.4]])
    assert mixture(scores, 0.0, 0.07).amax(dim=1).tolist() == [1.0, 1.0]
    assert ((mixture(scores, 2.0, 0.07) > 0).sum(dim=1) == 2).all()
    torch.testing.assert_close(mixture(scores, 2.0, 0.07)[0], torch.tensor([0.5, 0.5, 0.0]))


def test_one_task_and_tasks_without_prototypes_are_not_routed():
    assert mixture(torch.tensor([[0.3], [0.2]]), 2.0, 0.07).tolist() == [[1.0], [1.0]]
    scores = torch.tensor([[-0.2, -torch.inf, -torch.inf]])
    assert mixture(scores, 0.05, 0.07).tolist() == [[1.0, 0.0, 0.0]]


def test_a_mixture_of_sets_is_the_weighted_sum_of_their_matrices(make):
    method = taught(make(), 2)
    batch, tower = make_batch(3, 2, seed=9), method.backbone.text
    weights = torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    sets = [method._set(task, "text") for task in range(2)]
    with torch.no_grad():
        mixed = tower(batch.tokens, weighted_seams([(each, weights[:, i]) for i, each in enumerate(sets)]))
        for row, (first, second) in enumerate(weights.tolist()):
            merged = copy.deepcopy(tower)
            sets[0].merge_into(merged, first)
            sets[1].merge_into(merged, second)
            torch.testing.assert_close(mixed[row], merged(batch.tokens[row : row + 1])[0], rtol=0, atol=1e-4)


def test_the_route_of_an_item_depends_on_it_alone(make):
    """The route depends neither on the batch nor on the other modality."""
    method = taught(make(route="query", margin=2.0), 3)
    batch = make_batch(6, 2, seed=3)
    with torch.no_grad():
        texts, videos = method.encode_text(batch.tokens), method.encode_video(batch.frames)
        for row in range(6):
            one = (
                method.encode_text(batch.tokens[row : row + 1])[0],
                method.encode_video(batch.frames[row : row + 1])[0],
            )
            torch.testing.assert_close(one, (texts[row], videos[row]), rtol=0, atol=1e-5)
        method.prototypes[0] = method.prototypes[0].roll(1, 0)  # of videos
        assert torch.equal(method.encode_text(batch.tokens), texts)
        assert not torch.allclose(method.encode_video(batch.frames), videos, atol=1e-4)


def test_without_mixing_the_nearest_prototype_chooses_the_features(make):
    method = taught(make(route="query", margin=0.0), 3)
    batch = make_batch(6, 2, seed=3)
    with torch.no_grad():
        routes = (method._frozen_videos(batch.frames) @ method.prototypes[0].mT[:, :3]).argmax(dim=1)
        for row, task in enumerate(routes.tolist()):
            expected = method._video(batch.frames[row : row + 1], task)
            torch.testing.assert_close(method.encode_video(batch.frames)[row], expected[0], rtol=0, atol=1e-5)


# -------------------------------------------------------------------------------------- lifecycle


def test_fresh_sets_give_clips_features(make):
    method, batch = make(), make_batch(4, 2)
    method.begin_task(make_task(0))
    with torch.no_grad():
        torch.testing.assert_close(method.eval().encode_video(batch.frames), method._frozen_videos(batch.frames))
        torch.testing.assert_close(method.encode_text(batch.tokens), method._frozen_texts(batch.tokens))


def test_features_of_a_learned_task_never_change_and_neither_does_clip(make):
    method, stored = make(), []
    clip = copy.deepcopy(method.backbone.state_dict())
    for index in range(3):
        train_task(method, make_task(index), [pairs_of(index)] * 2)
        stored.append(features(method.eval(), index))
        assert all(torch.equal(features(method, task), former) for task, former in enumerate(stored))
    assert all(torch.equal(value, method.backbone.state_dict()[name]) for name, value in clip.items())
    assert not torch.equal(stored[0], stored[1])


def test_prototypes_are_unit_means_of_frozen_features(make):
    method = taught(make(route="query"), 2)
    for index in range(2):
        mean = method._frozen_texts(pairs_of(index).tokens).mean(dim=0)
        torch.testing.assert_close(method.prototypes[1, index], mean / mean.norm())
    assert not method.prototypes[:, 2:].any()
    assert not taught(make(), 2).prototypes.any()  # nothing reads them: no pass over the task


@pytest.mark.parametrize(("above", "is_copied"), [(0.99, True), (1.1, False), (None, False)])
def test_equal_data_start_as_a_copy_above_the_threshold_alone(make, above, is_copied):
    method = taught(make(reuse_above=above), 1, like=0)
    former = copy.deepcopy(method.sets[0].state_dict())
    method.begin_task(make_task(1))
    with torch.no_grad():
        method.losses(pairs_of(0))
    assert not any(lora.B.any() for block in method._set(1, "text").adapters() for lora in block.values())
    method.train().losses(pairs_of(0))
    own = method.sets[1].state_dict()
    assert all(torch.equal(own[name], value) for name, value in former.items()) == is_copied
    with torch.no_grad():
        for parameter in method.sets[1].parameters():
            parameter.add_(1.0)
    assert all(torch.equal(method.sets[0].state_dict()[name], value) for name, value in former.items())


@pytest.mark.parametrize("route", ["block", "query"])
def test_before_its_first_task_it_is_the_frozen_backbone(make, small_clip, route):
    batch = pairs_of(0)
    found = make(route=route).eval().encode_text(batch.tokens)
    torch.testing.assert_close(found, l2_normalize(small_clip.text(batch.tokens)))
