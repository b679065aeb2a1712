import math

import pytest

from ctvr.methods.images.knn import forgetting
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

TABLE = [[80.0], [90.0, 70.0], [60.0, 75.0, 50.0]]


def test_forgetting_is_from_the_learned_or_from_the_best_former_value():
    assert forgetting(TABLE) == pytest.approx(((80 - 60) + (70 - 75)) / 2)
    assert forgetting(TABLE, of_best=True) == pytest.approx(((90 - 60) + (70 - 75)) / 2)
    assert forgetting(TABLE, of_best=True) >= forgetting(TABLE)
    assert math.isnan(forgetting(TABLE[:1], of_best=True))


def test_neighbours_may_be_a_share_of_the_bank():
    assert EvaluationConfig().fixed_k(256) == 200
    assert EvaluationConfig().fixed_k(64) == 64
    share = EvaluationConfig(knn_share=0.02)
    assert (share.fixed_k(10_000), share.fixed_k(256), share.fixed_k(3)) == (200, 5, 1)
