"""Facts about methods that follow from their settings."""

import pytest

from ctvr.methods import EVERY_METHOD, METHODS, find_method
from ctvr.methods.base import Capabilities, Method
from ctvr.methods.capabilities import capabilities_of
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.tiny_models import make_small_clip

HELD = (
    *("reencodes_gallery", "is_transductive", "task_conditioned_text", "attends_to_padding", "normalizes_scores"),
    *("rewrites_captions", "several_text_vectors", "compensates_age", "has_epoch_state"),
)


def of(name: str) -> Capabilities:
    cls = find_method(name)
    return capabilities_of(cls, cls.Config())


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_facts_are_known_before_anything_is_built_and_are_one_value(name):
    cls = find_method(name)
    assert cls.capabilities(cls.Config()) == cls.capabilities(cls.Config())
    assert isinstance(hash(of(name)), int)


@pytest.mark.parametrize("name", [name for name in METHODS if not find_method(name).wraps])
def test_an_instance_declares_what_its_class_says_of_its_settings(name):
    cls = find_method(name)
    assert cls(cls.Config(), make_small_clip()).declared == of(name)


@pytest.mark.parametrize("field", HELD)
def test_a_strategy_has_what_its_retriever_has(field):
    base = Capabilities(**{field: True})
    assert getattr(capabilities_of(Strategy, None, base), field) is True
    assert getattr(capabilities_of(Strategy, None, Capabilities(normalizes_scores=False)), field) is False


def test_strategy_inherits_the_backbone_requirement():
    for agnostic in (True, False):
        found = Capabilities(backbone_agnostic=True).wrapping(Capabilities(backbone_agnostic=agnostic))
        assert found.backbone_agnostic is agnostic


def test_joint_training_may_leave_parameters_without_gradient():
    by_task, plain = (
        Capabilities(task_conditioned_text=is_by_task, uses_all_parameters=True) for is_by_task in (True, False)
    )
    upper = find_method("upper_bound").capabilities(None)
    assert not upper.wrapping(by_task).uses_all_parameters
    assert upper.wrapping(plain).uses_all_parameters
    assert upper.wrapping(plain).trains_on == "seen"


class Centres(Method):
    def normalize_scores(self, scores):
        return scores - scores.mean(dim=0)


class KeepsGallery(Method):
    def on_gallery_stored(self, task, gallery):
        self.kept = gallery


def test_overridden_hooks_count_where_a_method_says_nothing():
    assert capabilities_of(Centres, None).normalizes_scores is True
    assert capabilities_of(Method, None).normalizes_scores is False
    assert KeepsGallery.trains_on_searched(None)
    assert not Method.trains_on_searched(None)
    assert not Strategy.trains_on_searched(None)
    assert Strategy.trains_on_searched(None, of_base=True)


class KeepsSource(Method):
    def set_pair_source(self, source):
        self.source = source


def test_a_method_that_keeps_the_reader_of_pairs_keeps_videos():
    assert KeepsSource.keeps_videos(None)
    assert not Method.keeps_videos(None)
    assert not Strategy.keeps_videos(None)
    assert Strategy.keeps_videos(None, of_base=True)


def test_default_losses_accumulate_over_features_and_others_do_not():
    class Own(Method):
        def losses(self, batch):
            return {}

    assert capabilities_of(Method, None).accumulation == "features"
    assert capabilities_of(Own, None).accumulation is None


def test_a_method_without_its_settings_is_named():
    class Forgets(Method):
        @classmethod
        def capabilities(cls, config):
            return Capabilities(is_transductive=config.revise)

    with pytest.raises(ValueError, match=r"Forgets: .* Set self\.config = config"):
        _ = Forgets().declared
