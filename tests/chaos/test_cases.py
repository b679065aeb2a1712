"""Every run that is killed can be started, and the faults that it should meet can happen in it."""

from pathlib import Path

import pytest

from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.chaos.cases import CASES, IMAGE_STREAM, QUESTION_STREAM, SMALL_STREAM, TASKS, VIDEO, case_of, write_others
from tests.chaos.lifecycle import VIDEOS
from tests.small_stream import write_stream


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    write_stream(folder, TASKS, **VIDEOS)
    write_others(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_case_resolves_on_its_stream(name, streams):
    case = CASES[name]
    stream = load_stream(streams / case.stream, streams)
    found = resolve({**case.settings, "method": case.method, "stream": str(streams / case.stream)}, stream.settings)
    assert len(stream.tasks) == TASKS
    assert found.optim.epochs == case.settings["optim.epochs"]


def test_every_kind_of_run_is_there():
    settings = [case.settings for case in CASES.values()]
    assert {case.stream for case in CASES.values()} == {SMALL_STREAM, QUESTION_STREAM, IMAGE_STREAM}
    for name, value in {
        "evaluation.select": "best",
        "optim.accumulation_steps": 2,
        "tracking.keep_checkpoints": True,
    }.items():
        assert value in [one.get(name) for one in settings]


def test_another_method_is_run_with_the_settings_of_all():
    case = case_of("lora")
    assert (case.method, case.settings, case.stream) == ("lora", VIDEO, SMALL_STREAM)
