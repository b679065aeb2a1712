"""Every run that is killed can be started."""

from pathlib import Path

import pytest

from ctvr.orchestrator.learning.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.chaos.cases import CASES, TASKS, write_others
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
