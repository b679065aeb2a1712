"""q-values compared with SciPy's."""

import math

import numpy as np
import pytest
from scipy import stats

from ctvr.orchestrator.tables.significance import q_values


def test_q_values_are_those_of_benjamini_and_hochberg():
    p = np.random.default_rng(0).beta(0.5, 1, 200)
    assert q_values(p) == pytest.approx(stats.false_discovery_control(p))
    assert q_values([0.04, math.nan, 0.01, 0.03])[:3:2] == pytest.approx([0.04, 0.03])
    assert math.isnan(q_values([0.04, math.nan])[1])
    assert q_values([]) == []
