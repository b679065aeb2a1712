"""C-CLIP: the numbers of its specification, the merge, and the loss to the former model."""

import copy
import json

import numpy as np
import pytest
import torch

from ctvr.methods.base import Method
from ctvr.methods.cclip import CCLIP, CCLIPConfig, consolidation
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.tower_lora import weight_at
from ctvr.methods.upper_bound import UpperBound, UpperBoundConfig
from ctvr.orchestrator.learning.evaluation.cost import sizes_only
from ctvr.orchestrator.learning.training.optimizer import make_optimizer
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_stream, train_task, weights


@pytest.fixture
def make(small_clip):
    return maker(CCLIP, small_clip, rank=4, alpha=8.0, dropout=0.0)


def features(method: Method) -> torch.Tensor:
    batch = make_batch(5, 2, seed=7)
    with torch.no_grad():
        return torch.stack([method.encode_video(batch.frames), method.encode_text(batch.tokens)])


def learned(method: CCLIP, tasks: int = 1) -> CCLIP:
    train_stream(method, tasks=tasks)
    return method.eval()


def stirred(method: CCLIP, index: int = 0) -> CCLIP:
    """Begin a task with adapters that change features."""
    method.begin_task(make_task(index))
    for tower in (method.vision, method.text):
        for lora in (each for block in tower.adapters() for each in block.values()):
            torch.nn.init.normal_(lora.B, std=0.1)
    return method


# ------------------------------------------------------------------------------- numbers of the sheet


@pytest.mark.parametrize(
    ("rows", "key", "loss"), [("stacked", "a_stacked_2N", 5.575353), ("joined", "b_joined_2D", 2.733489)]
)
def test_the_tie_is_that_of_the_worked_example_in_value_and_gradient(shared, rows, key, loss):
    file = np.load(shared / "reference" / "cclip" / "toy.npz")
    h = [torch.from_numpy(file[name]).float().requires_grad_() for name in ("h_video", "h_text")]
    z = [torch.from_numpy(file[name]).float() for name in ("z_video", "z_text")]
    found = consolidation((h[0], h[1]), (z[0], z[1]), 0.07, rows)
    assert float(found.detach()) == pytest.approx(loss, abs=1e-5)
    assert float(found.detach()) == pytest.approx(
        json.loads((shared / "reference/cclip/toy.json").read_text())[f"CKC {key}"]
    )
    found.backward()
    for x, name in zip(h, ("grad_video", "grad_text"), strict=True):
        torch.testing.assert_close(x.grad, torch.from_numpy(file[f"{key}/{name}"]).float(), rtol=1e-4, atol=1e-5)


def test_half_of_the_scaled_product_is_added_to_the_weights(shared):
    file = {
        name: torch.from_numpy(value).float()
        for name, value in np.load(shared / "reference/cclip/toy.npz").items()
        if value.ndim
    }
    lora = LoRA(2, 4.0, 4, 5)
    with torch.no_grad():
        lora.A.copy_(file["A"])
        lora.B.copy_(file["B"])
        torch.testing.assert_close(file["W0"] + 0.5 * lora.merged_delta(), file["merged"])


def test_adapters_and_embedding_count_29_million_of_table_6():
    """ViT-B/16 and B/32 have the same number: 29,229,056 and the temperature."""
    with torch.device("meta"):
        method = CCLIP(CCLIPConfig(), sizes_only())
    sizes = {group["name"]: sum(p.numel() for p in group["params"]) for group in method.param_groups()}
    assert sizes == {"vision": 2_359_296, "text": 1_572_864, "clip": 25_296_896 + 1}
    assert sum(p.numel() for p in method.projector.parameters()) == 512 * 1024 + 1024 + 1024 * 512 + 512


# ------------------------------------------------------------------------------------------ the merge


def test_fresh_adapters_leave_every_feature_as_the_former_model_has_it(make, small_clip):
    method = make()
    expected = features(method)
    method.begin_task(make_task(0))
    assert torch.equal(features(method.eval()), expected)
    learned(method)
    after = features(method)
    method.begin_task(make_task(1))
    assert torch.equal(features(method.eval()), after)


@pytest.mark.parametrize("merge", [0.0, 0.5, 1.0])
def test_evaluation_before_the_merge_sees_the_stored_features(make, merge):
    method = stirred(make(merge=merge)).eval()
    before = features(method)
    method.end_task(make_task(0), iter([]))
    torch.testing.assert_close(features(method), before, rtol=0, atol=1e-5)
    assert int(method.learned) == 1


def test_merge_factor_spans_former_and_trained_model(make, small_clip):
    trained, clip = stirred(make(merge=1.0)).train(), features(make())
    full = features(trained)
    trained.end_task(make_task(0), iter([]))
    torch.testing.assert_close(features(trained.eval()), full, rtol=0, atol=1e-5)
    assert not torch.allclose(full, clip, atol=1e-3)
    back = stirred(make(merge=0.0))
    start = weights(back.backbone)
    back.end_task(make_task(0), iter([]))
    assert torch.equal(weights(back.backbone), start)


def test_the_merge_adds_half_of_alpha_over_r_times_b_a_at_every_place(make):
    method = stirred(make())
    former = copy.deepcopy(method.backbone)
    deltas = [{place: lora.B @ lora.A for place, lora in block.items()} for block in method.vision.adapters()]
    method.end_task(make_task(0), iter([]))
    for old, new, added in zip(former.vision.blocks, method.backbone.vision.blocks, deltas, strict=True):
        assert set(added) == {"q", "v", "out", "fc", "proj"}
        for place, delta in added.items():
            torch.testing.assert_close(weight_at(new, place), weight_at(old, place) + 0.5 * 8 / 4 * delta)
        assert torch.equal(weight_at(new, "k"), weight_at(old, "k"))


# -------------------------------------------------------------------------------------------- the tie


def test_the_first_task_has_no_former_model_and_later_ones_have(make):
    method = make()
    method.begin_task(make_task(0))
    assert set(method.losses(make_batch())) == {"contrastive"}
    learned(method)
    method.begin_task(make_task(1))
    assert set(method.losses(make_batch())) == {"contrastive", "ckc"}
    assert [group["name"] for group in method.param_groups()] == ["vision", "text", "projector", "clip"]
    untied = make(weight=0.0)
    learned(untied, 2)
    untied.begin_task(make_task(2))
    assert "ckc" not in untied.losses(make_batch())


def test_a_joint_training_has_no_former_model(make):
    method = UpperBound(UpperBoundConfig(), make())
    train_stream(method, tasks=2)
    method.begin_task(make_task(2))
    assert set(method.losses(make_batch())) == {"contrastive"}


def test_the_former_model_neither_moves_nor_gets_a_gradient(make):
    method = learned(make())
    method.begin_task(make_task(1))
    former = weights(method.teacher.module)
    assert torch.equal(former, weights(method.backbone))
    method.train().losses(make_batch())["ckc"].backward()
    assert all(p.grad is None for p in method.teacher.module.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in method.vision.parameters())
    assert torch.equal(weights(method.teacher.module), former)


def test_equal_models_are_still_pushed_since_the_tie_is_contrastive():
    torch.manual_seed(0)
    z = torch.randn(4, 6), torch.randn(4, 6)
    h = z[0].clone().requires_grad_(), z[1].clone().requires_grad_()
    loss = consolidation(h, z, 0.07)
    loss.backward()
    assert float(loss.detach()) > 0
    assert float(h[0].grad.abs().max()) > 0


@pytest.mark.parametrize("rows", ["stacked", "joined"])
def test_the_alignment_does_not_depend_on_the_order_of_pairs(rows):
    torch.manual_seed(0)
    h, z = (torch.randn(5, 6), torch.randn(5, 6)), (torch.randn(5, 6), torch.randn(5, 6))
    order = torch.tensor([3, 0, 4, 1, 2])
    loss = consolidation(h, z, 0.07, rows)
    torch.testing.assert_close(consolidation((h[0][order], h[1][order]), (z[0][order], z[1][order]), 0.07, rows), loss)
    torch.testing.assert_close(consolidation(h[::-1], z[::-1], 0.07, rows), loss)


def test_the_identity_projector_compares_the_features_themselves(make):
    method = make(projector="linear")
    x = torch.randn(3, method.backbone.embed_dim)
    torch.testing.assert_close(method.projector(x), x)


def test_words_that_a_task_lacks_keep_their_embedding(make):
    method = make()
    method.begin_task(make_task(0))
    embedding = method.backbone.text.token_embedding.weight
    before, batch = embedding.detach().clone(), make_batch(4, 2)
    optimizer = make_optimizer(method.param_groups(), OptimConfig(weight_decay=0.2), method)
    torch.stack(list(method.train().losses(batch).values())).sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    there = torch.zeros(len(embedding), dtype=torch.bool)
    there[batch.tokens.unique()] = True
    assert torch.equal(embedding[~there], before[~there])
    assert not torch.equal(embedding[there], before[there])


def test_training_moves_adapters_and_trained_parts_alone(make):
    method = make(trained=())
    start = copy.deepcopy(method.backbone)
    train_task(method, make_task(0), [make_batch(4, 2)])
    for (name, old), new in zip(start.named_parameters(), method.backbone.parameters(), strict=True):
        is_merged = name.startswith(("vision.blocks", "text.blocks")) and old.ndim > 1
        assert torch.equal(old, new) or is_merged or name == "logit_scale", name
