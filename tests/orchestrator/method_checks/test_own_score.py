import pytest

from ctvr.orchestrator.method_checks.own_score import own_scores
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.settings.presets import with_recipe
from ctvr.orchestrator.settings.resolve import resolve

SMALL = {"stream": "s", "data.num_frames": 4}


def made(method, presets=(), **settings):
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return resolve({**SMALL, "method": method, **named}, {}, with_recipe(method, presets, {"preset": "paper"}))


@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe", "moe_adapter", "lora", "lwf", "bmu_moco"])
def test_untrained_method_scores_as_zero_shot_clip(method):
    assert own_scores(made(method)) is None


@pytest.mark.parametrize("method", ["structalign", "xpool", "camoe", "dsl", "tome", "tempme", "clip_vip", "dgl"])
def test_a_method_with_another_score_or_other_towers_starts_elsewhere(method):
    found = own_scores(made(method))
    assert found is not None
    assert found.shape == (16, 16)


def test_settings_decide_and_not_the_name():
    assert own_scores(made("clip4clip", method__frame_norm="l2")) is None  # the two ways of published tables
    assert own_scores(made("dsl", ["search"], method__base="zero_shot")) is None  # nothing is trained
    assert own_scores(made("lwf", method__base="xpool")) is not None


def test_method_the_small_backbone_refuses_has_another_score(monkeypatch):
    def refuse(subject):
        raise ValueError("this tower has too few blocks")

    monkeypatch.setattr(Subject, "make", refuse)
    found = own_scores(made("clip4clip"))
    assert found is not None
    assert not found.numel()
