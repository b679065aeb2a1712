"""Command lines, search paths and CPU kernels of the Python processes that this project starts.

`python -m` and `python -c` put the current folder first on `sys.path`, so that a file random.py or ctvr.py there
shadows the module of that name. The functions of this module avoid that.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import functools
import gc
import os
import platform
import site
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).absolute().parents[2]  # the folder that contains the package ctvr
KERNELS = ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")  # ctvr/kernels.py sets them
SAFE_PATH = "PYTHONSAFEPATH"  # read by Python 3.11 and later, also in processes that libraries start
_START = (  # Python 3.10 has no -P; `sys` is built in, so no file can shadow it
    "import sys; del sys.path[0], sys.argv[0]; import runpy; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """Pause garbage collection while packages are imported, or many items without reference cycles are created.

    Each collection scans all existing objects. Without collections, creating such items takes half the time, and the
    imports of a run take one CPU-second less.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run_module(module: str, *words: str) -> list[str]:
    """Return the command that runs a module like `python -m`, without the current folder on `sys.path`."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *words]
    return [sys.executable, "-c", _START, module, *words]


def child_environment() -> dict[str, str]:
    """Return this process's environment for a child that imports our packages."""
    return {**os.environ, SAFE_PATH: "1", "PYTHONPATH": os.pathsep.join([*source_folders(), *_given()])}


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables inside the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def library_path() -> str:
    """Return a PYTHONPATH with which a child imports this process's libraries, but none of the user's own files.

    The current folder and the folder of the running script are excluded unless the user's PYTHONPATH names them.
    """
    left_out = {_real(folder) for folder in own_folders()} - {_real(folder) for folder in _given()}
    found = [os.path.abspath(entry) for entry in sys.path if entry and _real(entry) not in left_out]
    return os.pathsep.join(dict.fromkeys([*source_folders(), *found]))


def kernels() -> str:
    """Return the variables that select torch's CPU kernels, and the processor if results depend on it.

    ctvr/kernels.py sets the variables and has the table of processors with equal results.
    """
    given = {name: os.environ[name] for name in KERNELS if os.environ.get(name)}
    mode = given.get("MKL_CBWR", "").upper()
    of_all = mode.startswith("COMPATIBLE")
    processor = "" if of_all else processor_field("vendor_id" if mode.startswith("AVX2") else "model name")
    return " ".join([*(f"{name}={value}" for name, value in given.items()), processor]).strip()


@functools.cache
def processor_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo, such as `model name`.

    Without that field, return Python's description of the processor.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == name), platform.processor())


def name_every_file() -> None:
    """Restart this process in Python's UTF-8 mode if its locale is ASCII (`LC_ALL=C` with `PYTHONUTF8=0`).

    In such a locale a file with a non-ASCII name cannot be opened, and `Path.is_file` returns False for it. Characters
    that the terminal's encoding lacks are still escaped.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.ignore_environment:
        return
    if codecs.lookup(sys.getfilesystemencoding()).name != "ascii":  # file names use that encoding
        return
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault("PYTHONIOENCODING", "ascii:backslashreplace")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def name_home() -> None:
    """Set HOME, which libraries need, if it is unset and the user has no home folder (as in some containers)."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/nonexistent"  # the usual home of system accounts


def leave(status: int) -> NoReturn:
    """Join all threads, run the exit handlers, and exit without the destructors of Python and native libraries.

    If a destructor failed (Arrow, torch, FFmpeg, CUDA), a finished command would be reported as crashed. We observed
    this once, as a segmentation fault after a run was complete.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    os._exit(status)


def own_folders() -> list[str]:
    """Return the folders that may contain the user's files: the current folder and the folder of the running script."""
    folders = []
    with contextlib.suppress(FileNotFoundError):  # it was deleted
        folders.append(os.getcwd())
    if script := getattr(sys.modules.get("__main__"), "__file__", None):
        folders.append(os.path.dirname(os.path.abspath(script)))
    return list(dict.fromkeys(folders))


def method_folders() -> list[str]:
    """Return the folders that are searched for the module of a class `module:Class`."""
    here = Path(__file__).resolve().parent  # the folder of orchestrator/sweep.py, which is run as a script
    return [folder for folder in own_folders() if not Path(folder).resolve().is_relative_to(here)]


def source_folders() -> list[str]:
    """Return the folder that contains our package, or [] if the package is installed in site-packages."""
    known = [*site.getsitepackages(), site.getusersitepackages()]
    return [] if _real(ROOT) in map(_real, known) else [str(ROOT)]


def _given() -> list[str]:
    """Return the non-empty entries of the user's PYTHONPATH; an empty entry means the current folder."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys(os.path.abspath(entry) for entry in entries if entry))


def _real(path: str | Path) -> str:
    return os.path.realpath(path)
