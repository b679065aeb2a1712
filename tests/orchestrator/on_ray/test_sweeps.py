"""Sweeps, workers, kills and reruns on a real Ray: the package's own, or one that a killed command started."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctvr.methods import trust
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.report import make_report
from ctvr.orchestrator.learning.record.run_state import MEASURED
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.on_ray.plan import GAIN, SearchOutcome, TrialPlan
from ctvr.orchestrator.on_ray.tune import run_specs
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.sweeps.front import FrontResult
from ctvr.orchestrator.sweeps.plan import request_search
from ctvr.orchestrator.sweeps.rerun import rerun
from ctvr.orchestrator.sweeps.selection import best_trials
from ctvr.orchestrator.sweeps.sweep import sweep
from ctvr.orchestrator.sweeps.table import made_tables
from ctvr.orchestrator.sweeps.verdict import read_verdict
from ctvr.orchestrator.tracking.run_record import RunRecord
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.chaos.sweeps import TITLES
from tests.chaos.watch import below
from tests.orchestrator.on_ray.sockets import listening, offer_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE = 600  # seconds, maximal duration of any step on a loaded machine


@pytest.fixture
def execution(runs: Path) -> ExecutionConfig:
    return ExecutionConfig(runs=runs)


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
    return found


def plan_of(execution: ExecutionConfig, manifest: str, name: str, **more: Any) -> TrialPlan:
    uri = execution.tracker("small").uri
    settings = {"method": "clip4clip", "stream": manifest, "method.lr": 4e-6}
    return TrialPlan(
        name, str(execution.runs), "", uri, None, str(execution.folder(name)), settings, cpus_per_worker=0.9, **more
    )


def commits(runs: Path) -> Store:
    return Store.open(str(runs / "store"), runs / "cache")


class Finished:
    """Return the commits that trials add to a runs folder with existing zero-shot curves and runs."""

    def __init__(self, runs: Path) -> None:
        self.store = commits(runs)
        self._before = set(self.store.list("commits"))

    def __call__(self, task: int) -> list[str]:
        new = set(self.store.list("commits")) - self._before
        return [key for key in new if key.endswith(f"task_{task:03d}") and not key.startswith("zero-")]


def without_times(commit: dict[str, Any]) -> dict[str, Any]:
    """Return a commit without the times, which differ between equal runs."""
    return {**commit, "record": {name: v for name, v in commit["record"].items() if name not in MEASURED}}


def assert_equals_an_unbroken_run(runs: Path, settings: dict[str, Any], manifest: str, tmp_path: Path) -> None:
    """Check that the last commit of a run under Ray equals that of a plain process, digests of weights and galleries
    included.
    """
    other = tmp_path / "unbroken"
    shutil.copytree(runs, other, ignore=shutil.ignore_patterns("commits", "weights", "gallery", "sweeps", "mlflow*"))
    stream = load_stream(manifest, other)
    experiment = resolve(settings, stream.settings)
    result = execute(experiment, RunPaths(other))
    key = f"{result.key}/task_{len(stream.tasks):03d}"
    assert without_times(commits(runs).get_json("commits", key)) == without_times(
        commits(other).get_json("commits", key)
    )


def steps(tracker: Tracker, run: RunRecord, key: str) -> list[int]:
    return sorted(metric.step for metric in tracker.client.get_metric_history(run.run_id, key))


# ---------------------------------------------------------------------------------------------- one cluster


def test_a_sweep_with_early_stopping_ends_and_is_rerun_and_tabulated(two_cpus, execution, manifest, capsys):
    import ray
    from ray.util import placement_group_table

    request = request_search(
        method="clip4clip",
        stream=manifest,
        name="s",
        overrides={"optim.weight_decay": "0.2", "method.train_scale": "true", "method.frame_norm": "none"},
        search={
            "searcher": "grid",
            "grace_tasks": 2,
            "confirm": 1,
            "confirm_seeds": 2,
        },  # one task of three videos is too small to discriminate
        space=("method.lr=0,4e-5,1e-3,3e-3",),  # with optim.lr_scale=50 the last two destroy the backbone
        seeds=1,
        baselines=("zero_shot",),
    )
    text = sweep(request, execution)

    said = capsys.readouterr().err
    assert "4 by grid, scheduler halving in brackets of 8" in said
    assert said.count("stopped after task 2: others are better") == 2
    assert "2 complete, 2 stopped early, 0 failed" in text
    assert "\nzero_shot " in text
    written = "".join(file.read_text() for file in sorted((execution.runs / "tables").rglob("*.md")))
    assert "settings of the best of 4 trials" in written
    wait_for(lambda: all(group["state"] == "REMOVED" for group in placement_group_table().values()), 60)
    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], 60)

    tracker = execution.tracker()
    parent = tracker.find_sweep("s")
    assert parent is not None
    assert (parent.status, parent.tags["ctvr.complete_trials"]) == ("FINISHED", "2")
    trials = tracker.find_runs(sweep="s")
    assert [run.status for run in trials] == ["FINISHED"] * 4
    assert {run.tags["mlflow.parentRunId"] for run in trials} == {parent.run_id}
    complete = [run for run in trials if run.tags.get("ctvr.complete")]
    stopped = [run for run in trials if run.tags.get("ctvr.stopped")]
    assert {float(run.settings["method.lr"]) for run in stopped} == {1e-3, 3e-3}
    assert len(complete) == 2
    for run in complete:
        assert steps(tracker, run, GAIN) == steps(tracker, run, "stream/t2v/bwf") == [1, 2, 3]
        assert steps(tracker, run, "task_02/t2v/r1") == [2, 3]
        names = {file.path for file in tracker.client.list_artifacts(run.run_id)}
        assert {"config.json", "environment.json", "matrix_own.json", "matrix_union.json", "ranks.json"} <= names

    # The same rerun again has nothing to do, and makes the same table
    again = rerun("s", execution, 1, 1, ("zero_shot",))
    assert "3 runs, 3 of them already complete" in capsys.readouterr().err  # zero-shot, recommended, searched
    assert again in text

    # One page about the sweep and its rerun: settings, results, the confirmation, and forgetting
    make_report("s", execution, execution.runs / "page.html")
    shown = (execution.runs / "page.html").read_text()
    assert "Which settings of clip4clip are best on" in shown
    assert "4 trials, 2 of them complete; searched by grid, halving" in shown
    assert f"{best_trials(tracker, 's', 1)[0].name}, run" in shown
    assert "against the recommended settings" in shown
    assert shown.count("were found, ") == 3  # of its rerun: zero-shot, recommended, searched
    (final,) = {run.tags["ctvr.sweep"] for run in tracker.find_runs() if "-final-" in run.tags["ctvr.sweep"]}
    make_report(final, execution, execution.runs / "final.html")
    shown = (execution.runs / "final.html").read_text()
    assert "Which settings of clip4clip are best on" in shown  # the search that it reruns
    assert '<h2 id="searched">' in shown
    assert shown.count("stopped: halving after task 2") == 2
    assert shown.count("were found, ") == 3  # zero-shot, recommended, searched
    assert not re.search(r"https?://|<script|url\(", shown)


def test_a_sweep_with_two_objectives_confirms_and_tabulates_its_front(two_cpus, execution, manifest, capsys):
    request = request_search(
        method="lora",
        stream=manifest,
        name="f",
        overrides={"optim.epochs": "1"},
        search={"metric": f"{GAIN},stream/cost/video_gmacs", "mode": "max,min", "searcher": "grid", "confirm": 8}
        | {"confirm_seeds": 2, "scheduler": "none"},
        space=("method.reducer.name=none,tome", "method.reducer.r=2,4 where method.reducer.name=tome"),
        seeds=1,
        baselines=(),
    )
    text = sweep(request, execution)
    assert "rerun      the confirmed front over 1 seed on test videos" in capsys.readouterr().err
    tracker = execution.tracker()
    runs = tracker.find_runs(sweep="f", tags={"ctvr.complete": "true"})
    assert len(runs) == 3
    verdict = read_verdict(tracker, "f")
    assert isinstance(verdict, FrontResult)
    cheapest = min(runs, key=lambda run: run.last("stream/cost/video_gmacs"))
    assert cheapest.settings["method.reducer.r"] == "4"
    assert cheapest.name in {member.name for member in verdict.front}  # nothing costs less, whatever its R@1
    assert all(f"lora (front, {member.name[2:]})" in text for member in verdict.front if member.name != "recommended")
    (trials,) = made_tables(execution, "f")
    assert "gmacs" in {column.key for column in trials.columns}
    noted = {row.runs[0]: [mark for mark in row.marks if "front" in mark] for row in trials.rows}
    assert noted[cheapest.run_id] == ["on the confirmed front of the search"]
    make_report("f", execution, execution.runs / "page.html")
    assert "R@1 gain over zero-shot, GMACs of a video" in (execution.runs / "page.html").read_text()


def test_epoch_rungs_leave_the_surviving_trials_unchanged(two_cpus, execution, manifest, capsys):

    content = json.loads(Path(manifest).read_text())
    one = Path(manifest).with_name("one.json")
    one.write_text(json.dumps({**content, "name": "one", "tasks": content["tasks"][:1]}))
    overrides = {"optim.weight_decay": "0.2", "method.train_scale": "true", "method.frame_norm": "none"}
    request = request_search(
        method="clip4clip",
        stream=str(one),
        name="o",
        overrides={**overrides, "optim.epochs": "4"},
        search={"searcher": "grid", "confirm": 0},
        space=("method.lr=0,1e-6,1e-3,3e-3",),
    )
    text = sweep(request, execution)
    said = capsys.readouterr().err
    assert "compared after epochs 1, 2 of 4" in said
    assert said.count("stopped after epoch 1: others are better") == 2
    assert "2 complete, 2 stopped early, 0 failed" in text
    tracker = execution.tracker()
    trials = tracker.find_runs(sweep="o")
    assert sorted(len(steps(tracker, run, "epoch/t2v/r1")) for run in trials) == [1, 1, 4, 4]
    best = best_trials(tracker, "o", 1)[0]
    settings = {name: best.settings[name] for name in ("method.lr", "optim.epochs", *overrides)}
    again = {"method": "clip4clip", "stream": str(one), "evaluation.split": "val", **settings}
    stream = load_stream(str(one), execution.runs)
    plain = execute(resolve(again, stream.settings), RunPaths(execution.runs), fresh=True)
    assert best.last("stream/t2v/r1") == (1, plain.record.metrics[0]["stream/t2v/r1"])
    assert Store.open(execution.runs / "store").list("pauses") != []  # of the stopped trials: for `ctvr cache gc`


def test_a_scheduler_of_ray_tune_pauses_resumes_and_stops_whole_trials(two_cpus, execution, manifest, capsys):
    """HyperBand for BOHB pauses each trial of its first bracket after task 1, and stops the worse ones."""
    request = request_search(
        method="clip4clip",
        stream=manifest,
        name="h",
        overrides={"optim.epochs": "1"},
        search={"searcher": "grid", "scheduler": "bohb", "confirm": 0},
        space=("method.lr=0,1e-6,1e-5",),
        seeds=1,
        baselines=(),
    )
    text = sweep(request, execution)
    assert "scheduler bohb, which depends on timing" in capsys.readouterr().err
    tracker = execution.tracker()
    trials = tracker.find_runs(sweep="h")
    complete = [run for run in trials if run.tags.get("ctvr.complete")]
    stopped = [run for run in trials if run.tags.get("ctvr.stopped", "").startswith("bohb after task ")]
    assert (len(complete) + len(stopped), len(trials)) == (3, 3)
    assert f"{len(complete)} complete, {len(stopped)} stopped early, 0 failed" in text
    assert {run.status for run in trials} == {"FINISHED"}
    assert [steps(tracker, run, GAIN) for run in complete] == [[1, 2, 3]] * len(complete)  # also after a pause
    (table,) = made_tables(
        execution,
        next(run.tags["ctvr.sweep"] for run in tracker.find_runs() if "-final-" in run.tags.get("ctvr.sweep", "")),
    )
    assert any("scheduler bohb, which depends on timing" in mark for row in table.rows for mark in row.marks)


def run_killed(plan: TrialPlan, settings: dict[str, Any], runs: Path, who: str) -> SearchOutcome:
    """Run a trial of which one process is killed after the first task."""

    def kill_after_the_first_task() -> None:
        wait_for(lambda: finished(1))
        killed.append(max(pid for pid, title in below(os.getpid()).items() if title.startswith(TITLES[who])))
        os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    finished = Finished(runs)
    killer = threading.Thread(target=kill_after_the_first_task)
    killer.start()
    outcome = run_specs(plan, 3, [settings])
    killer.join()
    assert len(killed) == 1
    return outcome


def test_a_killed_trial_goes_on_from_its_last_task_to_the_same_numbers(two_cpus, execution, manifest, tmp_path):
    plan = plan_of(execution, manifest, "killed")
    settings = {"optim.epochs": 30}
    outcome = run_killed(plan, settings, execution.runs, "trial")
    assert (outcome.complete, outcome.failed) == (1, 0)
    tracker = execution.tracker()
    (run,) = tracker.find_runs(sweep="killed")
    assert (run.status, run.tags["ctvr.complete"]) == ("FINISHED", "true")
    assert steps(tracker, run, GAIN) == [1, 2, 3]
    assert len(steps(tracker, run, "train/loss/contrastive")) == 3 * 30
    assert_equals_an_unbroken_run(execution.runs, {**plan.settings, **settings}, manifest, tmp_path)


def test_two_workers_train_as_one_although_one_is_killed(two_cpus, execution, manifest):
    plan = replace(plan_of(execution, manifest, "two"), workers=2)
    assert run_killed(plan, {"seed": 3}, execution.runs, "worker").complete == 1
    (run,) = execution.tracker().find_runs(sweep="two")
    for key in ("stream/t2v/r1", "stream/v2t/r1", GAIN):
        assert all(math.isfinite(value) for _, value in run.metrics[key])
        assert [step for step, _ in run.metrics[key]] == [1, 2, 3]
    alone = execute(
        resolve({**plan.settings, "seed": 3}, load_stream(manifest, execution.runs).settings), RunPaths(execution.runs)
    )
    expected = [row["train/loss/contrastive"] for row in alone.record.training]
    assert [value for _, value in run.metrics["train/loss/contrastive"]] == pytest.approx(expected, rel=1e-3)


# ------------------------------------------------------------------------------------- a driver that is killed


def running(processes: set[int]) -> set[int]:
    listed = subprocess.run(["ps", "-e", "-o", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    alive = {int(pid) for pid, state in (line.split()[:2] for line in listed.splitlines()) if "Z" not in state}
    return processes & alive


def is_training(command: subprocess.Popen[str]) -> bool:
    return any(title.startswith(TITLES["trial"]) for title in below(command.pid).values())


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Return the commands that a test starts; all are ended after it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def start(execution: ExecutionConfig, ray_folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the sweep of a user without Ray settings, whose home folder has no token."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_TMPDIR": str(ray_folder), "HOME": str(ray_folder), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "ctvr", "sweep", "--runs", str(execution.runs), *words]
    return subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_closed(found: dict[str, str], answers: dict[str, int]) -> None:
    """Check that no socket of a local sweep listens on a network, and that the dashboard requires a token."""
    assert any("raylet" in command for command in found.values())
    assert any("ImplicitFunc" in command for command in found.values())
    assert {
        execution: command for execution, command in found.items() if not execution.startswith(("127.", "::1:"))
    } == {}
    assert 401 in answers.values()  # of the dashboard; what gives metrics to anybody on this machine answers 200


def test_killed_and_interrupted_drivers_end_with_the_same_numbers(execution, manifest, tmp_path, started):
    """Without its raylet the second sweep continues by itself.

    No socket is reachable from a network: those of the last command are checked twice a second.
    """
    ray_folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    finished = Finished(execution.runs)
    first = start(
        execution,
        ray_folder,
        *("--name", "s", "--method", "clip4clip", "--stream", manifest, "--searcher", "grid", "--seeds", "0"),
        *("--space", "method.lr=0,4e-5", "--scheduler", "none", "--local-cpus", "2"),
        *("--confirm", "1", "search.confirm_seeds=2"),
        *("optim.weight_decay=0.2", "method.train_scale=true", "method.frame_norm=none", "optim.epochs=30"),
    )
    started.append(first)
    wait_for(lambda: finished(1) or first.poll() is not None)
    first.kill()
    assert first.wait() == -signal.SIGKILL, first.communicate()

    # At once: processes left by Ray may still be dying, and a worker may finish one more task
    second = start(execution, ray_folder, "--resume", "s")
    started.append(second)
    wait_for(lambda: (is_training(second) and finished(2)) or second.poll() is not None)
    raylets = [pid for pid, title in below(second.pid).items() if "/raylet/raylet --raylet_socket_name" in title]
    os.kill(min(raylets), signal.SIGKILL)  # ends the driver from within, past any `except`
    wait_for(lambda: not is_training(second) or second.poll() is not None)
    wait_for(lambda: is_training(second) or second.poll() is not None)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 130, err
    assert out == ""
    # Without a raylet trials finish what they have begun, so the search may be over and its confirmation be stopped
    first_words = (
        r"ctvr: (sweep s|confirmation s-confirm-\w+) is not finished; "
        "its finished tasks and mid-task checkpoints are kept. "
    )
    assert re.match(first_words, err.splitlines()[-1])
    assert err.endswith(f"Resume with: ctvr sweep --resume s --runs {execution.runs}\n")
    assert "Traceback" not in err
    assert err.count("restarting") == 1
    assert "core_worker" not in err

    third = start(execution, ray_folder, "--resume", "s")
    started.append(third)
    children: set[int] = set()
    found: dict[str, str] = {}  # address -> command
    answers: dict[str, int] = {}
    while third.poll() is None:
        children |= set(below(third.pid))
        found |= listening({third.pid, *children})
        for address, command in found.items():
            if "dashboard" in command.lower() and not answers.get(address):
                answers[address] = offer_job(address, f"touch {execution.runs / 'owned'}")
        time.sleep(0.5)
    out, err = third.communicate(timeout=PATIENCE)
    assert third.returncode == 0, err
    assert_closed(found, answers)
    assert not (execution.runs / "owned").exists()
    assert "2 complete, 0 stopped early, 0 failed" in out
    assert "none decoded: all are in the store" in err
    wait_for(lambda: not running(children))  # and no process outlives the command

    tracker = execution.tracker()
    runs = tracker.find_runs(sweep="s")
    assert [run.status for run in runs] == ["FINISHED"] * 2
    for run in runs:
        assert steps(tracker, run, GAIN) == [1, 2, 3]
        assert len(steps(tracker, run, "train/loss/contrastive")) == 3 * 30
    (learned,) = [run for run in runs if float(run.settings["method.lr"])]
    assert_equals_an_unbroken_run(execution.runs, learned.settings, manifest, tmp_path)
    shutil.rmtree(ray_folder, ignore_errors=True)


@pytest.mark.parametrize("name", ["RanPac"])
def test_a_method_without_gradients_is_searched_confirmed_and_rerun_over_every_seed(
    name, two_cpus, execution, manifest
):
    request = request_search(
        method=(place := f"tests.analytic_methods:{name}"),
        stream=manifest,
        name=f"s-{name}",
        overrides={},
        search={"trials": 3, "searcher": "grid", "scheduler": "none", "confirm": 1, "confirm_seeds": 2},
        space=("method.strength=0.3,3,100",),
        seeds=2,
        baselines=("zero_shot",),
    )
    trust([place])
    text = sweep(request, execution)
    assert "over 2 new seeds" in text
    runs = execution.tracker().find_runs()
    final = [run for run in runs if "-final-" in run.tags.get("ctvr.sweep", "") and run.settings["method"] == place]
    assert len({run.settings["seed"] for run in final}) == 2
    confirmed = [run for run in runs if run.tags.get("ctvr.candidate")]
    assert len({run.settings["seed"] for run in confirmed}) == 2
