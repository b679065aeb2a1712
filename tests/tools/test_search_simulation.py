"""Searches keep a cluster busy: the figures of docs/scale.md."""

import pytest

from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search_budget import brackets_for
from ctvr.orchestrator.on_ray.search_time import simulate
from tools import search_simulation
from tools.search_simulation import SURFACES, Surface, main


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
    assert main(["--trials", "64", "--places", "8"]) == 0
    assert "lag  16, processes kept" in capsys.readouterr().out


@pytest.mark.parametrize("name", SURFACES)
def test_a_surface_is_best_at_its_best_point_and_late_only_after_all_tasks(name: str) -> None:
    surface = Surface(name, 3, 10)
    best = {f"x{place}": 10 ** (2 * at - 1) for place, at in enumerate(surface.best)}
    best |= {each: max(range(4), key=gains.__getitem__) for each, gains in surface.gains.items()}
    early = best | {f"x{place}": 10 ** (2 * at - 1) for place, at in enumerate(surface.early)}
    assert surface.regret(best) == pytest.approx(0)
    assert surface.regret(best, [at / 2 for at in surface.best]) > 0
    assert (surface.regret(early) > 0) == (name == "late")


def test_tables_of_shares_and_regrets_name_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_simulation, "SIZES", ((32, 16),))
    monkeypatch.setattr(search_simulation, "LARGE", ())
    monkeypatch.setattr(search_simulation, "SURFACES", {"bowl": (1, 1, 1)})
    assert main(["--shares", "--tasks", "4"]) == 0
    shares = capsys.readouterr().out
    assert "4 brackets at once     (default)" in shares
    assert "0 informed" in shares
    assert main(["--regret", "--trials", "40", "--places", "10", "--tasks", "3"]) == 0
    regrets = capsys.readouterr().out
    assert "window, lag 11: " in regrets
    assert "places, random, 4" in regrets
