"""Shares of the categories whose video is ranked first, a row for each category of the captions."""

import re

from ctvr.orchestrator.pages.confusion import MAX_CATEGORIES, confusion_html

PAIRS = [("a<b>", "a<b>"), ("a<b>", "c"), ("c", "c"), ("c", "c")]


def test_a_row_is_shared_out_among_the_categories_that_are_found():
    text = confusion_html("lwf, seed 0", PAIRS)
    assert "<b>" not in text
    assert re.findall(r"<title>(.*?)</title>", text) == [
        "a&lt;b&gt;: 50 % find a&lt;b&gt; first",
        "a&lt;b&gt;: 50 % find c first",
        "c: 100 % find c first",
    ]
    assert re.findall(r'fill-opacity="([\d.]+)"', text) == ["0.50", "0.50", "1.00"]
    assert "confusion of categories of lwf, seed 0; a&lt;b&gt;: 50 % right; c: 100 % right" in text


def test_there_is_no_heat_map_of_one_of_unknown_or_of_too_many_categories():
    many = [(str(number), "0") for number in range(MAX_CATEGORIES + 1)]
    assert [confusion_html("m", pairs) for pairs in ([], PAIRS[2:], [("", "a"), ("b", "a")], many)] == [""] * 4
