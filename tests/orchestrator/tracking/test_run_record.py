"""Values of records, which may be from elsewhere."""

import pytest

from ctvr.orchestrator.tracking.run_record import is_count


@pytest.mark.parametrize(
    ("text", "is_one"), [("0", True), ("12", True), ("²", False), ("9" * 5000, False), ("", False)]
)
def test_a_count_is_what_int_reads(text, is_one):
    assert is_count(text) is is_one
