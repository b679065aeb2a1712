"""The forgetting of an untrained model is 0, for any normalization of scores."""

import pytest

from ctvr.methods import CONFIGURATIONS, METHODS
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.method_checks.forgetting import check_forgetting, first_moved
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from tests.orchestrator.method_checks.test_checks import place

CALIBRATED = [
    ("structalign", {"method.score": "fused"}, ()),
    ("umt", {"method.rerank": 3}, ()),
    ("camoe", {}, ("dsl",)),
    ("dsl", {}, ()),
]


@pytest.mark.parametrize(("name", "settings", "presets"), CALIBRATED, ids=[name for name, *_ in CALIBRATED])
def test_an_untrained_model_whose_scores_are_calibrated_forgets_nothing(name, settings, presets):
    subject = Subject.of(name, settings, presets)
    assert subject.make().declared.normalizes_scores
    assert check_forgetting(subject) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_an_untrained_model_forgets_nothing(name):
    assert check_forgetting(Subject.of(name)) is None


def test_check_reports_the_released_forgetting_of_cut_galleries():
    subject, cut = Subject.of("structalign", presets=["released"]), EvaluationConfig(own_gallery="cut")
    assert subject.experiment.evaluation.own_gallery == "cut"
    assert "own_gallery=cut" in str(check_forgetting(subject))
    fused = Subject.of("structalign", {"method.score": "fused"})
    assert first_moved(fused.make(), cut, "ctvr") == 1
    assert first_moved(fused.make(), cut, "cvlm") is None  # there each task is searched alone


def test_the_check_names_the_task_at_which_ranks_change():
    with pytest.raises(ContractViolation, match="protocol ctvr: without any training, task 2 changes ranks"):
        check_forgetting(Subject.of(place("ChangesAsTasksBegin")))
