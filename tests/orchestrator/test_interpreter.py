"""Processes that we start import nothing from the user's working directory, unless the user requests it."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ctvr.orchestrator import interpreter
from ctvr.orchestrator.interpreter import ROOT, child_environment, library_path, run_module
from ctvr.orchestrator.synthetic.stream import plan
from ctvr.orchestrator.synthetic.video_files import render_files
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling
from tests.orchestrator.video.clips import write_video
from tests.small_stream import write_stream

BELOW = ("orchestrator", "methods", "search_spaces")
SAY = "os.write(os.open({log!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'{name} ')"
CANARY = f"import os\n{SAY}\nraise SystemExit(9)\n"
# Python runs the first two when it starts, pytest and gunicorn the others
AT_START = ("sitecustomize", "usercustomize", "conftest", "gunicorn.conf")
PACKAGES = ("ctvr", "mlflow", "numpy", "ray", "torch")


@cache
def imported_names() -> set[str]:
    """Return the top-level modules that our sources import, including our own, and every module of Python's library."""
    found = {*sys.stdlib_module_names, *BELOW, "tests"}
    for file in (file for package in ("ctvr", *BELOW) for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    return found


@pytest.fixture
def canaries(tmp_path, monkeypatch):
    """Make a working directory with a file for every name that we import; each file reports its execution."""
    folder = tmp_path / "here"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
    for name in (*imported_names(), *AT_START, *(f"{name}/__init__" for name in PACKAGES)):
        (folder / f"{name}.py").write_text(CANARY.format(log=str(tmp_path / "executed"), name=name))
    (folder / "a.pth").write_text(f"import os; {SAY.format(log=str(tmp_path / 'executed'), name='pth')}\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv(interpreter.SAFE_PATH, raising=False)
    yield folder
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


def outcome(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**child_environment(), **environment}, capture_output=True, text=True)


def test_a_user_without_a_home_gets_one_that_does_not_exist(monkeypatch):
    def unknown() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("HOME", "/mine")
    interpreter.name_home()
    assert os.environ["HOME"] == "/mine"
    monkeypatch.setattr(interpreter.Path, "home", unknown)
    interpreter.name_home()
    assert os.environ["HOME"] == "/nonexistent"


def test_the_canary_files_are_executed_without_protection(canaries, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != interpreter.SAFE_PATH}
    assert subprocess.run([sys.executable, "-c", "import random"], env=environment).returncode == 9
    assert (tmp_path / "executed").read_text() == "random "
    (tmp_path / "executed").unlink()


def test_a_command_and_its_child_execute_no_file_of_the_present_folder(canaries):
    listed = outcome(run_module("ctvr", "methods"))
    assert "clip4clip" in listed.stdout, listed.stderr
    version = outcome([sys.executable, str(ROOT / "orchestrator" / "sweep.py"), "--help"])
    assert "usage: ctvr sweep" in version.stdout, version.stderr


def test_decoders_and_renderers_execute_no_file_of_the_present_folder(canaries, tmp_path):
    clip = write_video(tmp_path / "clip.mp4")
    with Decoder(workers=1) as decoder:
        assert decoder.decode(clip, Sampling(num_frames=2, size=32)).frames.shape == (2, 32, 32, 3)
    assert render_files(tmp_path / "made", [clip for clip, _ in plan(0)[:16]], workers=2, progress=False)


def test_pythonpath_stays_and_empty_entries_are_not_the_present_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path / "mine"), "relative"]))
    monkeypatch.chdir(tmp_path)
    entries = child_environment()["PYTHONPATH"].split(os.pathsep)
    assert entries == [*interpreter.source_folders(), str(tmp_path / "mine"), str(tmp_path / "relative")]
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "mine"), "/elsewhere"])
    assert str(tmp_path) not in library_path().split(os.pathsep)
    assert {str(tmp_path / "mine"), "/elsewhere"} <= set(library_path().split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path) in library_path().split(os.pathsep)


METHOD = """
from ctvr import Batch, Method, Task
from ctvr.methods.zero_shot import ZeroShot

class Mine(ZeroShot, Method):
    Config = ZeroShot.Config

    def begin_task(self, task: Task) -> None:
        assert isinstance(task, Task)
        super().begin_task(task)

    def losses(self, batch: Batch):
        return super().losses(batch)
"""


@pytest.fixture
def research(tmp_path):
    """Make a folder of research code: `methods.py` holds a method, the others end a process that imports them."""
    folder = tmp_path / "research"
    (folder / "search_spaces").mkdir(parents=True)
    (folder / "methods.py").write_text(METHOD)
    for name in ("orchestrator.py", "tests.py", "search_spaces/__init__.py"):
        (folder / name).write_text("raise SystemExit(9)\n")
    return folder


def in_folder(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run code with the folder first on its path, as in a notebook."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(interpreter.SAFE_PATH, None)
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, cwd=folder
    )


@pytest.mark.slow
def test_a_folder_whose_files_have_the_names_of_our_folders_breaks_nothing(research):
    manifest = write_stream(research / "small", num_tasks=2)
    listed = in_folder(research, "import ctvr; print(ctvr.list_methods(), ctvr.list_streams())")
    assert "clip4clip" in listed.stdout, listed.stderr
    start = "from ctvr.__main__ import main; raise SystemExit(main())"
    words = ["run", "--smoke", "--method", "methods:Mine", "--stream", str(manifest)]
    learned = in_folder(research, start, *words)
    assert learned.returncode == 0, learned.stderr
    assert learned.stdout.startswith("methods:Mine on small, test videos\n")


def test_a_file_that_hides_the_package_from_sweep_py_is_named(tmp_path):
    script = tmp_path / "sweep.py"  # where `ray submit` puts it
    script.write_text((ROOT / "orchestrator" / "sweep.py").read_text())
    (tmp_path / "theirs").mkdir()
    hides = tmp_path / "theirs" / "ctvr.py"
    hides.write_text("")
    environment = {**os.environ, "PYTHONPATH": str(hides.parent)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{hides} hides the package ctvr. Rename that file" in done.stderr


def test_a_decoder_whose_program_does_not_load_is_no_fault_of_a_video(monkeypatch, tmp_path):
    from ctvr.orchestrator.errors import ConfigError, CtvrError, VideoError
    from ctvr.orchestrator.video import pool
    from tests.refusing import missing_from

    for program, kind, words in (
        ("import nowhere_to_be_found", ConfigError, "'nowhere_to_be_found'"),
        ("import os; os.abort()", CtvrError, "SIGABRT"),
    ):
        monkeypatch.setattr(pool, "_CHILD", [sys.executable, "-c", program])
        with Decoder(workers=1) as decoder, pytest.raises(kind, match=words) as caught:
            list(decoder.map([Job(str(tmp_path / "a.mp4"))]))
        assert not isinstance(caught.value, VideoError)
        assert not missing_from(str(caught.value), "video", "fault")
        assert "\n" not in str(caught.value)


END = """
import atexit, ctypes, sys, tempfile, threading, time
from ctvr.orchestrator.interpreter import leave
if "bad end" in sys.argv:
    ctypes.CDLL(None).__cxa_atexit(ctypes.c_void_p(0x13660), None, None)  # a destructor of a native library
sys.stdout.write(tempfile.TemporaryDirectory().name + "\\n")
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stderr.write("no line break")
sys.exit(3) if "as Python does" in sys.argv else leave(3)
"""


def test_failing_destructor_does_not_crash_a_finished_command():
    def end(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-P", "-c", END, *words], capture_output=True, text=True)

    assert end("bad end", "as Python does").returncode == -11
    done = end("bad end")
    folder, *said = done.stdout.splitlines()
    assert (done.returncode, said, done.stderr) == (3, ["thread", "handler"], "no line break")
    assert not Path(folder).exists()


@pytest.mark.slow
def test_a_failing_exit_handler_does_not_change_the_status(tmp_path):
    code = "import ctypes; ctypes.CDLL(None).__cxa_atexit(ctypes.c_void_p(8), None, None); import ctvr.__main__ as m; "
    for words, status in (([], 0), (["methods", "nosuch"], 2)):
        command = [sys.executable, "-c", f"{code}import sys; sys.argv[1:] = {words}; m.main()"]
        assert subprocess.run(command, env=child_environment(), capture_output=True).returncode == status
