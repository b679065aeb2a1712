"""`ctvr runs` lists runs, shows the command that repeats each, and removes those that no record needs."""

import re
import shlex
from pathlib import Path

import pytest

from ctvr.orchestrator.cli import main as cli
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.explain import explain
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.jobs.runs import list_runs, remove_runs, show_run
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import missing_from, refuses


@pytest.fixture
def execution(runs: Path, manifest: str) -> ExecutionConfig:
    found = ExecutionConfig(runs=runs)
    run({"method": "zero_shot", "stream": manifest}, (), found)
    return found


@pytest.mark.slow
def test_a_name_from_elsewhere_adds_no_line_and_no_control_character(execution):
    (record,) = execution.tracker().find_runs()

    def texts() -> list[str]:
        explained = explain(record.run_id, execution.existing_store(), execution.existing_tracker())
        return [list_runs(execution), show_run(record.run_id, execution), explained]

    before = texts()
    tags = ("ctvr.method", "ctvr.commit", "mlflow.runName")
    execution.existing_tracker(writes=True).set_tags(record.run_id, dict.fromkeys(tags, "a\x1b[2J\n\u202eb"))
    after = texts()
    assert [text.count("\n") for text in after] == [text.count("\n") for text in before]
    assert all("a\\x1b[2J\\n\\u202eb" in text for text in after)
    assert remove_runs([record.run_id], execution).startswith("removed a\\x1b[2J\\n\\u202eb (")


@pytest.mark.slow
def test_a_run_is_listed_shown_repeated_and_removed(execution):
    (record,) = execution.tracker().find_runs()
    head, line = list_runs(execution).splitlines()[:2]
    assert head.split() == ["RUN", "METHOD", "STREAM", "SPLIT", "SEED", "R@1", "AGE", "FILES", "STATE", "NAME"]
    cells = line.split()
    assert cells[:5] == [record.run_id[:8], "zero_shot", "small", "test", "0"]
    assert cells[-2:] == ["complete", record.name]
    assert float(cells[5]) == pytest.approx(record.last("stream/t2v/r1")[1], abs=0.01)

    shown = show_run(record.name, execution)
    assert show_run("zero_shot", execution).splitlines()[0] == shown.splitlines()[0]
    assert record.run_id in shown
    command = shlex.split(re.search(r"repeat +ctvr (.*)", shown)[1])
    assert cli.main(command) == 0
    again = execution.tracker().find_runs()[-1]
    assert again.run_id != record.run_id
    assert again.last("stream/t2v/r1") == record.last("stream/t2v/r1")

    store, tracker = execution.existing_store(), execution.existing_tracker()
    assert explain(record.name, store, tracker) == explain(record.tags["ctvr.result"], store, tracker)
    assert explain("zero_shot", store, tracker) == explain(again.name, store, tracker)
    with pytest.raises(ConfigError, match="does not exist"):  # a method is not enough to remove a run
        remove_runs(["zero_shot"], execution)
    with pytest.raises(ConfigError, match=r"no run or key 'zero_shit-seed0'.* Did you mean 'zero_shot-seed0-"):
        explain("zero_shit-seed0", store, tracker)

    counted = remove_runs([again.run_id[:8]], execution, commits=True, confirmed=False)
    assert not missing_from(counted, again.run_id[:8], "--yes", "1")
    assert {each.run_id for each in execution.tracker().find_runs()} == {record.run_id, again.run_id}
    text = remove_runs([again.run_id[:8]], execution, commits=True)
    assert "removed the finished tasks of 1 run;" in text
    assert [each.run_id for each in execution.tracker().find_runs()] == [record.run_id]
    key = record.tags["ctvr.commits"]
    assert store.list("commits", f"{key}/")  # those of the first run
    assert "are kept in the store" in remove_runs([record.name], execution)
    assert store.list("commits", f"{key}/")
    assert list_runs(execution) == "no run is recorded"


def test_a_run_that_something_holds_is_removed_by_force_only(execution):
    tracker = execution.tracker()
    (record,) = tracker.find_runs()
    for tags, value in (({"ctvr.sweep": "monday"}, "monday"), ({"ctvr.best": "1"}, "best-small")):
        tracker.set_tags(record.run_id, tags)
        with refuses(value, "--force"):
            remove_runs([record.run_id], execution)
    assert len(tracker.find_runs()) == 1
    remove_runs([record.run_id], execution, force=True)
    assert not tracker.find_runs()


@pytest.mark.parametrize("step", ["Store.delete", "Tracker.delete_run"])
def test_a_removal_that_was_killed_is_repeated_to_its_end(execution, monkeypatch, step):
    (record,) = execution.tracker().find_runs()
    store, key = execution.existing_store(), record.tags["ctvr.commits"]
    of, name = {"Store": Store, "Tracker": Tracker}[step.partition(".")[0]], step.partition(".")[2]
    real, calls = getattr(of, name), []

    def killed_at_the_second_commit(*words):
        calls.append(words)
        if of is Tracker or len(calls) == 2:
            raise KeyboardInterrupt
        return real(*words)

    monkeypatch.setattr(of, name, killed_at_the_second_commit)
    with pytest.raises(KeyboardInterrupt):
        remove_runs([record.run_id], execution, commits=True)
    monkeypatch.undo()
    remove_runs([record.run_id], execution, commits=True)
    assert not store.list("commits", f"{key}/")
    assert not execution.tracker().find_runs()


def test_an_unknown_run_or_stream_is_one_line_with_a_suggestion(execution):
    (record,) = execution.tracker().find_runs()
    with refuses(f"{record.run_id[:7]}x"):
        show_run(record.run_id[:7] + "x", execution)
    with refuses("'smal'", "'small'"):
        list_runs(execution, "smal")
