"""Captions of published files."""

import pytest

from ctvr.orchestrator.importers.captions import msrvtt_id


@pytest.mark.parametrize(
    ("value", "video"),
    [(7010, "video7010"), ("007010", "video7010"), ("0", "video0"), ("video7", "video7"), (None, None)],
)
def test_a_number_is_the_name_of_a_video(value, video):
    assert msrvtt_id(value) == video


def test_an_id_may_have_more_digits_than_int_reads():
    assert msrvtt_id("9" * 5000) == f"video{'9' * 5000}"
