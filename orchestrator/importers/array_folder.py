"""Folder of an imported stream's arrays or videos. Each import writes a numbered folder, which the manifest names.

The manifest is replaced last and atomically, so an earlier stream of that name is intact until the new stream is
complete.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ctvr.orchestrator.errors import NOT_WRITABLE, ConfigError
from ctvr.orchestrator.processes import hold_lock
from ctvr.orchestrator.streams.json_reader import read_json

_BEFORE = re.compile(r"\d{6}\.npy|texts\.npz|features\.yaml|canaries\.npz")  # of versions without numbered folders


def current_arrays(place: Path) -> Path | None:
    """Return the folder of arrays that the manifest of `place` names: `place`, a subfolder, or None."""
    try:
        manifest = read_json(place.with_name(f"{place.name}.json"))
    except ConfigError:
        return None
    named = manifest.get("videos") if isinstance(manifest, dict) else None
    folder = (place.parent / str(named)).resolve()
    return folder if named and place.resolve() in (folder, folder.parent) and folder.is_dir() else None


@contextmanager
def new_arrays(place: Path, source: Path) -> Iterator[Path]:
    """Yield a new folder in `place`; the block writes the arrays and last the manifest, which is next to `place`.

    Then the arrays of earlier imports are removed. If the block fails, the new folder is removed. The next import
    removes the leftovers of a killed process. A lock lets one process at a time import a stream.

    Args:
        place: folder next to the manifest, of the same name.
        source: the imported file or folder. It must not be in `place`, whose previous content is removed.

    Raises:
        ConfigError: if the source is in `place`, the folder cannot be written, or another process imports a stream of
            that name.
    """
    if place.resolve() in (source.resolve(), *source.resolve().parents):
        fault = "is in the folder that the import replaces"
        raise ConfigError(fault, source, remedy="Move it, or use another --name.")
    made = [path for path in (place, *place.parents) if not path.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _hold_import_lock(place):
            yield from _new_arrays(place)
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            remedy = "Free some space, or use another --runs folder."
            raise ConfigError(f"cannot be written ({error.strerror})", place, remedy=remedy) from error
        raise
    finally:
        with suppress(OSError):
            for path in made:
                path.rmdir()


def _new_arrays(place: Path) -> Iterator[Path]:
    new = place.resolve() / str(max((int(path.name) for path in _numbered(place)), default=0) + 1)
    try:
        new.mkdir(parents=True)
        yield new
    except BaseException:
        if current_arrays(place) != new:
            shutil.rmtree(new, ignore_errors=True)
        raise
    current = current_arrays(place)
    for path in _numbered(place):
        if path.resolve() != current:
            shutil.rmtree(path, ignore_errors=True)
    for path in place.iterdir() if current == new else ():
        if _BEFORE.fullmatch(path.name):
            path.unlink()


@contextmanager
def _hold_import_lock(place: Path) -> Iterator[None]:
    """Hold the lock of a stream's import, a file that is removed at the end."""
    file = place.with_name(f".{place.name}.lock")
    with ExitStack() as held:
        try:
            while True:
                lock = held.enter_context(hold_lock(file, wait=False))
                if file.exists() and os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    break  # otherwise the previous holder removed the file after this process opened it
                held.close()
        except BlockingIOError as error:
            fault = "another process is importing a stream of this name"
            raise ConfigError(fault, f"stream {place.name}", remedy="Wait for it, or use another --name.") from error
        held.callback(file.unlink, missing_ok=True)
        yield


def _numbered(place: Path) -> list[Path]:
    found = place.iterdir() if place.is_dir() else ()
    return [path for path in found if path.name.isdecimal() and path.name.isascii() and path.is_dir()]
