"""Parts of a whole table that are checked before it starts, and its end. With Ray: test_ray_tables.py."""

from dataclasses import asdict, replace

import pytest

from ctvr.orchestrator.errors import Interrupted, RunsFailed
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.plan import GAIN, Capacity, SearchOutcome, TrialPlan, write_plan
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps import sweep as jobs
from ctvr.orchestrator.sweeps.comparison import ConfirmationResult
from ctvr.orchestrator.sweeps.plan import SweepPlan, SweepRequest, plan_sweep
from ctvr.orchestrator.sweeps.plan_text import describe_plan, describe_request
from ctvr.orchestrator.sweeps.session import trial_plan
from ctvr.orchestrator.sweeps.verdict import CONFIRMS
from ctvr.orchestrator.tables.presets import TablePreset, parse_preset
from ctvr.orchestrator.tables.table import Difference
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import refused

ROWS = [{"name": "zero_shot", "searched": False}, "clip4clip", {"name": "tvr_plus_cl", "notes": ["a", "b"]}]


def preset(**more: object) -> TablePreset:
    data = {
        "title": "T",
        "protocol": "ctvr",
        "stream": "shapes-5",
        "rows": ROWS,
        "seeds": 2,
        "search": {"trials": 3, "confirm": 0},
    }
    return parse_preset({**data, **more})


def request(few: str, made: TablePreset | None = None, **overrides: object) -> SweepRequest:
    return SweepRequest("t", few, made or preset(), overrides)


# ------------------------------------------------------------------------------------------- what is asked


def test_every_row_is_searched_by_the_same_budget_and_rule(few, execution):
    planned = plan_sweep(request(few), execution)
    assert list(planned.searches) == ["clip4clip", "tvr_plus_cl"]
    assert [search.name for search in planned.searches.values()] == ["t-clip4clip", "t-tvr_plus_cl"]
    assert {search.experiment.evaluation.split for search in planned.searches.values()} == {"val"}
    assert (planned.trials_per_row, planned.search_config.metric) == (3, GAIN)
    names = ["zero_shot", "clip4clip", "tvr_plus_cl", "tvr_plus_cl:untrained"]
    assert [row.row.name for row in planned.rows] == names
    assert planned.rows[2].experiment.method.base == "clip_vip"


def test_settings_are_the_tables_then_the_rows_then_the_users(few, execution):
    rows = ["clip4clip", {"name": "lwf", "settings": {"optim.epochs": 3, "data.batch_size": 2}}]
    made = preset(rows=rows, settings={"optim.epochs": 5, "optim.lr_scale": 7})
    first, second = (row.experiment for row in plan_sweep(request(few, made, **{"data.batch_size": 1}), execution).rows)
    assert (first.optim.epochs, second.optim.epochs) == (5, 3)
    assert first.optim.lr_scale == second.optim.lr_scale == 7
    assert first.data.batch_size == second.data.batch_size == 1


def test_without_trials_every_row_runs_its_recommended_preset(few, execution):
    planned = plan_sweep(request(few, preset(search={"trials": 0})), execution)
    assert planned.searches == {}
    assert {row.experiment.evaluation.split for row in planned.rows} == {"test"}
    asked = parse_preset({**asdict(preset(search={"trials": 0})), "rows": ["lwf:original"]})
    assert plan_sweep(request(few, asked), execution).rows[0].experiment.presets == ("original",)


WRONG = {"method.frame_norm": "l3"}
REFUSED: dict[str, tuple[dict[str, object], dict[str, object], str, str]] = {  # id -> table, settings, setting, fault
    "method": ({"rows": ["co2l_mocco"]}, {}, "row co2l_mocco", "Did you mean co2l_moco?"),
    "preset": ({"rows": ["lwf:orignal"]}, {}, "row lwf:orignal", "Did you mean 'original'?"),
    "value": ({}, WRONG, "row zero_shot", "method.frame_norm: is not one of none, l2 (got 'l3')"),
    "setting": ({"rows": ["lwf"]}, {"method.frame_nom": "l2"}, "row lwf", "method.frame_nom: no such setting"),
    "searcher": ({"search": {"searcher": "bayes"}}, {}, "searcher", "'bayes'"),
    "timing": ({"search": {"scheduler": "asha"}}, {}, "search.scheduler", "and this table has 2 (got 'asha')"),
    "trials": ({"search": {"trials": "many"}}, {}, "search.trials", "'many'"),
    "protocol": ({"protocol": "cvlm", "stream": "shapes-cvlm"}, {}, "", "--stream: small is evaluated as ctvr"),
}


@pytest.mark.wording
@pytest.mark.parametrize(("more", "overrides", "setting", "said"), REFUSED.values(), ids=REFUSED)
def test_a_table_that_cannot_run_is_refused_in_one_line(few, execution, more, overrides, setting, said):
    refused(lambda: plan_sweep(request(few, preset(**more), **overrides), execution), said, settings=(setting,))


def test_a_table_that_exists_is_not_overwritten(few, execution):
    write_plan(trial_plan(execution, "t"), execution.folder("t"))
    refused(lambda: jobs.sweep(request(few), execution), "--resume", "t")


def test_the_plan_of_a_table_describes_its_rows_and_runs(few, execution):
    planned = plan_sweep(request(few), execution)
    few_tracker, room = execution.tracker("few"), Capacity(2, 0, 2)
    text = describe_request(planned) + describe_plan(
        planned, room, 0, replace(execution, gpus_per_trial=0), few_tracker
    )
    assert "table t: T, on small, 2 tasks" in text
    assert "searched   clip4clip, tvr_plus_cl" in text
    assert "zero_shot, tvr_plus_cl:untrained (not searched)" in text
    assert "3 for each row, 6 in all, at random, scheduler halving in brackets of 8 (points that train" in text
    assert "confirms   nothing: the best trial is accepted without a test" in text
    assert "chosen by  R@1 gain over zero-shot on val videos" in text
    assert "all rows over 2 seeds on test videos: 6 runs in one rerun" in text
    cheap = plan_sweep(request(few, preset(search={"trials": 0})), execution)
    text = describe_request(cheap) + describe_plan(cheap, room, 0, execution, few_tracker)
    assert "none: every row runs its listed settings" in text
    assert "chosen by" not in text


# ------------------------------------------------------------------------------------------- how it ends


def searched(
    planned: SweepPlan, execution: ExecutionConfig, gains: dict[str, list[float]]
) -> tuple[Tracker, dict[str, str]]:
    """Return the table's searches as MLflow has them: gains of the complete trials of each row."""
    tracker = execution.tracker("small")
    parents = {"": tracker.open_sweep("t", "small", {})}
    for name, search in planned.searches.items():
        parents[name] = tracker.open_sweep(search.name, "small", {"search.metric": GAIN})
        for number, gain in enumerate(gains.get(name, [])):
            tags = {"ctvr.presets": ",".join(search.experiment.presets), "ctvr.split": "val"}
            settings = {**search.experiment.settings, "optim.weight_decay": number / 10}
            run = tracker.open_run("small", f"{name}-{number}", settings, parents[name], tags)
            tracker.log_task(run, 2, {GAIN: gain, "cost/seconds_task": 2.0})
            tracker.set_tags(run, {"ctvr.complete": "true"})
    return tracker, parents


def outcome(complete: int) -> SearchOutcome:
    return SearchOutcome(3, complete, 0, 3 - complete, 0, 1.0)


@pytest.fixture
def reruns(monkeypatch) -> list:
    """Return the runs of the rerun without running them."""
    found: list = []

    def keep(name, runs, execution, tracker, settings, again, direction):
        found.append((name, runs, settings, again, direction))
        return "the table"

    monkeypatch.setattr(jobs, "execute_rerun", keep)
    return found


def test_all_winners_and_seeds_are_one_rerun(few, execution, reruns):
    planned = plan_sweep(replace(request(few), direction="both"), execution)
    tracker, parents = searched(planned, execution, {"clip4clip": [1.0, 3.0, 2.0], "tvr_plus_cl": [0.5]})
    outcomes = {"clip4clip": outcome(3), "tvr_plus_cl": outcome(1)}
    text = jobs._conclude(planned, outcomes, parents, execution, tracker)
    assert text.endswith("the table")
    assert "clip4clip: 3 complete, 0 stopped early, 0 failed; best R@1 gain over zero-shot +3.00" in text
    ((name, runs, settings, again, direction),) = reruns
    assert (name, settings["rerun_of"], again, direction) == ("t", "t", "ctvr sweep --resume t", "both")
    assert [(run.experiment.name, run.experiment.run.seed) for run in runs] == [
        ("zero_shot", 1),
        ("clip4clip", 1),
        ("clip4clip", 2),
        ("tvr_plus_cl", 1),
        ("tvr_plus_cl", 2),
        ("tvr_plus_cl", 1),
    ]
    assert [run.experiment.optim.epochs == 0 for run in runs[1:]] == [False, False, False, False, True]
    assert {run.experiment.evaluation.split for run in runs} == {"test"}
    assert runs[1].experiment.optim.weight_decay == 0.1  # of the trial with +3
    unsearched = {"ctvr.place": "000", "ctvr.table": "T", "ctvr.row": "zero_shot", "ctvr.searched": "zero_shot:0"}
    assert runs[0].tags == unsearched  # no `ctvr.table_name`: the table is none of the package
    assert runs[3].tags == {
        "ctvr.place": "002",
        "ctvr.table": "T",
        "ctvr.row": "tvr_plus_cl",
        "ctvr.note": "a | b",
        "ctvr.searched": "tvr_plus_cl:1",
        "ctvr.search_seconds": "2.0",
        "ctvr.selection": "R@1 gain over zero-shot on val videos",
    }
    found = tracker.find_sweep("t")
    assert found is not None
    assert found.status == "FINISHED"


def verdict_of(planned: SweepPlan, row: int, is_confirmed: bool) -> ConfirmationResult:
    experiment = planned.rows[row].experiment
    best = resolve({**experiment.settings, "optim.weight_decay": 0.1}, None, experiment.presets)
    name = planned.rows[row].search.name
    return ConfirmationResult(name, experiment, best, "trial", is_confirmed, Difference(4.0, 1.0, 7.0, 0.01), 1, 3, 4.5)


def test_rerun_uses_the_confirmed_settings_and_fresh_seeds(few, execution, reruns, monkeypatch):
    planned = plan_sweep(request(few, preset(search={"trials": 3, "confirm": 1})), execution)
    tracker, parents = searched(planned, execution, {"clip4clip": [1.0, 3.0], "tvr_plus_cl": [0.5, 1.5]})
    asked: list = []

    def confirm(name, listed, num_tasks, execution, tracker, search, again):
        asked.extend(listed)
        made = tracker.open_sweep("t-confirm", "small", {})
        tracker.open_run("small", "c", {"seed": 2}, made, {CONFIRMS: "t-clip4clip"})
        verdicts = [verdict_of(planned, 1, True), verdict_of(planned, 2, False)]
        return {verdict.sweep: verdict for verdict in verdicts}

    monkeypatch.setattr(jobs, "confirm", confirm)
    text = jobs._conclude(planned, dict.fromkeys(planned.searches, outcome(2)), parents, execution, tracker)
    assert [(each.sweep, each.name) for each in asked] == [
        ("t-clip4clip", "recommended"),
        ("t-clip4clip", "clip4clip-1"),
        ("t-tvr_plus_cl", "recommended"),
        ("t-tvr_plus_cl", "tvr_plus_cl-1"),
    ]
    ((_, runs, *_),) = reruns
    assert [run.experiment.run.seed for run in runs[1:]] == [1, 3, 1, 3, 1]
    assert [run.experiment.optim.weight_decay for run in (runs[1], runs[3])] == [
        0.1,
        planned.rows[2].experiment.optim.weight_decay,
    ]
    assert (runs[1].tags["ctvr.searched"], runs[3].tags["ctvr.searched"]) == ("clip4clip:2", "tvr_plus_cl:0")
    assert runs[1].tags["ctvr.note"].startswith("confirmed; difference from them 4.00 [1.00, 7.00] p=0.010* on")
    assert "a | b | the recommended settings; the best of 2 trials is NOT confirmed" in runs[3].tags["ctvr.note"]
    assert "t-clip4clip: confirmation: trial against the recommended settings: 4.00" in text


def test_row_without_a_winner_is_reported_at_the_end(few, execution, reruns):
    planned = plan_sweep(request(few), execution)
    tracker, parents = searched(planned, execution, {"clip4clip": [1.0]})
    outcomes = {"clip4clip": outcome(1), "tvr_plus_cl": outcome(0)}
    with pytest.raises(RunsFailed, match="the table\nrows without a winner, missing from the table: tvr_plus_cl"):
        jobs._conclude(planned, outcomes, parents, execution, tracker)
    assert {run.tags["ctvr.row"] for run in reruns[0][1]} == {"zero_shot", "clip4clip", "tvr_plus_cl:untrained"}
    found = tracker.find_sweep("t")
    assert found is not None
    assert found.status == "FAILED"


def test_an_interrupted_rerun_leaves_the_table_to_be_resumed(few, execution, monkeypatch):
    def stop(*arguments: object) -> str:
        raise Interrupted("go on")

    monkeypatch.setattr(jobs, "execute_rerun", stop)
    planned = plan_sweep(request(few, preset(search={"trials": 0})), execution)
    tracker, parents = searched(planned, execution, {})
    with pytest.raises(Interrupted, match="go on"):
        jobs._conclude(planned, {}, parents, execution, tracker)
    found = tracker.find_sweep("t")
    assert found is not None
    assert found.status == "KILLED"


def test_a_table_is_resumed_as_it_was_asked_for(few, execution, monkeypatch):
    asked = SweepRequest("t", few, preset(seeds=4), {"optim.epochs": "1"}, "v2t", 2)
    write_plan(trial_plan(execution, "t"), execution.folder("t"), request=asdict(asked), where={"nodes": 1})
    found: list[SweepPlan] = []

    def drive(planned: SweepPlan, execution: ExecutionConfig, resumed: TrialPlan | None) -> str:
        assert resumed is not None  # it keeps the number of brackets at once of its plan
        found.append(planned)
        return "went on"

    monkeypatch.setattr(jobs, "_drive", drive)
    assert jobs.resume("t", execution) == "went on"
    assert found[0].request == asked
