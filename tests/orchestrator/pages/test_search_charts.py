"""The ladder orders the trials of each rung by themselves; parallel coordinates show results of one gallery."""

import re
from dataclasses import replace

from ctvr.orchestrator.pages.search_charts import ladder_svg, parallel_svg
from ctvr.orchestrator.pages.search_space import SearchedSetting, SearchedSpace, Trial

SETTINGS = (SearchedSetting("method.a", ("1", "2")), SearchedSetting("method.b", low=0.0, high=1.0))
TRIALS = (
    Trial("1", {"method.a": "1", "method.b": "0"}, 3.0, 2, "complete", True, history=((1, 9.0), (2, 3.0))),
    Trial("2", {"method.a": "2", "method.b": "1"}, 4.0, 2, "complete", True, True, ((1, 8.0), (2, 4.0))),
    Trial("3", {"method.a": "2", "method.b": "0.5"}, 7.0, 1, "stopped: halving", False, history=((1, 7.0),)),
)
SPACE = SearchedSpace(SETTINGS, TRIALS, "gain, in points")


def lines(text: str) -> list[str]:
    return re.findall(r'<path d="M([^"]*)" fill="none"', text)


def test_the_ladder_orders_each_rung_and_ends_where_a_trial_was_stopped():
    text = ladder_svg(SPACE)
    assert "after task 1: 3 trials, best first: 1, 2, 3; after task 2: 2 trials, best first: 2, 1" in text
    assert [line.count("L") for line in lines(text)] == [0, 1, 1], "the stopped trial first, the winner on top"
    less = ladder_svg(replace(SPACE, less_is_better=True))
    assert "after task 1: 3 trials, best first: 3, 2, 1" in less


def test_there_is_no_ladder_without_rungs():
    assert ladder_svg(replace(SPACE, trials=TRIALS[:2])) == ""
    assert ladder_svg(replace(SPACE, trials=tuple(replace(each, history=()) for each in TRIALS))) == ""


def test_parallel_coordinates_end_at_the_results_of_the_last_task():
    text = parallel_svg(SPACE)
    assert [line.count("L") for line in lines(text)] == [1, 2, 2], "the stopped trial has no result"
    assert "gain, in points, after task 2" in text
    assert "trial 3 method.a 2, method.b 0.5: after task 1: +7.00" in text
    assert [parallel_svg(replace(SPACE, settings=SETTINGS[:1])), parallel_svg(replace(SPACE, trials=TRIALS[:2]))] == [
        "",
        "",
    ]
