"""Records of a run in MLflow: every metric once, however often the run was interrupted."""

import json
import shutil
from pathlib import Path

import pytest

from ctvr.methods.base import Capabilities, Method
from ctvr.orchestrator.learning.evaluation.cost import video_cost
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import load_trained
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tracking.internals import NOTE
from ctvr.orchestrator.tracking.recorder import Recorder
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker, create_store


class Stopped(RuntimeError):
    """Simulates the end of the process."""


def track(runs: Path) -> Tracker:
    uri = f"sqlite:///{runs / 'mlflow.db'}"
    create_store(uri, runs, "small")
    return Tracker(uri, runs)


@pytest.fixture
def tracker(runs: Path) -> Tracker:
    return track(runs)


def train(stream: Stream, manifest: str, runs: Path, tracker: Tracker, stop_after: int = 0, **recorder: object) -> str:
    """Record a run of two epochs; it may stop after some task, before the task is reported."""
    settings = {"method": "clip4clip", "stream": manifest, "method.lr": 4e-6}
    made = Recorder(tracker, resolve(settings, stream.settings), "the run", **recorder)

    def report(task, record, seconds):
        if task.index + 1 == stop_after:
            raise Stopped
        made.report(task, record, seconds)

    try:
        result = execute(made.experiment, RunPaths(runs), report=report, on_ready=made.ready)
    except Stopped:
        return made.run_id
    if result.resumed == len(stream.tasks):
        made.complete(result.record)
    return made.run_id


def only_run(tracker: Tracker) -> RunRecord:
    (run,) = Tracker(tracker.uri, tracker.runs).find_runs()
    return run


def counts(tracker: Tracker, run: RunRecord) -> dict[str, list[int]]:
    """Return metric -> the steps at which MLflow has a value, one entry per stored value."""
    return {key: sorted(m.step for m in tracker.client.get_metric_history(run.run_id, key)) for key in run.metrics}


@pytest.fixture(scope="module")
def recorded(decoded: Path, tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """Return the records of one complete run, for all tests of this file; do not write to them."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    shutil.copytree(decoded, runs)
    tracker = track(runs)
    manifest = runs / "small" / "small.json"
    train(load_stream(manifest, runs), str(manifest), runs, tracker)
    return tracker


@pytest.mark.slow
def test_a_complete_run_has_settings_metrics_and_files(recorded):
    tracker, whole = recorded, only_run(recorded)
    assert whole.status == "FINISHED"
    assert whole.tags["ctvr.complete"] == "true"
    assert whole.tags["ctvr.method"] == "clip4clip"
    assert len(whole.tags["ctvr.result"]) == 64
    assert "ctvr.transductive" not in whole.tags
    steps = counts(tracker, whole)
    assert steps["stream/t2v/r1"] == steps["cost/seconds_task"] == [1, 2, 3]
    assert steps["task_03/t2v/r1"] == [3]
    assert len(steps["train/loss/contrastive"]) == 3 * 2  # tasks x epochs
    rows_of_own = json.loads(tracker.download(whole.run_id, "matrix_own.json").read_text())
    for name in ("own", "union"):
        rows = json.loads(tracker.download(whole.run_id, f"matrix_{name}.json").read_text())
        assert [len(row) for row in rows] == [1, 2, 3]
    assert tracker.download(whole.run_id, "matrices.png").stat().st_size > 0
    note = whole.tags[NOTE]
    assert f"R@1 {whole.metrics['stream/t2v/r1'][-1][1]:.2f}" in note.splitlines()[0]
    assert f"| task 3 | {' | '.join(f'&ensp;{value:.1f}' for value in rows_of_own[-1])} |" in note
    assert f"`ctvr runs show {whole.run_id[:8]}`" in note
    assert json.loads(tracker.download(whole.run_id, "config.json").read_text())["method.lr"] == 4e-6
    ranks = json.loads(tracker.download(whole.run_id, "ranks.json").read_text())
    assert len(ranks["query ids"]) == len(ranks["ranks"]) > 0
    kept = [ranks[name] for name in ("better", "equal", "own")]
    assert ranks["ranks"] == [1 + better + equal / 2 for better, equal, _ in zip(*kept, strict=True)]
    videos = ranks["v2t"]["video ids"]
    assert set(videos) == {query.rpartition("#")[0] for query in ranks["query ids"]}
    assert len(videos) == len(ranks["v2t"]["own"])
    assert sum(ranks["v2t"]["ranks"]) / len(videos) == pytest.approx(whole.metrics["stream/v2t/meanr"][-1][1])
    assert json.loads(tracker.download(whole.run_id, "environment.json").read_text())["python"]
    assert whole.settings["stream"] == str(tracker.runs / "small" / "small.json")
    (read,) = tracker.client.get_run(whole.run_id).inputs.dataset_inputs
    assert whole.tags["ctvr.stream_digest"].startswith(read.dataset.digest)
    assert json.loads(read.dataset.profile)["tasks"] == 3


@pytest.mark.slow
def test_a_run_of_a_sweep_keeps_similarities_and_model_and_stores_nothing_twice(
    small_stream, manifest, runs, tracker, monkeypatch
):
    import torch

    monkeypatch.setattr(Method, "similarities", lambda self: {"texts": torch.tensor([[1.0, -0.5], [-0.5, 1.0]])})
    parent = tracker.open_sweep("s", "small", {})
    how = {"parent": parent, "tags": {"ctvr.trial": "t"}, "keep_model": True}
    run_id = train(small_stream, manifest, runs, tracker, **how)
    assert json.loads(tracker.download(run_id, "similarity.json").read_text()) == {"texts": [[1.0, -0.5], [-0.5, 1.0]]}
    assert tracker.download(run_id, "similarity.png").read_bytes()[:4] == b"\x89PNG"
    assert tracker.download(run_id, "similarity.pdf").read_bytes()[:4] == b"%PDF"
    (run,) = tracker.find_runs(sweep=parent)
    assert run.tags["ctvr.trial"] == "t"
    assert run.tags["mlflow.parentRunId"] == parent
    trained = load_trained(tracker.download(run_id, "model"))
    assert isinstance(trained.method, Method)
    assert trained.experiment.settings["method"] == "clip4clip"
    before = counts(tracker, run)
    train(small_stream, manifest, runs, Tracker(tracker.uri, runs), **how)
    assert counts(tracker, only_run(tracker)) == before


def test_the_recorded_matrix_is_the_recorded_metric(recorded):
    tracker, whole = recorded, only_run(recorded)
    rows = json.loads(tracker.download(whole.run_id, "matrix_union.json").read_text())
    for step, row in enumerate(rows, start=1):
        assert row == [dict(whole.metrics[f"task_{i + 1:02d}/t2v/r1"])[step] for i in range(step)]


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 3])
def test_run_stopped_before_its_report_leaves_equal_records(
    recorded, small_stream, manifest, tracker, runs, stop_after
):
    train(small_stream, manifest, runs, tracker, stop_after=stop_after)
    train(small_stream, manifest, runs, tracker)
    again, unbroken = only_run(tracker), only_run(recorded)
    assert again.status == "FINISHED"
    assert again.tags["ctvr.complete"] == "true"
    assert counts(tracker, again) == counts(recorded, unbroken)
    for key in unbroken.metrics:
        if not key.startswith(("cost/", "perf/")):
            assert again.metrics[key] == unbroken.metrics[key]


@pytest.mark.parametrize(
    ("settings", "split"),
    [
        ({}, ""),
        ({"evaluation.select": "best"}, "val"),
        ({"evaluation.select": "best", "evaluation.select_split": "same"}, "test"),
    ],
)
def test_the_split_on_which_epochs_were_chosen_is_kept(small_stream, manifest, runs, tracker, settings, split):
    settings = {"method": "zero_shot", "stream": manifest, **settings}
    made = Recorder(tracker, resolve(settings, small_stream.settings), "r")
    result = execute(made.experiment, RunPaths(runs), report=made.report, on_ready=made.ready)
    run = only_run(tracker)
    assert run.tags["ctvr.select_split"] == split
    assert made.experiment.key(result.stream, run.tags["ctvr.frames"]) == result.key  # `explain` relies on it


def test_a_transductive_method_is_marked(small_stream, manifest, runs, tracker, monkeypatch):
    from ctvr.methods.zero_shot import ZeroShot

    monkeypatch.setattr(ZeroShot, "capabilities", lambda config: Capabilities(is_transductive=True))
    made = Recorder(tracker, resolve({"method": "zero_shot", "stream": manifest}, small_stream.settings), "r")
    execute(made.experiment, RunPaths(runs), report=made.report, on_ready=made.ready)
    assert only_run(tracker).tags["ctvr.transductive"] == "true"


def test_a_control_that_trains_nothing_counts_no_parameters(small_stream, manifest, runs, tracker):
    made = resolve({"method": "xpool", "stream": manifest}, small_stream.settings, ["untrained"])
    recorder = Recorder(tracker, made, "r")
    execute(made, RunPaths(runs), report=recorder.report, on_ready=recorder.ready)
    assert only_run(tracker).last("cost/trained_parameters")[1] == 0
    assert only_run(tracker).last("stream/t2v/bwf")[1] == 0


def test_video_cost_counts_a_new_video_when_tokens_are_stored(learned):
    """zero_shot trains no weights, so the output of its whole tower is stored; a new video still passes the whole
    tower.
    """
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.jobs.load_model import load

    execution = ExecutionConfig(runs=learned)
    model = load("zero_shot", execution)
    run = execution.tracker().find_runs(tags={"ctvr.method": "zero_shot"})[0]
    frames = next(model.frames_of(model.gallery()[0].items[:1]))
    expected = video_cost(model.trained.method, frames).macs / 1e9
    assert expected > 0
    assert run.last("cost/video_gmacs")[1] == pytest.approx(expected)
