"""The search on a sweep's page: the space as recorded, or as sampled, and every trial, including stopped ones."""

import json
import math
import re

from ray import tune

from ctvr.orchestrator.jobs.report import _chosen, _space
from ctvr.orchestrator.on_ray.search import describe_space
from ctvr.orchestrator.pages.search_space import SearchedSetting, SearchedSpace, Trial
from ctvr.orchestrator.pages.searched import searched_html
from ctvr.orchestrator.sweeps.selection import SPACE
from ctvr.orchestrator.tracking.run_record import RunRecord


def trial(number: int, rate: str, rank: str, value: float, **more) -> Trial:
    return Trial(str(number), {"method.lr": rate, "method.rank": rank, "seed": "0"}, value, 5, "complete", True, **more)


def test_a_value_stands_where_it_lies_in_its_range():
    rate = SearchedSetting("method.lr", low=1e-6, high=1e-4, is_log=True)
    assert rate.place("1e-05") == 0.5
    assert SearchedSetting("beta", low=0.0, high=0.8).place("0.2") == 0.25
    rank = SearchedSetting("rank", ("8", "16"))
    assert (rank.place("8"), rank.place("16")) == (0.25, 0.75)
    for odd in (rank.place("9"), rate.place("auto"), SearchedSetting("one", low=1.0, high=1.0).place("1")):
        assert math.isnan(odd)


def test_the_page_shows_ranges_every_trial_and_the_winner():
    settings = (SearchedSetting("method.lr", low=1e-6, high=1e-4, is_log=True), SearchedSetting("method.rank", ("8",)))
    stopped = Trial("3", {"method.lr": "1e-6", "method.rank": "8"}, 2.0, 1, "stopped: task 1", False)
    trials = (trial(1, "2e-5", "8", 9.0), trial(2, "1e-5", "8", 11.5, is_winner=True), stopped)
    text = searched_html(SearchedSpace(settings, trials, "R@1 gain, in points"))
    assert "1e-06 to 0.0001 (log scale)" in text
    assert "tried: 2e-05 +9.00 complete; 1e-06 after task 1: +2.00 stopped; 1e-05 +11.50 winner" in text
    rows = re.findall(r"<tr.*?><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", text)
    last = ("3", "stopped: task 1", "after task 1: +2.00")
    assert rows == [("2 ★", "complete", "+11.50"), ("1", "complete", "+9.00"), last]
    for kind in ("best trial", "complete", "stopped early"):
        assert f"</svg>{kind}" in text
    text = searched_html(SearchedSpace(settings, trials, "R@1 gain, GMACs", is_front=True))
    assert "1e-05 +11.50 on the front" in text
    assert "</svg>on the Pareto front" in text
    assert "best trial" not in text


def heights(text: str) -> dict[str, list[float]]:
    """Return the heights of the marks of the first chart, by what their description says of them."""
    said = re.findall(r"tried: (.*?)\"", text)[0].split("; ")
    marks = re.findall(r"translate\([\d.]+ ([\d.]+)\)", text.partition("<figure")[2].partition("</figure>")[0])
    return dict(zip(said, map(float, marks), strict=True))


def test_no_chart_has_results_of_two_galleries_on_its_scale():
    setting = SearchedSetting("a", ("1",))
    stopped = [
        Trial(str(n), {"a": "1"}, value, tasks, "stopped", False)
        for n, (value, tasks) in enumerate([(25.0, 1), (-30.0, 2), (math.nan, 0)], start=3)
    ]
    complete = [Trial(str(n), {"a": "1"}, value, 5, "complete", True) for n, value in ((1, 9.0), (2, 5.5))]
    text, alone = (searched_html(SearchedSpace((setting,), of, "gain")) for of in (complete + stopped, complete))
    drawn, line = heights(text), max(map(float, re.findall(r"M34 ([\d.]+)H", text)))
    on_scale = {said: y for said, y in drawn.items() if y <= line}
    assert on_scale == heights(alone)  # other galleries neither stand on the scale nor stretch it
    assert list(on_scale) == ["1 +9.00 complete", "1 +5.50 complete"]
    assert list(drawn)[2:] == ["1 after task 1: +25.00 stopped", "1 after task 2: -30.00 stopped", "1 n/a stopped"]
    assert "after task 5" in text
    assert ("smaller galleries" in text, "smaller galleries" in alone) == (True, False)


def test_the_best_trials_come_first_also_where_less_is_better():
    trials = (trial(1, "1", "1", 9.0), trial(2, "1", "1", 5.5))
    for less, first in ((False, ["1", "2"]), (True, ["2", "1"])):
        text = searched_html(SearchedSpace((), trials, "GMACs", less_is_better=less))
        assert re.findall(r"<tr><td>(\d)</td>", text) == first


def test_a_search_without_a_finite_result_has_a_table_and_no_chart():
    text = searched_html(SearchedSpace((SearchedSetting("a", ("1",)),), (trial(1, "1", "1", math.nan),), "R@1"))
    assert "all 1 trial<" in text
    assert "<figure" not in text


def test_the_recorded_space_is_read_back_and_a_missing_one_is_that_of_the_trials():
    space = {"method.lr": tune.loguniform(1e-6, 2e-5), "method.rank": tune.choice([8, 16]), "b": tune.uniform(0, 0.9)}
    sweep = RunRecord("id", "s", {}, {}, {SPACE: json.dumps(describe_space(space))}, "FINISHED", "")
    trials = [trial(1, "1e-6", "8", 1.0), trial(2, "1e-5", "8", 2.0)]
    assert _space(sweep, trials) == (
        SearchedSetting("method.lr", low=1e-6, high=2e-5, is_log=True),
        SearchedSetting("method.rank", ("8", "16")),
        SearchedSetting("b", low=0.0, high=0.9),
    )
    tried = (SearchedSetting("method.lr", low=1e-6, high=1e-5, is_log=True, is_known=False),)
    for damaged in ({}, {SPACE: "{"}, {SPACE: '{"method.lr": {}}'}):
        sweep = RunRecord("id", "s", {}, {}, damaged, "FINISHED", "")
        assert _space(sweep, trials) == tried
    assert str(tried[0]) == "1e-06 to 1e-05 (log scale), as tried"


def test_the_settings_of_the_winner_are_those_of_the_space():
    space = describe_space({"method.lr": tune.loguniform(1e-6, 2e-5), "method.rank": tune.choice([8, 16])})
    settings = {"method.lr": "5.176340429875838e-06", "method.rank": "8", "seed": "0"}
    best = RunRecord("id", "t", settings, {}, {}, "FINISHED", "")
    found = [RunRecord("id", "s", {}, {}, tags, "FINISHED", "") for tags in ({SPACE: json.dumps(space)}, {})]
    assert [_chosen(sweep, best) for sweep in found] == [": lr=5.18e-06, rank=8", ""]
