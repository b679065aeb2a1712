"""The page of a stream's runs: the values of the table, and the forgotten and the outnumbered queries."""

import re
import shutil
from xml.etree import ElementTree

import ctvr
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.figures.styles import style_of
from ctvr.orchestrator.jobs.report import make_report
from ctvr.orchestrator.pages.forgetting import SHOWN, LostQuery, ModelHistory, forgetting_explorer, lost_names
from ctvr.orchestrator.streams.query_rank import read_all
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.sweeps.selection import PLANNED
from tests.refusing import refuses


def test_a_query_is_lost_if_first_after_its_task_and_not_at_the_end():
    means = [
        {"a": 1.0, "b": 2.0},
        {"a": 3.0, "b": 1.0, "c": 1.0, "d": 1.5, "f": 1.5},
        {"a": 1.0, "b": 5.0, "c": 4.0, "d": 9.0, "e": 7.0, "f": 1.5},
    ]
    history = [read_all(each) for each in means]
    task_of = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 1}
    # a came back, b was not found then, e has no later task, f has an equal twin then and now
    assert lost_names(history, task_of) == (4, ["d", "c"])
    assert lost_names(history[:1], task_of) == (0, [])


def test_lost_caption_is_split_into_forgotten_and_outnumbered():
    item = Item("v", "/none.mp4", None, "ocean", ("a <boat>",))
    lost = [LostQuery("a <boat>", item, 1, 4.0, item, winner) for winner in (0, 1, 2)]
    assert [each.is_forgotten for each in lost] == [True, True, False]
    text = forgetting_explorer(
        [ModelHistory("m", 9, tuple(lost)), ModelHistory("n", 0, (), "its commits are gone")], ["one", "two", "three"]
    )
    assert "9 were found, 3 of them are lost: 2 forgotten, 1 outnumbered. By category: ocean 3." in text
    assert "n: its commits are gone" in text
    assert "<boat>" not in text


def test_forgotten_queries_are_shown_before_outnumbered_ones_that_fell_further():
    item = Item("v", "", None, "ocean", ("a boat",))
    lost = (
        *(LostQuery(f"far {n}", item, 0, 90.0, item, 1) for n in range(SHOWN)),
        LostQuery("near", item, 0, 2.0, item, 0),
    )
    text = forgetting_explorer([ModelHistory("m", 20, lost, is_open=True)], ["one", "two"])
    assert text.index("<b>near</b>") < text.index("<b>far 0</b>")
    assert f"far {SHOWN - 1}" not in text


def test_lost_queries_of_features_show_the_ids_of_the_videos():
    own, other = (Item(name, "", None, "ocean", ("a boat",)) for name in ("own<1>", "other"))
    lost = LostQuery("a boat", own, 0, 4.0, other, 1)
    text = forgetting_explorer([ModelHistory("m", 9, (lost,))], ["one", "two"])
    assert "own&lt;1&gt;" in text
    assert "other" in text
    assert "--videos" in text
    assert "no picture" not in text


def test_stream_page_is_self_contained(learned, tmp_path):
    said = make_report("small", ExecutionConfig(runs=learned), tmp_path / "page.html")
    assert said == f"written: {tmp_path / 'page.html'}"
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|<script|url\(", text)
    assert re.search(r'<h1>small</h1>\n<p class="soft">[^<]*1 seed</p>', text)
    for row in ctvr.table(stream="small", runs=learned).itertuples():
        assert re.search(rf"<td[^>]*>{row.method}(?: \N{{BLACK STAR}})?</td>", text)
    assert "Mean and sample standard deviation over seeds" in text
    for label in ("zero_shot", "framefusion_moe"):
        assert re.search(rf"<h3>{label}, seed 0</h3><p>\d+ were found, ", text), "its commits hold every rank"
    assert re.search(r"<h3>zero_shot, seed 0</h3><p>\d+ were found, \d+ of them are lost: 0 forgotten", text)
    drawing = max(re.findall(r"<svg.*?</svg>", text, re.DOTALL), key=len)  # the others are samples of the legend
    lines = ElementTree.fromstring(drawing).findall("polyline")
    hues = {style_of(method).hue for method in ("zero_shot", "framefusion_moe")}  # of the figures, too
    assert {line.get("stroke") for line in lines} == {f"var(--c{hue})" for hue in hues}
    assert len(lines) == 2
    with refuses("large", where="report"):
        make_report("large", ExecutionConfig(runs=learned))


def test_an_incomplete_rerun_is_counted_under_the_title(learned, tmp_path):
    shutil.copytree(learned, tmp_path / "runs")
    execution = ExecutionConfig(runs=tmp_path / "runs")
    tracker = execution.existing_tracker()
    tracker.open_sweep("s", "small", {"method": "zero_shot"}, {"ctvr.trials": "1"})
    tracker.open_sweep("s-final-abc", "small", {"rerun_of": "s"}, {PLANNED: "19"})
    trial, rerun = tracker.find_runs(tags={"ctvr.complete": "true"})
    for run, sweep, of, complete in ((trial, "s", "", 0), (rerun, "s-final-abc", "s", 1)):
        tracker.set_tags(run.run_id, {"ctvr.sweep": sweep, "ctvr.rerun_of": of})
        make_report("s", execution, tmp_path / "page.html")
        under = re.search(r'<h1>s</h1>\n<p class="soft">([^<]*)</p>', (tmp_path / "page.html").read_text())
        assert under[1].endswith(f"rerun: {complete} of 19 runs complete")
