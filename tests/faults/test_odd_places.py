"""An unexpected file or folder in a runs folder gives one line with its name and the remedy."""

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.tracking.tracker import Tracker, create_store


def _socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


KINDS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "socket": _socket,
    "folder": _folder,
    "file": lambda path: path.write_text("no record"),
    "dangling link": lambda path: path.symlink_to("/nosuch/place"),
    "loop of links": lambda path: path.symlink_to(path.name),
}
PLACES = ("mlflow.db", "mlflow.db.lock", "told", "outbox", "outbox/flush.lock", "artifacts", "streams", "sweeps", ".")
COMMANDS = ("runs", "runs sync --rebuild", "runs sync", "run zero_shot none", "sweep --resume none", "cache")
WORDS = {"Move", "Remove", "Pass", "Use", "Choose", "Check", "All", "Known", "Restore", "remove", "Free", "Create"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("recorded")
    uri = f"sqlite:///{runs}/mlflow.db"
    create_store(uri, runs, "small")
    made = Tracker(uri, runs)
    run = made.open_run("small", "one", {"method": "lwf", "seed": 0})
    made.log_task(run, 1, {"stream/t2v/r1": 10.0})
    made.close(run)
    return runs


@pytest.mark.timeout(120)  # MLflow retries for minutes to open it
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_an_obstructing_file_is_named_with_the_remedy(recorded, tmp_path, monkeypatch, capsys, place, kind):
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        shutil.rmtree("runs") if os.path.isdir("runs") else Path("runs").unlink(missing_ok=True)
        shutil.copytree(recorded, "runs")
        path = tmp_path / "runs" / place
        if os.path.lexists(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.parent.mkdir(exist_ok=True)
        KINDS[kind](path)
        status = main([*command.split(), "--runs", "runs"])
        said = capsys.readouterr().err
        assert "Traceback" not in said, command
        assert "[Errno" not in said, (command, said)
        lines = [line for line in said.splitlines() if line.startswith("ctvr: ")]
        assert bool(lines) == (status != 0), (command, said)
        assert all(WORDS & {*re.findall(r"\w+", line)} for line in lines), (command, lines)
