"""`python -m tools.bench`: its table, and its error for an unknown name."""

import os
from pathlib import Path

import pytest

from tests.refusing import missing_from
from tools.bench import __main__ as bench
from tools.bench.service import Latency
from tools.bench.timing import HotPath


def test_an_unknown_path_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "rankin"]) == 2
    assert not missing_from(capsys.readouterr().err, "--only", "rankin", "'ranking'", "serve")


def test_a_path_becomes_a_row_below_the_description_of_the_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(root: Path, is_toy: bool) -> HotPath:
        assert is_toy
        return HotPath("naps", "long naps", lambda: None, lambda: sum(range(10**5)), pairs=2)

    def latencies(root: Path, is_toy: bool) -> list[Latency]:
        assert is_toy
        return [Latency("tiny-clip", 480, 50, 5.04, 9.0, 4.0, 60)]

    monkeypatch.setattr(bench, "PATHS", {"nap": make})
    monkeypatch.setattr(bench.service, "measure_service", latencies)
    monkeypatch.setattr(bench.kernels, "kernel_table", lambda: "kernels")
    monkeypatch.setattr(bench.floor, "floor_table", lambda is_quick: f"floor {is_quick}")
    assert bench.main(["--quick"]) == 0
    machine, _, _, _, row, *served, _, counted, _, lowest = capsys.readouterr().out.splitlines()
    assert f"{os.cpu_count()} CPUs" in machine
    assert row.startswith("| nap-toy | naps | long naps |")
    assert (counted, lowest) == ("kernels", "floor True")
    assert served[-1] == "| GET /search, clip4clip, tiny-clip | 480 | 50 | 5.0 | 9.0 | 4.0 | < 60 |"
    assert bench.main(["--quick", "--only", "nap"]) == 0
    assert "GET /search" not in capsys.readouterr().out
