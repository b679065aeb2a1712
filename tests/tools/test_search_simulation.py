"""Searches keep a cluster busy: the figures of docs/scale.md."""

import pytest

from ctvr.orchestrator.on_ray.plan import SearchConfig, brackets_for
from tools.search_simulation import main, simulate


@pytest.mark.parametrize(("trials", "places", "busy"), [(64, 8, 0.9), (64, 16, 0.6), (1000, 512, 0.6)])
def test_a_default_search_keeps_a_cluster_busy(trials: int, places: int, busy: float) -> None:
    number = brackets_for(SearchConfig(trials=trials), trials, 10, places)
    search = SearchConfig(trials=trials, brackets_at_once=number)
    found = simulate(search, places, 10)
    assert found.trained == 3.5 * trials  # 8 + 4 + 2 x 8 tasks of a bracket: nothing is omitted
    assert found.busy >= busy
    assert simulate(SearchConfig(trials=trials), places, 10).busy < found.busy / 2


def test_processes_that_are_kept_at_a_rung_save_starts() -> None:
    search = SearchConfig(trials=8)
    kept, dropped = (simulate(search, 2, 5, sigma=0.25, task=5.0, start=18.0, keeps=keeps) for keeps in (True, False))
    assert kept.seconds < dropped.seconds - 10
    assert kept.trained == pytest.approx(18 * 5.0, rel=0.25)


def test_a_table_on_one_place_is_never_idle() -> None:
    assert simulate(SearchConfig(trials=4), 1, 3, rows=3).busy == 1.0


def test_the_command_prints_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trials", "24", "--places", "8"]) == 0
    printed = capsys.readouterr().out
    assert "  1 brackets at once, one process kept" in printed
    assert "  3 brackets at once, processes kept" in printed
