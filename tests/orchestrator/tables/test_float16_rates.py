"""Rows whose rate was published for float16 weights have a footnote."""

from ctvr.orchestrator.tables.footnotes import float16_note


def test_a_row_with_a_published_rate_of_float16_weights_says_so():
    assert float16_note({"method": "clip4clip", "method.lr": "1e-07"}).startswith(
        "method.lr=1e-07: published for float16"
    )
    assert "base.lr=1e-07" in float16_note({"method": "lwf", "method.base": "clip4clip", "base.lr": 1e-7})
    assert float16_note({"method": "clip4clip", "method.lr": 1e-6}) == ""
    assert float16_note({"method": "xpool", "method.lr": 1e-7}) == ""
    assert float16_note({}) == ""
