"""`ctvr serve`: the newest model of a run answers, each query in one space; signals and invalid options end it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load, load_task
from ctvr.orchestrator.jobs.serve import NewestModel
from ctvr.orchestrator.serving.snapshot import Snapshot, Watcher
from tests.orchestrator.serving.client import Client, served
from tests.refusing import missing_from

METHOD = "framefusion_moe"  # its texts are read as of a task
QUERIES = ("a red circle", "a green circle on the test", "the star is red", "a green square")


def ranked(snapshot: Snapshot, query: str) -> list[tuple[str, float]]:
    return [(hit.video, pytest.approx(hit.score, abs=1e-5)) for hit in snapshot.search(query, 100)]


@pytest.fixture
def half_trained(learned: Path, tmp_path: Path) -> tuple[ExecutionConfig, str, Path, Path]:
    """Return a run of two tasks in its state after the first: the commit of the second is elsewhere."""
    execution = ExecutionConfig(runs=tmp_path / "runs")
    shutil.copytree(learned, execution.runs)
    tracker = execution.existing_tracker()
    (run,) = tracker.find_runs(tags={"ctvr.method": METHOD})
    tracker.set_tags(run.run_id, {"ctvr.complete": "false"})
    (commit,) = (execution.runs / "store" / "commits").rglob(f"{run.tags['ctvr.commits']}/task_002*")
    return execution, run.run_id, commit, Path(shutil.move(commit, tmp_path / "task_002"))


@pytest.mark.slow
def test_queries_while_a_commit_lands_are_answered_by_one_model_each(half_trained):
    execution, run_id, commit, aside = half_trained
    newest = NewestModel(run_id, execution)
    first = newest.load()
    assert first is not None
    assert newest.load() is None, "nothing is new"
    assert first.about.endswith("after task 1 of 2")
    run = execution.existing_tracker().find_runs(tags={"ctvr.method": METHOD})[0]
    stream = execution.stream_of(run)
    assert stream is not None
    whole = load("zero_shot", execution).gallery()
    assert set(first.videos) == set(Snapshot(load_task(run, execution, stream, 1), "").videos)
    assert len(first.videos) == len(whole[0].items)
    before = {query: ranked(first, query) for query in QUERIES}
    answers: list[tuple[float, str, dict[str, Any]]] = []
    watcher, ended = Watcher(first, newest.load, 0.02), threading.Event()
    watcher.start()

    def ask(client: Client, offset: int) -> None:
        while not ended.is_set():
            query = QUERIES[(len(answers) + offset) % len(QUERIES)]
            answers.append((time.monotonic(), query, client.get("/search", q=query, k=100).json))

    with served(lambda: watcher.current) as client:
        threads = [threading.Thread(target=ask, args=(client, offset)) for offset in range(3)]
        for thread in threads:
            thread.start()
        while len(answers) < 10:
            time.sleep(0.01)
        shutil.move(aside, commit)
        while watcher.current is first:
            time.sleep(0.01)
        swapped, seen = time.monotonic(), len(answers)
        while len(answers) < seen + 10:
            time.sleep(0.01)
        ended.set()
        for thread in threads:
            thread.join()
    assert watcher.stop()
    second = watcher.current
    assert second.about.endswith("after task 2 of 2")
    after = {query: ranked(second, query) for query in QUERIES}
    assert all(len(after[query]) > len(before[query]) for query in QUERIES)
    for begun, query, answer in answers:
        expected = before if answer["model"] == first.about else after
        assert answer["model"] == second.about or begun < swapped, "a later query is answered by the new model"
        assert [(hit["video"], hit["score"]) for hit in answer["hits"]] == expected[query]
    assert {answer["model"] for _, _, answer in answers} == {first.about, second.about}


@pytest.mark.slow
def test_a_query_that_began_before_the_swap_is_answered_in_the_old_space(half_trained, monkeypatch):
    execution, run_id, commit, aside = half_trained
    newest = NewestModel(run_id, execution)
    first = newest.load()
    shutil.move(aside, commit)
    second = newest.load()
    assert first is not None
    assert second is not None
    expected = ranked(first, QUERIES[0])
    watcher, begun, swapped = Watcher(first, lambda: None), threading.Event(), threading.Event()
    real = first.model._tokens

    def encode(*given: Any) -> Any:
        begun.set()
        assert swapped.wait(30)
        return real(*given)

    monkeypatch.setattr(first.model, "_tokens", encode)
    found: list[dict[str, Any]] = []
    with served(lambda: watcher.current) as client:
        thread = threading.Thread(target=lambda: found.append(client.get("/search", q=QUERIES[0], k=100).json))
        thread.start()
        assert begun.wait(30)
        watcher.current = second
        swapped.set()
        thread.join()
        later = client.get("/search", q=QUERIES[0], k=100).json
    assert (found[0]["model"], later["model"]) == (first.about, second.about)
    assert [(hit["video"], hit["score"]) for hit in found[0]["hits"]] == expected
    assert [hit["video"] for hit in later["hits"]] != [hit["video"] for hit in found[0]["hits"]]


@pytest.mark.slow
def test_partial_run_has_the_settings_of_the_whole_run(half_trained):
    execution, run_id, _, _ = half_trained
    whole = load("zero_shot", execution)
    part = NewestModel(run_id, execution).load()
    assert part is not None
    (run,) = execution.existing_tracker().find_runs(tags={"ctvr.method": METHOD})
    assert part.model.trained.experiment.settings == {
        **part.model.trained.experiment.settings,
        **json.loads((execution.existing_tracker().download(run_id, "config.json")).read_text()),
    }
    folder = whole.gallery()[0].items[0].path.rpartition("/")[0]
    searched = NewestModel(run_id, execution, Path(folder)).load()
    assert searched is not None
    assert len(searched.videos) == len(list(Path(folder).glob("*.mp4")))
    assert searched.search("a red circle", 3)[0].task == "", "a text is read as of the task that was learned"
    with pytest.raises(ConfigError, match=r"is not a folder .*run id"):
        NewestModel(run_id[::-1], execution).load()
    for commit in (execution.runs / "store" / "commits").rglob("*"):
        if commit.is_file() and run.tags["ctvr.commits"] in str(commit):
            commit.unlink()
    with pytest.raises(ConfigError, match=r"has not finished a task yet\. Try again after its first task"):
        NewestModel(run_id, execution).load()


def test_a_model_that_cannot_be_loaded_leaves_the_present_one(caplog):
    def fail() -> None:
        raise ConfigError("gone", "model")

    watcher = Watcher("first", fail, 0.001)  # type: ignore[arg-type]
    watcher.start()
    time.sleep(0.1)
    assert watcher.stop()
    assert watcher.current == "first"
    told = [text for record in caplog.records if "model: gone" in (text := record.getMessage())]
    assert len(told) == 1, "the same reason is told once"
    assert "the current one stays in use" in told[0]


@contextmanager
def command(runs: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `ctvr serve` on a free port; yield the process and the address that it prints."""
    given = [sys.executable, "-m", "ctvr", "serve", "--model", "zero_shot", "--runs", str(runs), "--port", "0", *words]
    process = subprocess.Popen(given, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        address = re.search(r"http://\S+/", line)
        assert address, line + process.stderr.read()
        yield process, address[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_with_connections_open(learned, number, status):
    with command(learned) as (process, address):
        port = int(address.split(":")[2].strip("/"))
        client = Client(port)
        found = client.get("/search", q="a red circle", k=1).json
        assert client.get(found["hits"][0]["thumbnail"]).status == 200, "a child decodes"
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        waiting[0].sendall(b"GET /search?q=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        waiting[1].sendall(b"GET /sea")  # a request that never ends
        begun = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - begun < 15, "open connections must not delay the end"
        assert (process.returncode, out) == (status, "")
        assert "Traceback" not in err
        assert "Finished tasks" not in err
        for each in waiting:
            each.close()


@pytest.mark.slow
def test_a_signal_ends_it_while_the_model_is_loaded(learned):
    code = "import os, signal, sys\nfrom ctvr.orchestrator.jobs import serve\n"
    code += "serve.NewestModel.load = lambda self: os.kill(os.getpid(), int(os.environ['NUMBER'])) or signal.pause()\n"
    code += "from ctvr.orchestrator.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    words = ["serve", "--model", "zero_shot", "--runs", str(learned), "--port", "0"]
    for number, status in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        environment = {**os.environ, "NUMBER": str(int(number))}
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_a_wrong_option_is_one_line_before_a_model_is_loaded(learned, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("CTVR_SERVE_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, option in (
            (["--port", str(port)], f"--port {port}"),
            (["--port", "65536"], "--port 65536"),
            (["--port", "-1"], "--port -1"),
            (["--host", "0.0.0.0"], "--host 0.0.0.0"),
            (["--token-file", str(tmp_path / "no")], f"--token-file {tmp_path / 'no'}"),
            (["--port", "0", "--gallery", str(tmp_path / "no")], f"--gallery {tmp_path / 'no'}"),
        ):
            assert main(["serve", "--model", "zero_shot", "--runs", str(learned), *words]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert not missing_from(said.err, *option.split())
            assert said.err.count("\n") == 1
    monkeypatch.setenv("CTVR_SERVE_TOKEN", "a-token-of-my-own")
    assert main(["serve", "--model", "zero_shot", "--runs", str(learned), "--host", "192.0.2.1", "--port", "0"]) == 2
    assert not missing_from(capsys.readouterr().err, "--host", "192.0.2.1", "127.0.0.1")
    assert main(["serve", "--model", "no-such", "--runs", str(learned), "--port", "0"]) == 2
    assert "'no-such'" in capsys.readouterr().err
