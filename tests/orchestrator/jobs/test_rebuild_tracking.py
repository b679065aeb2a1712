"""A lost MLflow database is rebuilt from the sent messages and the commits; tables are equal byte by byte."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.rebuild_tracking import rebuild
from ctvr.orchestrator.tracking.tracker import Tracker
from tests.refusing import refuses

OF_MLFLOW = "mlflow."  # tags: of the process that writes, and ids


def test_a_folder_without_an_event_log_is_refused_in_one_line(execution):
    with refuses("rebuild", execution.runs / "told"):
        rebuild(execution)


def everything(tracker: Tracker) -> list[Any]:
    """Return every run without ids and times: settings, tags, numbers and JSON files."""
    found = []
    runs = [*tracker.find_runs(), tracker.find_sweep("s")]
    for run in runs:
        artifacts = sorted(each.path for each in tracker.client.list_artifacts(run.run_id) if each.path != "model")
        files = {name: tracker.download(run.run_id, name).read_bytes() for name in artifacts}
        tags = {name: tag for name, tag in run.tags.items() if not name.startswith(OF_MLFLOW)}
        numbers = {key: list(run.metrics[key]) for key in run.metrics}
        found.append((run.name, run.status, run.settings, tags, numbers, files))
    return found


@pytest.mark.slow
def test_a_lost_mlflow_is_made_again_and_the_tables_are_the_same(learned, tmp_path, capsys):
    """The records are a sweep with a trial, and two runs; one run's last numbers were committed and never sent."""
    runs = tmp_path / "runs"
    shutil.copytree(learned, runs)
    tracker = ExecutionConfig(runs=runs).tracker()
    sweep = tracker.open_sweep("s", "small", {"search.trials": 1})
    trial = tracker.open_run("small", "t", {"method": "lora"}, sweep, {"ctvr.complete": "true"})
    tracker.log_task(trial, 2, {"stream/t2v/r1": 12.5})
    again = Tracker(tracker.uri, runs)  # another process, which has only the run's id
    again.set_tags(again.find_runs(sweep="s")[0].run_id, {"ctvr.note": "a note"})
    again.close(trial)
    again.close(sweep)
    before = everything(tracker)

    def table(folder: Path) -> str:
        assert main(["table", "--stream", "small", "--runs", str(folder)]) == 0
        return capsys.readouterr().out.partition("written: ")[0]

    printed = table(runs)
    lost = tmp_path / "lost"  # this process holds the other file open
    shutil.copytree(runs, lost, ignore=shutil.ignore_patterns("mlflow.db*", "artifacts", "downloads", "tables"))
    told = next(path for path in sorted((lost / "told").glob("*.jsonl")) if "task_02/t2v/r1" in path.read_text())
    lines = [line for line in told.read_text().splitlines() if json.loads(line)["op"] != "metrics"]
    costs = [line for line in told.read_text().splitlines() if "cost/trained_parameters" in line]
    told.write_text("\n".join([*lines, *costs]) + "\n")
    for _ in range(2):  # the second adds nothing: everything exists
        assert main(["runs", "sync", "--rebuild", "--runs", str(lost)]) == 0
        assert "rebuilt 4 runs" in capsys.readouterr().out
        assert everything(ExecutionConfig(runs=lost).tracker()) == before
        assert table(lost) == printed
