"""`python -m orchestrator.bench`: its tables, its exit status, and what it says to a name that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.bench import __main__ as bench
from orchestrator.bench import paths, verdict
from orchestrator.bench.cpu import Comparison
from orchestrator.bench.hot import HotPath


def test_rows_become_a_markdown_table() -> None:
    text = bench.comparisons([Comparison("x", "y", 1.0, 2.0, 0.5, 0.4, 0.6, 3, "noted")])
    assert text.splitlines()[2] == "| x; noted | 1.0000 | y | 2.0000 | 0.50 (0.40 to 0.60) | 3 |"


def test_an_unknown_comparison_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "rankin"]) == 2
    assert capsys.readouterr().err == (
        "bench: --only rankin: is no comparison. Did you mean 'ranking'? "
        "All: step, structalign, texts, tempme, ranking, xpool, store, decoding, start, "
        "checkpointed, structalign-32, tempme-16, ranking-10000, cold, many, texts-task10, memory, features, trial.\n"
    )


def test_a_path_below_its_recorded_share_ends_the_command_with_1_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make(root: Path, is_toy: bool) -> HotPath:
        assert is_toy
        return HotPath("naps", "long naps", lambda: None, lambda: sum(range(10**5)), pairs=2, is_gemm=False)

    file = tmp_path / "shares.json"
    monkeypatch.setattr(bench, "PATHS", {"nap": make})
    monkeypatch.setattr(bench, "read_shares", lambda: verdict.read_shares(file))
    assert bench.main(["--quick"]) == 0  # of which nothing is recorded
    machine, _, _, _, row, *_ = capsys.readouterr().out.splitlines()
    assert f"{os.cpu_count()} CPUs" in machine
    assert row.startswith("| nap-toy | naps | long naps |")
    assert row.endswith("| - | not recorded |")
    file.write_text('{"paths": {"nap-toy": {"times": [1e12, 0.0]}, "other": {"times": [1e12, 0.0]}}}')
    assert bench.main(["--only", "nap", "--quick"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[4].endswith("| below |")
    assert "bench: below its share: nap-toy: " in shown.err


def test_a_path_without_the_memory_it_needs_is_left_out_and_the_others_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "available", lambda: 19.5)
    monkeypatch.setattr(bench, "SHOWN", {"large": paths.step_path("structalign", 32, 14, 12, needs=20)})
    assert bench.measured(["large"], False, tmp_path, has_toys=False) == []
    said = "bench: large is left out: needs about 20 GiB of free memory, and 19.5 are\n"
    assert capsys.readouterr().err.endswith(said)
