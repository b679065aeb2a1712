"""Methods have their papers' names in print."""

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.tables.formats import PRINTED, printed_name


@pytest.mark.parametrize(
    ("label", "printed"),
    [
        ("clip4clip", "CLIP4Clip"),
        ("framefusion_moe (trial 3)", "FrameFusionMoE (trial 3)"),
        ("clip4clip@er_ring", "CLIP4Clip@er_ring"),
        ("lwf_of_mine", "lwf_of_mine"),
        ("my_idea:MyIdea", "my_idea:MyIdea"),
        ("Own name", "Own name"),
        ("", ""),
    ],
)
def test_the_name_of_the_method_is_replaced(label, printed):
    assert printed_name(label) == printed


def test_every_known_name_has_one_of_its_own():
    known = {**EVERY_METHOD, **CONFIGURATIONS}
    assert set(PRINTED) <= set(known)
    names = [printed_name(name) for name in known]
    assert all(names)
    assert len(set(names)) == len(names)
