"""`python -m orchestrator.bench`: its table, and what it says to a name that is none."""

from __future__ import annotations

import os

import pytest

from orchestrator.bench import __main__ as bench
from orchestrator.bench.cpu import Comparison, bench_ranking


def test_rows_become_a_markdown_table() -> None:
    text = bench.to_markdown([Comparison("x", "y", 1.0, 2.0, 0.5, 0.4, 0.6, 3, "noted")])
    assert text.splitlines()[2] == "| x; noted | 1.0000 | y | 2.0000 | 0.50 (0.40 to 0.60) | 3 |"


def test_an_unknown_comparison_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "rankin"]) == 2
    assert capsys.readouterr().err == (
        "bench: --only rankin: is no comparison. Did you mean 'ranking'? "
        "All: step, step-vit, encoder, ranking, memory, store, features, trial.\n"
    )


def test_one_comparison_can_be_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.BENCHES, "ranking", lambda root: bench_ranking(20, 1))
    assert bench.main(["--only", "ranking"]) == 0
    machine, _, _, _, row = capsys.readouterr().out.splitlines()
    assert f"{os.cpu_count()} CPUs" in machine
    assert row.startswith("| ranking 20 x 20")
