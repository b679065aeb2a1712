"""Two drivers with one key produce one trajectory; a driver that does not check parents is detected."""

from dataclasses import replace

import pytest

from ctvr.orchestrator.learning.commits import Commits
from tests.chaos.concurrent_writers import compete
from tests.chaos.engine import Engine
from tests.chaos.lifecycle import Kill, Story, run_child

pytestmark = pytest.mark.slow

METHOD = "lora"
RACE, DAMAGE = 9, 19  # numbers of stories


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CTVR_CACHE", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_DISABLE_TELEMETRY"):
            patch.setenv(name, "")  # its settings are undone
        made = Engine(tmp_path_factory.mktemp("rivals"), 0, (METHOD,))
        made.prepare()
        yield made


def contested(number: int, part: float) -> Story:
    return Story(number, METHOD, "sqlite", False, (Kill(part=part),), is_contested=True)


def test_two_drivers_with_other_numbers_leave_one_trajectory(engine, tmp_path):
    story = contested(RACE, 0.5)
    engine.frames_for(tmp_path)
    away = replace(story, tracked="away")
    assert run_child(compete, tmp_path, engine.manifest, away, 1, None, None) == 0
    assert (tmp_path / "rival1" / "digest").read_text() != engine.unbroken[METHOD].digest  # it has other numbers
    assert engine.tell(story, 9).wrong == []


@pytest.mark.parametrize("part", [0.0, 0.9])  # the commit of the first task, and of the second
def test_a_task_whose_commit_was_trained_again_meanwhile_is_refused(engine, part):
    outcome = engine.tell(contested(DAMAGE + 20 * int(part > 0), part), 9)
    assert outcome.wrong == []
    assert len(outcome.kills) == 1


def test_without_the_check_of_parents_numbers_are_mixed_and_that_is_found(engine, monkeypatch):
    monkeypatch.setattr(Commits, "_is_of_another", lambda self, parent, done: False)
    outcome = engine.tell(contested(DAMAGE + 40, 0.0), 9)
    assert "task 2 does not go on from the commit of task 1: two drivers' numbers are mixed" in outcome.wrong
