"""Folder of the arrays of an imported stream. Each import writes a numbered folder, which the manifest then names.

The manifest is replaced last and atomically, so an earlier stream of that name is intact until the new one is complete.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ctvr.orchestrator.errors import NOT_WRITABLE, ConfigError
from ctvr.orchestrator.streams.manifest import read_json

_BEFORE = re.compile(r"\d{6}\.npy|texts\.npz|features\.yaml|canaries\.npz")  # earlier versions used no numbered folder


def current_arrays(place: Path) -> Path | None:
    """Return the folder of arrays that the manifest of `place` names: `place`, a subfolder, or None."""
    try:
        manifest = read_json(place.with_name(f"{place.name}.json"))
    except ConfigError:
        return None
    named = manifest.get("videos") if isinstance(manifest, dict) and manifest.get("features") else None
    folder = place.parent / str(named)
    return folder if named and place in (folder, folder.parent) and folder.is_dir() else None


@contextmanager
def new_arrays(place: Path) -> Iterator[Path]:
    """Yield a new folder in `place`; the block writes the arrays and last the manifest, which is next to `place`.

    Then the arrays of earlier imports are removed. If the block fails, the new folder is removed. The next import
    removes the leftovers of a killed process.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    made = [path for path in (place, *place.parents) if not path.exists()]
    numbers = [int(path.name) for path in _numbered(place)]
    new = place / str(max(numbers, default=0) + 1)
    try:
        new.mkdir(parents=True)
        yield new
    except BaseException as error:
        if current_arrays(place) != new:
            shutil.rmtree(new, ignore_errors=True)
            with suppress(OSError):
                for path in made:
                    path.rmdir()
        if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
            remedy = "Free some space, or give another --runs folder."
            raise ConfigError(f"cannot be written ({error.strerror})", place, remedy=remedy) from error
        raise
    for path in _numbered(place):
        if path != new:
            shutil.rmtree(path, ignore_errors=True)
    for path in place.iterdir():
        if _BEFORE.fullmatch(path.name):
            path.unlink()


def _numbered(place: Path) -> list[Path]:
    found = place.iterdir() if place.is_dir() else ()
    return [path for path in found if path.name.isdecimal() and path.name.isascii() and path.is_dir()]
