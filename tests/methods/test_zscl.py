import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.base import Batch
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.zscl import ZSCL, ZSCLConfig
from ctvr.orchestrator.learning.training.optimizer import freeze_except, lr_factor, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.released import continual_clip
from tests.methods.steps import (
    begin,
    distilled_by_hand,
    gradient_of,
    largest_gradient,
    moved,
    step,
    train_stream,
    weights,
)

SMALL = {"reference_texts": 12, "average_every": 1}


@pytest.fixture
def make(base):
    return maker(ZSCL, base, **SMALL)


def images(method, count=5):
    return method.reference.images(range(count), torch.device("cpu"))


def test_averaging_does_not_touch_the_steps_of_a_task(make, base):
    assert train_stream(make(weight=0.0), tasks=1) == train_stream(base, tasks=1)


def test_the_teacher_is_always_the_pretrained_model(make, base):
    method = make()
    pretrained = weights(base)
    train_stream(method, tasks=3)
    assert torch.equal(weights(method.teacher.module), pretrained)
    assert not torch.equal(weights(method.base), pretrained)


def test_the_average_is_the_mean_of_the_start_and_all_snapshots(make):
    method = begin(make(weight=0.0, average_every=2).double()).train()
    parameters = [p for group in method.param_groups() for p in group["params"]]
    seen = [weights(method.base)]
    for number in range(6):
        step(method, parameters, dataclasses.replace(make_batch(seed=number), frames=make_batch().frames.double()))
        if number % 2:
            seen.append(weights(method.base))
    method.eval()
    torch.testing.assert_close(weights(method.base), torch.stack(seen).mean(dim=0), rtol=1e-12, atol=1e-14)


def test_evaluation_reads_the_average_and_training_goes_on_where_it_was(make, base):
    method = begin(make()).train()
    parameters = [p for group in method.param_groups() for p in group["params"]]
    step(method, parameters, make_batch())
    live = weights(method.base)
    averaged = weights(method.eval().base)
    assert not torch.equal(averaged, live)
    assert torch.equal(weights(method.eval().base), averaged)
    assert torch.equal(weights(method.train().base), live)
    method.eval()
    method.end_task(make_task(0), iter([]))
    assert torch.equal(weights(method.train().base), averaged)  # the next task starts here


def test_the_parameters_stay_the_optimizers_own(make):
    method = begin(make()).train()
    before = [id(p) for p in method.parameters()]
    method.after_step()
    method.eval().train()
    assert [id(p) for p in method.parameters()] == before


def test_task_below_the_merge_interval_warns_and_merges_nothing(make, base):
    method = make(average_every=100)
    with pytest.warns(UserWarning, match=r"task_01 took 3 steps, but weights are averaged every 100 steps.* Lower"):
        train_stream(method, tasks=1)
    assert torch.equal(weights(method.base), weights(base))


def test_the_distance_to_the_start_is_zero_at_the_start(make):
    method = begin(make(l2=1.0)).train()
    distance = method.distance()
    distance.backward()
    assert float(distance.detach()) == 0
    assert largest_gradient(method) == 0
    with torch.no_grad():
        method.base.backbone.logit_scale += 2.0
    assert float(method.distance().detach()) == pytest.approx(4.0)


def test_terms_are_there_only_when_they_count(make):
    batch = make_batch()
    assert set(begin(make()).train().losses(batch)) == {"contrastive", "distillation"}
    assert set(begin(make(l2=0.1)).train().losses(batch)) == {"contrastive", "distillation", "l2"}
    assert set(begin(make(weight=0.0)).train().losses(batch)) == {"contrastive"}


def test_a_step_takes_as_many_images_as_pairs_by_default(make, monkeypatch):
    shapes = []
    monkeypatch.setattr(ZSCL, "distil", lambda self, x: shapes.append(tuple(x.shape)) or x.new_zeros(()))
    begin(make()).train().losses(make_batch(pairs=4))
    begin(make(reference_images=3, reference_frames=2)).train().losses(make_batch(pairs=4))
    assert shapes == [(4, 1, 3, 32, 32), (3, 2, 3, 32, 32)]
    monkeypatch.setattr("ctvr.methods.zscl.world_size", lambda: 3)  # they are counted over all workers
    monkeypatch.setattr("ctvr.methods.zscl.deal", lambda rows: rows.chunk(3)[0])
    for settings in ({}, {"reference_images": 6}, {"reference_images": 7}):
        begin(make(**settings)).train().losses(make_batch(pairs=4))
    assert [shape[0] for shape in shapes[2:]] == [4, 2, 3]


def test_the_distillation_of_a_moved_student_is_the_one_computed_by_hand(make):
    """The loss uses its weight and temperature, and the teacher's output is a constant."""
    terms = []
    for weight in (1.0, 5.0):
        method = moved(begin(make(temperature=0.7, weight=weight)))
        torch.manual_seed(0)  # of the drawn images
        terms.append(float(method.losses(make_batch(4, 2))["distillation"].detach()))
    assert terms[1] == pytest.approx(5 * terms[0], rel=1e-4)
    shown = images(method)
    term = method.distil(shown)
    scale, texts = method.base.scale(), method.texts(torch.device("cpu"))
    old = scale.detach() * texts @ method.teacher("encode_video", shown).mT
    expected = distilled_by_hand(scale * texts @ method.base.encode_video(shown).mT, old, 0.7)
    assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    factor = method.base.backbone.logit_scale
    assert gradient_of(term, factor) == pytest.approx(gradient_of(expected, factor), rel=1e-3)


def test_the_distance_to_the_tasks_start_has_its_weight(make):
    terms = {}
    for l2 in (0.1, 0.3):
        method = moved(begin(make(weight=0.0, l2=l2)))
        terms[l2] = float(method.losses(make_batch(4, 2))["l2"].detach())
    assert terms[0.3] == pytest.approx(3 * terms[0.1], rel=1e-4)
    assert terms[0.1] > 0


# ------------------------------------------------------------------------------- the released program


class Classifier(Clip4Clip):
    """The training of ZSCL's program: pictures are videos of one frame; one direction, smoothed labels."""

    def losses(self, batch):
        logits = self.scale() * self.encode_video(batch.frames) @ self.encode_text(batch.tokens).mT
        return {"contrastive": torch.nn.functional.cross_entropy(logits, batch.categories, label_smoothing=0.2)}


def test_preset_original_equals_released_steps_and_averages(compared):
    """Eight steps of the loop of Thunderbeee/ZSCL@b96e714, interval 3: weights and their mean agree to 1e-5."""
    file = np.load(Path(__file__).parent / "fixtures" / "zscl_released.npz")
    base = Classifier(Clip4ClipConfig(**own(ZSCL.PRESETS["original"], "base")), continual_clip(moved=True))
    method = ZSCL(
        ZSCLConfig(**{**own(ZSCL.PRESETS["original"], "method"), "weight": 0.0, "l2": 0.0, "average_every": 3}), base
    )
    method.begin_task(make_task())
    optim = OptimConfig(**{**own(ZSCL.PRESETS["original"], "optim"), "warmup": 2 / 8, "lr_scale": 20.0})
    groups = method.param_groups()
    freeze_except(method, groups)
    optimizer = make_optimizer(groups, optim, method)
    method.train()
    images = torch.from_numpy(file["images"]).float()[:, :, None] / 127.5 - 1
    for number, expected in enumerate(file["run/losses"]):
        part = number % 4
        loss = sum(
            method.losses(
                Batch(
                    frames=images[part],
                    tokens=torch.from_numpy(file["tokens"]),
                    video_ids=torch.arange(6),
                    categories=torch.from_numpy(file["labels"][part]),
                )
            ).values()
        )
        compared("zscl", "loss", loss, expected, 2e-5)
        optimizer.zero_grad()
        loss.backward()
        set_learning_rates(optimizer, lr_factor(number, 8, 8, True, optim), optim.final_lr)
        compared("zscl", "schedule", optimizer.param_groups[0]["lr"], file["run/rates"][number], 1e-12)
        optimizer.step()
        method.after_step()
        if number == 2:
            projections_equal(compared, base.backbone, file, "after3")
    method.eval()
    projections_equal(compared, base.backbone, file, "saved")


def own(settings, group):
    return {name.partition(".")[2]: value for name, value in settings.items() if name.startswith(f"{group}.")}


def projections_equal(compared, clip, file, when):
    for ours, theirs in ((clip.vision.proj, "visual.proj"), (clip.text.proj, "text_projection")):
        compared("zscl", "steps", ours, file[f"run/{when}/{theirs}"])


def test_snapshots_begin_as_set_and_a_warning_says_what_was_learned(make):
    first, late = make(weight=0.0, average_every=100, average_from="first"), make(weight=0.0, average_every=100)
    method = begin(first).train()
    start = weights(method.base)
    parameters = [p for group in method.param_groups() for p in group["params"]]
    step(method, parameters, make_batch(seed=0))
    one = weights(method.base)
    step(method, parameters, make_batch(seed=1))
    method.eval()
    with pytest.warns(UserWarning, match="it has learned half of its first step"):
        method.end_task(make_task(0), iter([]))
    torch.testing.assert_close(weights(method.base), (start + one) / 2)
    with pytest.warns(UserWarning, match="it has learned nothing"):
        train_stream(late, tasks=1)
    enough = make(weight=0.0, average_every=2, average_from="first")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_stream(enough, tasks=1)


def test_weight_consolidation_is_the_authors_script_without_distillation(make):
    settings = own(ZSCL.PRESETS["weight-consolidation"], "method")
    assert set(begin(make(**settings)).train().losses(make_batch())) == {"contrastive", "l2"}
