"""Files that a plug-in opens below its folders, at its import and in training steps (`ctvr methods check`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctvr.orchestrator.keys.foreign_code import Closure

_CODE = (".py", ".pyc", ".so", ".pyd")
_opened: list[str] | None = None  # None if nothing is recorded
_is_hooked = False


@contextmanager
def record_opened() -> Iterator[list[str]]:
    """Record the paths of all files that this process opens."""
    global _opened, _is_hooked
    if not _is_hooked:  # Python cannot remove an audit hook
        sys.addaudithook(_note)
        _is_hooked = True
    found: list[str] = []
    _opened = found
    try:
        yield found
    finally:
        _opened = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str):
        _opened.append(arguments[0])


def describe_opened(module: str, opened: list[str]) -> str:
    """Describe the opened files below the folders of a plug-in's modules, and whether the run key contains them."""
    closure = Closure([module])
    folders = {file.parent.resolve() for name, file in closure.files.items() if ": file " not in name}
    known = {file.resolve() for file in closure.files.values()}
    files = sorted({Path(each).resolve() for each in opened if not each.endswith(_CODE)})
    own = [file for file in files if file.is_file() and any(map(file.is_relative_to, folders))]
    own = [file for file in own if "site-packages" not in file.parts]  # of an environment below the folder
    if not own:
        return "no file below its folders"
    return ", ".join(f"{file.name} ({'in' if file in known else 'not in'} the key)" for file in own)
