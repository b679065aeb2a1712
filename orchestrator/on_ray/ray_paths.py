"""Ray's files on a machine and the cluster that they name. Does not load Ray, so that `ctvr doctor` can use it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError

# Ray binds Unix sockets at TEMP/ray/session_2026-11-25_14-18-18_123456_PID/sockets/plasma_store
_ADDED = len("/ray/session_2026-11-25_14-18-18_123456_/sockets/plasma_store")
_MOST = 103 if sys.platform == "darwin" else 107  # maximum bytes of the path of a Unix socket
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def temporary_folder() -> Path:
    """Return the folder below which Ray creates its folder `ray`, by Ray's own rule."""
    if "RAY_TMPDIR" in os.environ:
        return Path(os.environ["RAY_TMPDIR"])
    if sys.platform.startswith("linux") and "TMPDIR" in os.environ:
        return Path(os.environ["TMPDIR"])
    return Path("/tmp")


def socket_problem(folder: Path) -> str:
    """Return the reason why Ray cannot bind its Unix sockets below a folder; "" if it can."""
    most = _MOST - _ADDED - len(str(os.getpid()))
    if (length := len(os.fsencode(os.path.abspath(folder)))) > most:
        return f"its path has {length} characters, but Ray's Unix sockets allow at most {most}"
    there = Path(os.path.abspath(folder), "ray")
    if there.exists() and there.stat().st_uid not in (0, os.getuid()):  # the folder's owner could replace our files
        return f"{there} belongs to another user"
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryDirectory(prefix="r", dir=there) as probe, socket.socket(socket.AF_UNIX) as tried:
            tried.bind(f"{probe}/s")
    except OSError as error:
        return f"a socket cannot be made in it ({error.strerror or error})"
    return ""


def usable_folder() -> tuple[Path, str]:
    """Return the folder for the files of a local Ray cluster, and the reason if it is not Ray's default.

    Raises:
        ConfigError: if neither the default nor any of the short folders can be used.
    """
    folder = temporary_folder()
    problem = socket_problem(folder)
    if not problem:
        return folder, ""
    for short in map(Path, SHORT_FOLDERS):
        if not socket_problem(short):
            return short, problem
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), "RAY_TMPDIR")
    raise ConfigError(f"{name}={folder}: {problem}. Set RAY_TMPDIR to a folder with a short path, on a local disk.")


def cluster_file() -> Path:
    """Return the file with the address of the cluster to which this machine belongs; it exists only in a cluster."""
    return temporary_folder() / "ray" / "ray_current_cluster"


def cluster_address() -> str:
    """Return the address in `cluster_file`; empty if the file does not exist or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return cluster_file().read_text(encoding="utf-8").strip()
    return ""


def is_listening(address: str, seconds: float) -> bool:
    """Return whether a process listens at HOST:PORT (with or without ray://; port 6379 by default)."""
    host, _, port = address.rpartition("://")[2].partition("?")[0].rpartition(":")
    if not port.isdigit():
        host, port = host or port, "6379"
    if not host:
        return False
    with (
        contextlib.suppress(OSError, OverflowError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), seconds),
    ):
        return True
    return False


def token_file() -> Path:
    """Return the file for the authentication token of a cluster; it may not exist."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()
