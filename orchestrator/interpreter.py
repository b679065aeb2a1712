"""Command lines and search paths of the Python processes that this project starts.

`python -m` and `python -c` put the present folder first on `sys.path`, where a file called random.py or ctvr.py
hides the module of that name. Nothing here does.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]  # the folder that holds the package ctvr
SAFE_PATH = "PYTHONSAFEPATH"  # read by Python 3.11 and later: also by processes that libraries start
_START = (  # Python 3.10 has no -P; `sys` is built in, so no file can hide it
    "import sys; del sys.path[0], sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def run_module(module: str, *words: str) -> list[str]:
    """Return the command that runs a module as `python -m` does, without the present folder on `sys.path`."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *words]
    return [sys.executable, "-c", _START, module, *words]


def child_environment() -> dict[str, str]:
    """Return this process's environment for a child that imports our packages."""
    return {**os.environ, SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join([*source_folders(), *_given()])}


@contextlib.contextmanager
def safe_children() -> Iterator[None]:
    """Keep the present folder off the path of Python processes that libraries start inside the block (Python 3.11)."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def library_path() -> str:
    """Return the PYTHONPATH of a child that imports the libraries of this process and none of the user's own files.

    The present folder and the folder of the script that runs stay out unless the user's PYTHONPATH names them.
    """
    left_out = {_real(folder) for folder in own_folders()} - {_real(folder) for folder in _given()}
    found = [os.path.abspath(entry) for entry in sys.path if entry and _real(entry) not in left_out]
    return os.pathsep.join(dict.fromkeys([*source_folders(), *found]))


def name_every_file() -> None:
    """Start this process again in Python's UTF-8 mode where its locale is ASCII (`LC_ALL=C` with `PYTHONUTF8=0`).

    There no file can be opened whose name has another character, and `Path.is_file` says that it does not exist. What
    the terminal cannot show stays an escape.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.ignore_environment:
        return
    if codecs.lookup(sys.getfilesystemencoding()).name != "ascii":  # names of files are in that encoding, then
        return
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault("PYTHONIOENCODING", "ascii:backslashreplace")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def name_home() -> None:
    """Set HOME where neither it nor the system knows one (a container's user without a name): libraries ask for it."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/nonexistent"  # as of the system's own users


def own_folders() -> list[str]:
    """Return the folders in which the user's own files may lie: the present one, and that of a script that runs."""
    folders = []
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        folders.append(os.getcwd())
    if script := getattr(sys.modules.get("__main__"), "__file__", None):
        folders.append(os.path.dirname(os.path.abspath(script)))
    return list(dict.fromkeys(folders))


def method_folders() -> list[str]:
    """Return the folders in which a class that the user names by `module:Class` may lie."""
    here = Path(__file__).resolve().parent  # of orchestrator/sweep.py, which is run as a script
    return [folder for folder in own_folders() if not Path(folder).resolve().is_relative_to(here)]


def source_folders() -> list[str]:
    """Return the folder of our package, unless every interpreter finds it by itself."""
    known = [*site.getsitepackages(), site.getusersitepackages()]
    return [] if _real(ROOT) in map(_real, known) else [str(ROOT)]


def _given() -> list[str]:
    """Return the entries of the user's PYTHONPATH; an empty one, which would mean the present folder, is left out."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys(os.path.abspath(entry) for entry in entries if entry))


def _real(path: str | Path) -> str:
    return os.path.realpath(path)
