"""Output folders of commands and their names: checked with the arguments, created before the slow work."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ctvr.orchestrator.errors import NO_SPACE, ConfigError
from ctvr.orchestrator.processes import is_running


def is_name(text: str) -> bool:
    """Return whether a text is a folder name on all systems: letters, digits, `.`, `_`, `-`; no leading `.` or `-`."""
    device = text.partition(".")[0].lower()  # Windows reserves these names with any extension
    is_device = device in {"con", "prn", "aux", "nul"} or re.fullmatch("(com|lpt)[0-9¹²³]", device)
    is_short = len(text) <= 100 and len(text.encode(errors="replace")) <= 200  # file systems count bytes, at most 255
    return not is_device and is_short and re.fullmatch(r"\w[\w.-]*", text) is not None and text[-1] != "."


def nearest_name(text: str) -> str:
    """Return the folder name of ASCII characters that is closest to a text, or `my-name` if none of it is usable."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = re.sub("[^a-zA-Z0-9_.-]+", "-", plain).lstrip("-.")[:60].rstrip("-.")
    return name if is_name(name) else f"my-{name or 'name'}"


def check_name(text: str, where: str, is_ascii: bool = False) -> None:
    """Refuse a folder name that could escape its parent folder or be parsed as an option.

    Args:
        text: the name.
        where: the option as the user wrote it, with which the message begins.
        is_ascii: whether the name becomes a part of addresses, so that only the letters a to z are accepted.

    Raises:
        ConfigError: if the name is not accepted; the remedy proposes another name.
    """
    if not is_name(text) or (is_ascii and not text.isascii()):
        letters = "ASCII letters" if is_ascii else "letters"
        raise ConfigError(
            f"is not a valid folder name on every system (got {text!r:.100})",
            where,
            remedy=f"Use {letters}, digits and . _ - (at most 100, no . or - first, no Windows device name such as "
            f"con), for example {nearest_name(text)}.",
        )


def require_new(folder: Path) -> None:
    """Check before slow work that `new_folder` can write a folder; remove leftovers of a killed command in it.

    Raises:
        ConfigError: if the folder is not empty, is a file, or cannot be created.
    """
    _remove_unfinished(folder, folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError("already exists and is not empty", folder, remedy="Use another folder.")
    check_creatable(folder)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a folder of several files: yield a temporary folder, whose name becomes `folder` when the block ends.

    After an exception nothing is left. The next call removes the leftovers of a killed process, so the same command can
    be repeated. The temporary folder is next to `folder`. An empty `folder` may be a mount or the working
    folder. The temporary folder is then inside `folder`, and its content is moved up, an entry at a time.

    Raises:
        ConfigError: if the folder is not empty, is a file, or cannot be written.
    """
    require_new(folder)
    target = folder.resolve()
    parent = target if target.is_dir() else target.parent
    temporary = parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(parent, target.name)
        temporary.mkdir()
    except OSError as error:
        raise ConfigError(f"cannot be created ({error.strerror})", folder, remedy="Use another folder.") from error
    try:
        yield temporary
        for path in list(temporary.iterdir()) if parent == target else ():
            path.rename(target / path.name)
        if parent != target:
            temporary.rename(target)
    except OSError as error:
        if error.errno not in NO_SPACE and not str(error.filename or "").startswith(str(temporary)):
            raise
        remedy = "Use a folder with more free space." if error.errno in NO_SPACE else "Use another folder."
        raise ConfigError(f"cannot be written ({error.strerror})", folder, remedy=remedy) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_creatable(folder: Path, option: str = "") -> None:
    """Check that a folder can be written, or created where it does not exist. Nothing is created.

    Raises:
        ConfigError: if it cannot; the message names `option`, if one is given.
    """
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder.absolute())):
            pass
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot be written ({reason})", f"{option} {folder}".lstrip(), remedy="Choose another folder."
        ) from error


def publish(path: Path, content: bytes) -> Path:
    """Write a file atomically; if the disk is full, no partial file is left. Remove killed writers' files first."""
    _remove_once(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:  # another machine, on which our process ID does not exist, removed it
            temporary.write_bytes(content)
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return path


_remove_once = functools.cache(lambda folder: _remove_unfinished(folder))


def _remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove the leftovers of ended writers: temporary files of `publish` or, with `name`, folders of `new_folder`.

    A killed process of a container may have had the same ID as this process, so its folders are also removed.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            found = re.fullmatch(r"\.(.+)\.(\d{1,9})\.tmp", path.name)
            if not found or (is_running(int(found[2])) and not (name and int(found[2]) == os.getpid())):
                continue
            if not name:
                path.unlink()
            elif found[1] == name and not path.is_symlink():
                shutil.rmtree(path)


def runs_option(runs: str | Path) -> str:
    """Return the option ` --runs FOLDER` of a printed command, quoted for the shell, or "" for the default folder."""
    return "" if Path(runs).resolve() == Path("runs").resolve() else f" --runs {shlex.quote(str(runs))}"


def write_in_runs(path: Path, content: bytes, remedy: str = "Use another --runs folder.") -> None:
    """Write a file atomically, and create its parent folders; the default `remedy` is for files in the runs folder.

    Raises:
        ConfigError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path, content)
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", path, remedy=remedy) from error


def _nearest(folder: Path) -> Path:
    """Return the folder, or its closest existing parent. A dangling link counts as existing."""
    for path in (folder, *folder.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
            return path
    return folder
