"""`ctvr table NAME --pairs`: all pairs of a table's rows."""

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
