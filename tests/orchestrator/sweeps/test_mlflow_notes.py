"""Notes of a sweep and its rerun on MLflow's pages, read back by MLflow's own client."""

import json

import pytest
from mlflow.models import get_model_info

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.on_ray.plan import GAIN, SearchConfig
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.metric_names import ACCURACY
from ctvr.orchestrator.sweeps import mlflow_notes
from ctvr.orchestrator.sweeps.comparison import CHOICE
from ctvr.orchestrator.sweeps.selection import best_trials
from ctvr.orchestrator.tracking.internals import KIND, NOTE, TRAINING
from ctvr.orchestrator.tracking.mlflow_ui import OUR_VIEW, WIDTH, page_of_runs, short_name, write_mlmodel
from tests.refusing import refuses

SPACE = {"method.lr": None, "method.lr_other": None}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((3, "", 12.5, {"method.lr": "1e-05", "base.beta": 0.4}), "#3 +12.5 lr=1e-05 beta=0.4"),
        ((4, "halving after task 2", -0.25, {"method.lr": 3e-06}), "#4 stop@2 -0.2 lr=3e-06"),
        ((None, "", None, {}), ""),
        ((11, "", 1.0, {f"method.setting{n}": n for n in range(9)}), "#11 +1.0 setting0=0 setting1=1 setting2…"),
    ],
)
def test_a_trials_name_begins_with_what_tells_it_apart(words, name):
    assert short_name(*words) == name
    assert len(name) <= WIDTH


@pytest.fixture(scope="module")
def execution(tmp_path_factory) -> ExecutionConfig:
    """Return a sweep of three trials and its rerun, in MLflow."""
    execution = ExecutionConfig(runs=tmp_path_factory.mktemp("shown"))
    tracker = execution.tracker("few")
    parent = tracker.open_sweep("s", "few", {})
    mlflow_notes.write_sweep_note(tracker, parent, "s", "Which settings are best?", SearchConfig(trials=3), SPACE)
    for number, (rate, gain) in enumerate(((1e-6, 1.0), (1e-5, 4.25), (1e-3, -3.0))):
        name, tags = f"s-clip4clip-{number}", {"ctvr.number": f"{number:03d}", "ctvr.trial": f"s-clip4clip-{number}"}
        run = tracker.open_run("few", name, {"method.lr": rate, "method.lr_other": 1}, parent, tags)
        tracker.log_history(run, {1: {GAIN: gain}, 2: {GAIN: gain, "stream/t2v/r1": 40 + gain}})
        tracker.set_tags(run, {"ctvr.stopped": "halving after task 2"} if gain < 0 else {"ctvr.complete": "true"})
    for _ in range(2):  # a sweep that is resumed when it has ended says it again
        mlflow_notes.annotate_search(tracker, parent, "s", SPACE, SearchConfig())
        mlflow_notes.append_confirmation(tracker, parent, ["confirmation: it takes their place"])
    again = tracker.open_sweep("s-confirm-1", "few", {})
    for seed, candidate in enumerate(("recommended", "s-clip4clip-1"), start=1001):
        tags = {"ctvr.method": "clip4clip", "ctvr.candidate": candidate, "ctvr.complete": "true"}
        run = tracker.open_run("few", f"s-confirm-1-{seed}", {"seed": seed}, again, tags)
        tracker.log_task(run, 2, {"stream/t2v/r1": 45.25 + (candidate == "recommended")})
    mlflow_notes.annotate_confirmation_runs(
        tracker, again, "s-confirm-1", ["s"], ["confirmation: it takes their place"], ["s-clip4clip-1"]
    )
    final = tracker.open_sweep("s-final-1", "few", {})
    (execution.runs / "tables/s-final-1").mkdir(parents=True)
    (execution.runs / "tables/s-final-1/few.md").write_text("| Method |\n")
    settings = {"method": "clip4clip", "stream": "few"}
    write_mlmodel(execution.runs, resolve(settings))
    for seed, choice, r1 in ((2, "searched", 50.0), (1, "searched", 44.0), (1, "recommended", 70.0)):
        tags = {"ctvr.method": "clip4clip", CHOICE: choice, "ctvr.complete": "true", "ctvr.note": "confirmed; ..."}
        run = tracker.open_run("few", f"f-{choice}-{seed}", {**settings, "seed": seed}, final, tags)
        tracker.log_task(run, 2, {"stream/t2v/r1": r1, GAIN: r1 - 40})
        tracker.log_artifacts(run, [execution.runs / "MLmodel"], into="model")
    mlflow_notes.annotate_rerun(tracker, final, "s-final-1", "s", execution)
    return execution


def test_trials_have_short_names_on_the_pages_and_their_own_in_commands(execution, capsys):
    tracker = execution.tracker()
    trials = tracker.find_runs(sweep="s")
    names = [tracker.client.get_run(run.run_id).info.run_name for run in trials]
    assert names == ["#0 +1.0 lr=1e-06", "#1 +4.2 lr=1e-05", "#2 stop@2 -3.0 lr=0.001"]
    assert [run.name for run in trials] == ["s-clip4clip-0", "s-clip4clip-1", "s-clip4clip-2"]
    assert best_trials(tracker, "s", 1)[0].name == "s-clip4clip-1"


def test_a_sweeps_page_has_its_question_and_its_result(execution):
    sweep = execution.tracker().find_sweep("s")
    assert sweep is not None
    note = sweep.tags[NOTE]
    best = best_trials(execution.tracker(), "s", 1)[0]
    assert note.startswith(f"**Which settings are best?**\n\n**Winner**: [{best.name}](")
    assert "\n\n- searched: `method.lr`, `method.lr_other`\n- budget: 3 trials by tpe, " in note
    for said in ("ctvr sweep --resume s`", "`method.lr=1e-05`", f"/runs/{best.run_id})", "ctvr report s`"):
        assert note.count(said) == 1
    assert note.endswith("\n- confirmation: it takes their place")
    assert {key: sweep.last(key) for key in ("stream/t2v/r1", GAIN, "trials/complete", "trials/stopped")} == {
        "stream/t2v/r1": (2, 44.25),
        GAIN: (2, 4.25),
        "trials/complete": (2, 2.0),
        "trials/stopped": (2, 1.0),
    }


def test_a_sweep_with_several_objectives_has_a_front_and_no_winner_on_its_page(tmp_path):
    tracker = ExecutionConfig(runs=tmp_path).tracker("few")
    search = SearchConfig(metric=f"{GAIN},stream/t2v/bwf", mode="max,min")
    parent = tracker.open_sweep("s", "few", {"search.metric": search.metric, "search.mode": search.mode})
    mlflow_notes.write_sweep_note(tracker, parent, "s", "Which settings are best?", search, SPACE)
    for number, (gain, forgetting) in enumerate(((4.0, 1.0), (5.0, 2.0), (3.0, 3.0))):
        run = tracker.open_run("few", f"s-{number}", {"method.lr": number, "method.lr_other": 1}, parent, {})
        tracker.log_history(run, {2: {GAIN: gain, "stream/t2v/bwf": forgetting}})
        tracker.set_tags(run, {"ctvr.complete": "true"})
    for _ in range(2):
        mlflow_notes.annotate_search(tracker, parent, "s", SPACE, search)
        mlflow_notes.append_confirmation(tracker, parent, ["confirmed front\ns-1"])
    mlflow_notes.annotate_confirmation_runs(tracker, parent, "s-confirm-1", ["s"], ["confirmed front\ns-1"], [""])
    confirmed = tracker.client.get_run(parent).data.tags[NOTE]
    assert confirmed.startswith("**The Pareto front and the recommended settings, repeated")
    assert "chosen" not in confirmed
    mlflow_notes.write_sweep_note(tracker, parent, "s", "Which settings are best?", search, SPACE)
    mlflow_notes.annotate_search(tracker, parent, "s", SPACE, search)
    sweep = tracker.find_sweep("s")
    assert sweep is not None
    note = sweep.tags[NOTE]
    assert "**Pareto front** by R@1 gain over zero-shot, forgetting\n```\nPareto front: 2 of 3 complete trials" in note
    assert "scheduler halving; Pareto front by R@1 gain over zero-shot, forgetting\n- resume" in note
    assert "Winner" not in note
    assert (sweep.last("trials/complete"), sweep.last(GAIN)) == ((0, 3.0), None)


def test_runs_of_a_confirmation_are_distinguished_by_their_candidate(execution):
    tracker = execution.tracker()
    runs = [tracker.client.get_run(run.run_id) for run in tracker.find_runs(sweep="s-confirm-1")]
    assert [run.info.run_name for run in runs] == ["recommended s1001 R@1 46.2", "#1 s1002 R@1 45.2"]
    assert {run.data.tags["mlflow.source.name"] for run in runs} == {"ctvr"}
    parent = tracker.find_sweep("s-confirm-1")
    assert "it takes their place" in parent.tags[NOTE]
    assert (parent.last("stream/t2v/r1"), parent.last("runs/complete")) == ((2, 45.25), (2, 2.0))  # of what is kept


def test_an_experiment_says_what_it_holds_and_how_to_look_at_it(execution):
    tracker = execution.tracker()
    found = tracker.client.get_experiment_by_name("few")
    assert found.tags[KIND] == TRAINING
    assert "number of tasks learned" in found.tags[NOTE]
    shown = json.loads(json.loads(found.tags[OUR_VIEW])["state"])
    parameters, metrics = ["params.`method`", "params.`optim.epochs`"], ["stream/t2v/r1", "stream/t2v/r1_gain"]
    assert shown["selectedColumns"][:4] == [*parameters, *(f"metrics.`{each}`" for each in metrics)]
    assert [chart["metricKey"] for chart in shown["compareRunCharts"]][:2] == metrics
    assert {chart["metricSectionId"] for chart in shown["compareRunCharts"]} == {
        section["uuid"] for section in shown["compareRunSections"]
    }
    assert set(shown["columnWidths"]) == set(shown["columnOrder"])  # those without a width stay narrow
    tracker.client.set_experiment_tag(found.experiment_id, OUR_VIEW, "{}")  # as a former version left it
    ((stream, page),) = execution.tracker().pages()
    assert (stream, page) == ("few", page_of_runs(found.experiment_id))
    assert tracker.client.get_experiment_by_name("few").tags[OUR_VIEW] == found.tags[OUR_VIEW]


def test_rerun_page_has_its_table_and_registers_the_winner(execution):
    tracker = execution.tracker()
    final, client = tracker.find_sweep("s-final-1"), tracker.client
    assert final is not None
    assert [file.path for file in client.list_artifacts(final.run_id, "table")] == ["table/few.md"]
    runs = tracker.find_runs(sweep="s-final-1")
    assert client.get_run(runs[0].run_id).info.run_name == "clip4clip searched s2 R@1 50.0"
    first = next(run for run in runs if run.name == "f-searched-1")  # not what was best on test videos
    for alias in ("best", "best-few"):
        version = client.get_model_version_by_alias(mlflow_notes.MODEL, alias)
        assert version.run_id == first.run_id
    signature = get_model_info(client.download_artifacts(first.run_id, "model")).signature
    assert signature.inputs.input_names() == ["text"]
    assert "version 1 of the model" in final.tags[NOTE]


def test_image_runs_show_accuracy_and_refuse_search(tmp_path):
    execution = ExecutionConfig(runs=tmp_path)
    tracker = execution.tracker("painted")
    parent, final = tracker.open_sweep("s", "painted", {}), tracker.open_sweep("s-final-1", "painted", {})
    settings = {"method": "image_finetune", "stream": "painted", "seed": 3}
    tags = {"ctvr.method": "image_finetune", "ctvr.complete": "true", "ctvr.split": "test"}
    for sweep, name in ((parent, "one"), (final, "two")):
        run = tracker.open_run("painted", name, settings, sweep, tags)
        tracker.log_task(run, 2, {ACCURACY: 71.25, "stream/knn/forgetting": 2.0})
    mlflow_notes.annotate_search(tracker, parent, "s", {"method.lr": None}, SearchConfig(metric=ACCURACY))
    mlflow_notes.annotate_rerun(tracker, final, "s-final-1", "s", execution)
    searched = tracker.find_sweep("s")
    assert searched is not None
    assert "on test images" in searched.tags[NOTE]
    assert "ctvr search" not in searched.tags[NOTE]
    (run,) = tracker.find_runs(sweep="s-final-1")
    assert tracker.client.get_run(run.run_id).info.run_name == "image_finetune s3 acc 71.2"
    with refuses("model"):
        load(run.run_id, execution)
