"""Pauses between epochs: a run that several processes train in turn equals an uninterrupted one."""

import json
import sys
from pathlib import Path

import pytest
import torch

from ctvr import methods
from ctvr.methods import METHODS
from ctvr.orchestrator.errors import Interrupted
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import Result, RunPaths, check_streams, execute
from ctvr.orchestrator.learning.training.epoch_state import EpochReports
from ctvr.orchestrator.learning.training.interruption import Interruption, Request
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.gc import PAUSES, find_weights
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses


class Stopped(Exception):
    """Ends a process at a pause."""


@pytest.fixture
def one(runs: Path, manifest: str) -> str:
    """Return the first task of the small stream as a separate stream."""
    content = json.loads(Path(manifest).read_text())
    file = Path(manifest).with_name("one.json")
    file.write_text(json.dumps({**content, "name": "one", "tasks": content["tasks"][:1]}))
    return str(file)


def planned(one: str, runs: Path, method: str = "clip4clip", **more: object) -> Experiment:
    named = {name.replace("__", "."): value for name, value in more.items()}
    settings = {"optim.epochs": 3, "evaluation.split": "val", "evaluation.every_epoch": True, **named}
    return resolve({"method": method, "stream": one, **settings}, load_stream(one, runs).settings)


def paused(experiment: Experiment, runs: Path, *epochs: int) -> None:
    """Train in processes that end after these epochs."""
    for epoch in epochs:
        seen: list[int] = []

        def report(record: RunState, epoch: int = epoch, seen: list[int] = seen) -> None:
            seen.append(len(record.training))
            if len(record.training) >= epoch:
                raise Stopped

        with pytest.raises(Stopped):
            execute(experiment, RunPaths(runs), epochs=EpochReports(report, epoch))
        assert seen[-1] == epoch


def numbers(record: RunState) -> tuple[object, ...]:
    return record.own, record.union, record.metrics, record.training, record.ranks, record.steps


def check_equal(got: Result, whole: Result) -> None:
    assert numbers(got.record) == numbers(whole.record)
    mine, others = got.method.state_dict(), whole.method.state_dict()
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def in_many_processes(experiment: Experiment, runs: Path) -> tuple[Result, list[str]]:
    """Train in processes that a request stops after every epoch and task; return the result, and where they ended."""
    store, ends = RunPaths(runs).open_store(), list[str]()
    while True:
        try:
            return execute(experiment, RunPaths(runs), epochs=EpochReports(interruption=Interruption(always))), ends
        except Interrupted as error:
            ends.append(str(error).partition(".")[0])
            assert len(store.list(PAUSES)) == ends[-1].startswith("paused")  # the newest only


def always() -> Request:
    return "stop"


def check_paused_run(experiment: Experiment, runs: Path) -> tuple[Result, list[str]]:
    whole = execute(experiment, RunPaths(runs), fresh=True)
    result, ends = in_many_processes(experiment, runs)
    check_equal(result, whole)
    assert RunPaths(runs).open_store().list(PAUSES) == []
    can_pause = not whole.method.declared.has_epoch_state
    assert len(ends) == len(whole.record.own) - 1 + can_pause * len(whole.record.training)
    return whole, ends


def test_a_run_that_pauses_after_every_epoch_equals_an_unbroken_one(manifest, runs):
    experiment = planned(manifest, runs, "er_ring", optim__epochs=2, evaluation__every_epoch=False)
    _, ends = check_paused_run(experiment, runs)
    assert ends[:3] == ["paused after epoch 1 of task 1", "paused after epoch 2 of task 1", "stopped after task 1"]


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("zero_shot", "head_ridge")])  # no epochs
def test_every_method_may_pause_in_every_task(method, manifest, runs):
    more = {"optim.lr_scale": 0.1} if method == "lpi" else {}  # diverges otherwise
    _, ends = check_paused_run(planned(manifest, runs, method, **{"optim.epochs": 2, **more}), runs)
    assert len(ends) > 2 or method in ("zscl", "ctp")  # no pause


@pytest.mark.parametrize("name", ["adamw_hf", "bert_adam", "sgd"])
def test_every_optimizer_continues(name, one, runs):
    check_paused_run(planned(one, runs, optim__name=name), runs)


COUNTING = """
import torch
class Counting(torch.optim.SGD):
    "Keeps the number of steps in its group, as schedule-free optimizers do, and one moment."
    def __init__(self, params, lr): super().__init__(params, lr=lr, momentum=0.9)
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] /= group["k"]
        return super().step(closure)
class Listing(Counting):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1]
class Broken(Counting):
    def __init__(self, params, lr, rho): super().__init__(params, lr)
"""


@pytest.fixture
def own_optimizers(tmp_path, monkeypatch):
    """Write optimizers into a file of the user."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    methods.trust(["counting:Counting", "counting:Listing"])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_optimizer_of_another_package_continues_and_accumulates(accumulation, own_optimizers, one, runs):
    more = {"optim.accumulation_steps": accumulation, "optim.name": "counting:Counting"}
    whole, _ = check_paused_run(planned(one, runs, **more), runs)
    assert whole.record.training[0] != execute(planned(one, runs), RunPaths(runs)).record.training[0]


def test_a_state_that_a_pause_cannot_store_is_named(own_optimizers, one, runs):
    with refuses("seen", "Listing", "list", where="optim.name"):
        paused(planned(one, runs, optim__name="counting:Listing"), runs, 1)


def test_an_optimizer_that_cannot_be_created_is_refused_before_anything_is_recorded(own_optimizers, one, runs):
    methods.trust(["counting:Broken"])
    experiment = planned(one, runs, optim__name="counting:Broken")
    with refuses("counting:Broken", "rho", where="optim.name", remedy=True):
        check_streams(experiment, load_stream(one, runs), RunPaths(runs))


def test_a_stop_where_no_pause_can_be_stored_says_why_and_resumes_after_a_task(own_optimizers, manifest, runs):
    experiment = planned(manifest, runs, optim__name="counting:Listing")
    with pytest.raises(Interrupted) as caught:
        execute(experiment, RunPaths(runs), epochs=EpochReports(interruption=Interruption(always)))
    assert all(word in str(caught.value) for word in ("epoch 1 of task 1", "seen", "Listing", "list"))
    assert RunPaths(runs).open_store().list(PAUSES) == []
    asked = Interruption()

    def after_task(*about: object) -> None:
        asked.is_stopping = True

    with pytest.raises(Interrupted):
        execute(experiment, RunPaths(runs), report=after_task, epochs=EpochReports(interruption=asked))
    assert execute(experiment, RunPaths(runs)).resumed == 1


def test_the_best_epoch_and_the_epochs_without_a_better_one_are_kept(one, runs):
    """With a rate of 0 no epoch is better than the first: training ends one epoch after `patience_start`."""
    more = {"method.lr": 0.0, "optim.epochs": 6, "evaluation.patience": 2, "evaluation.patience_start": 1}
    experiment = planned(one, runs, **{"evaluation.select": "best", **more})
    whole, _ = check_paused_run(experiment, runs)
    assert len(whole.record.training) == 3
    assert len({row["epoch/t2v/r1"] for row in whole.record.training}) == 1


def test_epoch_metrics_end_at_the_task_metrics_and_change_nothing(one, runs):
    with_epochs, without = (
        execute(planned(one, runs, "framefusion_moe", evaluation__every_epoch=is_on), RunPaths(runs), fresh=True)
        for is_on in (True, False)
    )
    rows = with_epochs.record.training
    assert with_epochs.record.metrics == without.record.metrics
    assert [{k: v for k, v in row.items() if not k.startswith("epoch/")} for row in rows] == without.record.training
    last = {name: value for name, value in rows[-1].items() if name.startswith("epoch/")}
    task = with_epochs.record.metrics[0]
    assert {"epoch/t2v/r1", "epoch/t2v/r1_gain", "epoch/t2v/r5"} <= last.keys()
    assert all(task[name.replace("epoch", "stream", 1)] == value for name, value in last.items())


def test_a_damaged_pause_is_trained_again(one, runs):
    experiment = planned(one, runs)
    whole = execute(experiment, RunPaths(runs), fresh=True)
    paused(experiment, runs, 2)
    store = RunPaths(runs).open_store()
    (name,) = store.list(PAUSES)
    kept = store.get_json(PAUSES, name)["weights"]
    lost = find_weights(store, [name.partition("/")[0]])  # of a trial that was stopped there
    assert f"weights/{kept}.safetensors" in {entry.name for entry in lost.entries}
    store.delete("weights", store.get_json(PAUSES, name)["weights"])
    check_equal(execute(experiment, RunPaths(runs)), whole)


def test_a_run_that_was_killed_after_its_pause_reports_it_first(one, runs):
    experiment = planned(one, runs)
    paused(experiment, runs, 2)
    told: list[int] = []

    def report(record: RunState) -> None:
        told.append(record.steps)
        raise Stopped

    with pytest.raises(Stopped):
        execute(experiment, RunPaths(runs), epochs=EpochReports(report, 2))
    whole = execute(experiment, RunPaths(runs), fresh=True)
    assert told == [int(whole.record.training[1]["step"])]  # nothing was trained before
