"""A dead driver is restarted as long as it finishes tasks; its remaining processes are ended; each event is one line.

The drivers here are small scripts that use the child's half as `ctvr` does. With Ray: on_ray/test_sweeps.py.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.cli.main import main, make_parser
from ctvr.orchestrator.cli.options import preflight
from ctvr.orchestrator.cli.supervisor import SupervisedCommand, supervise
from ctvr.orchestrator.cli.sweep import is_supervised, supervised_command
from ctvr.orchestrator.errors import StoreError

REPOSITORY = Path(__file__).resolve().parents[3]
BEGIN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.store.store import Store
supervisor.init_child()
runs, life = Path(sys.argv[1]), int(sys.argv[2])
def commit():
    Store.open(runs / "store").put_json("commits", f"run/task_{life:03d}", {})
def plan():
    (runs / "sweeps" / "s").mkdir(parents=True, exist_ok=True)
    (runs / "sweeps" / "s" / "plan.json").write_text(json.dumps({"plan": {"store": ""}}))
"""


@dataclass
class Scripted(SupervisedCommand):
    """A job whose attempts follow a script, given the runs folder, the number of the attempt and the arguments."""

    script: str = ""

    def command(self) -> list[str]:
        words = super().command()[4:]
        return [sys.executable, "-c", BEGIN + self.script, str(self.runs), str(self.attempts), *words]


def job(tmp_path: Path, script: str, *words: str) -> Scripted:
    return Scripted(["sweep", *words], tmp_path, name="s", script=script)


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it may end while it is looked at
        return False


def test_dead_driver_is_resumed_while_it_makes_progress(tmp_path, capfd):
    """The second attempt leaves a process in a separate session, and prints much that is never read."""
    script = """
(runs / f"words{life}").write_text(" ".join(sys.argv[3:]))
if life == 0:
    plan(); commit(); os.kill(os.getpid(), signal.SIGKILL)
if life == 1:
    commit()
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (runs / "left").write_text(str(left.pid))
    os.write(2, b"*** core_worker.cc:609: Raylet is terminated. ...\\n" * 40)
    os._exit(1)
sys.stderr.write("a line of ours\\n")
supervisor.report_exit(1)
os.kill(os.getpid(), signal.SIGSEGV)  # whatever an interpreter does when all is told
"""
    assert supervise(job(tmp_path, script, "--method", "lwf")) == 1  # the status of the last life
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0].endswith(
        "sweep s: the driver was killed by SIGKILL (memory may have run out); finished tasks are kept (1 in the "
        "store); restarting"
    )
    assert said[1].endswith(
        "sweep s: the driver exited with status 1; finished tasks are kept (2 in the store); restarting"
    )
    assert said[2] == "a line of ours"
    assert (tmp_path / "words0").read_text() == "sweep --method lwf"
    assert (tmp_path / "words2").read_text() == f"sweep --resume s --runs {tmp_path}"
    assert not is_alive(int((tmp_path / "left").read_text()))


def test_two_starts_without_progress_end_with_the_resume_command(tmp_path, capfd):
    script = """
supervisor.report_name("named")
supervisor.report_exit(1, "RuntimeError: Caught")
print("Trace", file=sys.__stderr__)
"""
    made = job(tmp_path, script, "--method", "lwf", "a b=1")
    made.name = ""
    assert supervise(made) == 1
    first, last = capfd.readouterr().err.splitlines()
    assert first.endswith("sweep named: RuntimeError: Caught; finished tasks are kept (0 in the store); restarting")
    log = tmp_path / "drivers" / "named.log"
    assert last == (
        "ctvr: sweep named: RuntimeError: Caught; finished tasks are kept (0 in the store). Not restarted: "
        f"2 attempts in a row ended so. Log: {log}. Resume with: ctvr sweep --method lwf 'a b=1'"
    )
    assert log.read_text() == "Trace\n"


def test_supervisor_waits_for_a_missing_store(tmp_path, capfd, monkeypatch):
    """The second attempt finds the store again; one that had not begun ends with one line."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.01)
    script = """
if life == 0 and "begun" in sys.argv:
    plan(); commit()
supervisor.report_exit(*((0,) if life else (1, "s3://b: is away. Try later.", True)))
"""
    assert supervise(job(tmp_path, script, "begun")) == 0
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith(
        "sweep s: s3://b: is away. Try later.; finished tasks are kept (1 in the store); waiting up to 60 min for it"
    )
    assert second.endswith("sweep s: restarting")
    assert supervise(job(tmp_path / "other", script)) == 1
    assert capfd.readouterr().err == "ctvr: s3://b: is away. Try later.\n"
    monkeypatch.setattr(supervisor, "AWAY_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "ROOM", 10**18)
    assert supervise(job(tmp_path, script, "begun")) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == (
        "ctvr: sweep s: still unavailable. Finished tasks are kept. Resume with: ctvr sweep --resume s --runs "
        f"{tmp_path}"
    )


def test_a_child_leaves_a_full_disk_or_lost_store_to_its_parent(tmp_path, monkeypatch, capsys):
    for error in (OSError(errno.ENOSPC, "No space left on device"), StoreError("s3://b: is away.")):

        def fail(arguments: object, error: Exception = error) -> str:
            raise error

        monkeypatch.setattr("ctvr.orchestrator.cli.results._doctor", fail)
        assert main(["doctor"]) == (1 if isinstance(error, StoreError) else 2)
        monkeypatch.setattr(supervisor, "_life", tmp_path)
        assert main(["doctor"]) == 1
        monkeypatch.setattr(supervisor, "_life", None)
        told = json.loads((tmp_path / "end").read_text())
        assert (told["status"], told["is_unavailable"]) == (None, True)
        assert (error.strerror if isinstance(error, OSError) else str(error)) in told["fault"]
        (tmp_path / "end").unlink()
    assert "Free some space and run again" in capsys.readouterr().err


def test_a_lost_mlflow_server_is_waited_for_and_a_wrong_one_is_not(tmp_path, monkeypatch, capsys):
    def fail(arguments: object) -> str:
        preflight(Namespace(runs=tmp_path, store="", videos=None), None)
        return ""

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")

    monkeypatch.setattr("ctvr.orchestrator.cli.results._doctor", fail)
    monkeypatch.setattr(supervisor, "_life", tmp_path)
    for former in (0, 1):
        monkeypatch.setattr(supervisor, "_former", former)
        assert main(["doctor"]) == 2 - former
        told = json.loads((tmp_path / "end").read_text())
        assert (told["status"], told["is_unavailable"]) == ((None, True) if former else (2, False))
    assert capsys.readouterr().err.count("Start the server") == 1
    # The parent looks at the server, too
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "AWAY_SECONDS", 0.3)
    assert not supervisor._comes_back(SupervisedCommand(["sweep"], tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert supervisor._comes_back(SupervisedCommand(["sweep"], tmp_path))


@pytest.mark.parametrize("error", ["ImportError('no such module')", "SyntaxError('invalid')"])
def test_a_fault_of_the_code_ends_the_first_attempt(tmp_path, capfd, error):
    """The fault also ends the next attempt, after the minutes in which torch and Ray are loaded."""
    script = f"""
from ctvr.orchestrator.cli import main
def fail(argv): raise {error}
main._run = fail
sys.exit(main.main(["sweep"]))
"""
    assert supervise(job(tmp_path, script, "--method", "lwf")) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert error.partition("(")[0] in line
    assert "Not restarted: the next attempt would end the same way. Log: " in line
    assert "Traceback" in (tmp_path / "drivers" / "s.log").read_text()


def test_a_mistake_of_the_user_is_reported_once(tmp_path, capfd):
    assert supervise(job(tmp_path, "sys.stderr.write('ctvr: no such method\\n'); supervisor.report_exit(2)")) == 2
    assert capfd.readouterr().err == "ctvr: no such method\n"


SLOW = """
def end(number, frame):
    (runs / "got").write_text(signal.Signals(number).name)
    supervisor.report_exit(130); sys.exit(130)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
(runs / "pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_driver_gets_signals_and_ends_with_its_parent(tmp_path, number):
    code = (
        "import signal, sys; from pathlib import Path; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tests.orchestrator.cli.test_supervisor import SLOW, job, supervise\n"
        "sys.exit(supervise(job(Path(sys.argv[1]), SLOW)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment, cwd=REPOSITORY)
    until = time.monotonic() + 120
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        assert parent.poll() is None
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    parent.send_signal(number)
    assert parent.wait(60) == (-number if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert (tmp_path / "got").read_text() == number.name
    while is_alive(child):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_supervised_command_keeps_its_name_and_time_limit(tmp_path):
    words = ["sweep", "--resume", "s", "--runs", "there", "--budget-hours", "2"]
    made = supervised_command(make_parser().parse_args(words), words)
    made.attempts = 1
    line = made.command()[4:]
    assert line[:-1] == [*words, "--budget-hours"]
    assert 1.9 < float(line[-1]) <= 2
    words = ["rerun", "--sweep", "s", "--seeds", "2"]
    made = supervised_command(make_parser().parse_args(words), words)
    assert (made.what, made.resume_argv) == ("rerun s", words)
    words = ["reproduce", "tempme/table2", "--runs", str(tmp_path)]
    made = supervised_command(make_parser().parse_args(words), words)
    made.name = "t"  # as the child reports it
    assert made.resume_argv == words
    (tmp_path / "sweeps" / "t").mkdir(parents=True)
    (tmp_path / "sweeps" / "t" / "plan.json").write_text("{}")
    assert made.resume_argv == ["sweep", "--resume", "t", "--runs", str(tmp_path)]
    made.trust = ["--trust", "a:B"]  # of a class that the user has named in the first command
    assert made.resume_argv == ["sweep", "--resume", "t", "--runs", str(tmp_path), "--trust", "a:B"]
    shown = [["reproduce", "--list"], ["reproduce", "tempme/table2", "--plan"], ["table"]]
    assert [is_supervised(make_parser().parse_args(line)) for line in [words, *shown]] == [True, False, False, False]
