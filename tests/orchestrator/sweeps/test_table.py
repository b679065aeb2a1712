"""`ctvr table NAME`: all pairs of a table's rows, and the table of a sweep that only has a rerun."""

import numpy as np
import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.sweeps import table
from ctvr.orchestrator.tables import build
from ctvr.orchestrator.tables.significance import Ranks

SHARES = {"clip4clip": 0.2, "lwf": 0.5, "zscl": 0.8}


@pytest.fixture
def runs(tmp_path, monkeypatch) -> str:
    """Return a folder with complete runs of three methods, three seeds each, on the stream `few`."""
    execution = ExecutionConfig(runs=tmp_path / "runs")
    tracker, ranks, chance = execution.tracker("few"), {}, np.random.default_rng(0)
    for method, share in SHARES.items():
        for seed in (1, 2, 3):
            tags = {"ctvr.protocol": "ctvr", "ctvr.complete": "true", "ctvr.stream": "few"}
            run = tracker.open_run("few", f"{method}-{seed}", {"method": method, "seed": seed}, None, tags)
            last = {"stream/t2v/r1": 100 * share, "cost/trained_parameters": 1e6}
            tracker.log_history(run, {1: last})
            ranks[run] = Ranks({f"v{i}#0": 1.0 if hit else 2.0 for i, hit in enumerate(chance.random(99) < share)}, {})
    for module in (table, build):
        monkeypatch.setattr(module, "read_ranks", lambda tracker, run_id: ranks.get(run_id))
    return str(execution.runs)


def test_each_pair_is_printed_once_on_request(runs, capsys):
    words = ["table", "--stream", "few", "--runs", runs]
    assert main(words) == 0
    assert "All pairs" not in capsys.readouterr().out
    assert main([*words, "--pairs"]) == 0
    printed = capsys.readouterr().out.partition("All pairs of few\n\n")[2].splitlines()
    names = [line.partition("  ")[0] for line in printed[:3]]
    assert {frozenset(name.split(" - ")) for name in names} == {
        frozenset(pair) for pair in (("clip4clip", "lwf"), ("clip4clip", "zscl"), ("lwf", "zscl"))
    }
    assert all("] p" in line for line in printed[:3])
    assert "simultaneous for all pairs" in printed[4]


def test_a_table_without_a_searched_row_is_that_of_its_newest_rerun(tmp_path, capsys):
    """`ctvr reproduce` of rows that are not searched has no runs in the sweep itself."""
    execution = ExecutionConfig(runs=tmp_path / "runs")
    tracker = execution.tracker("few")
    tracker.open_sweep("fair", "few", {})
    for number, r1 in ((1, 20.0), (2, 30.0)):
        rerun = f"fair-final-{number}"
        tags = {"ctvr.protocol": "ctvr", "ctvr.complete": "true", "ctvr.stream": "few"}
        tags |= {"ctvr.rerun_of": "fair", "ctvr.sweep": rerun}
        settings = {"method": "clip4clip", "seed": 1}
        run = tracker.open_run("few", "clip4clip", settings, tracker.open_sweep(rerun, "few", {}), tags)
        tracker.log_history(run, {1: {"stream/t2v/r1": r1, "cost/trained_parameters": 1e6}})
    assert main(["table", "fair", "--runs", str(execution.runs)]) == 0
    assert "30.00" in (shown := capsys.readouterr().out)
    assert "20.00" not in shown
