"""Import of objects from the user's files and from plug-ins, and the lines in them at which exceptions occur."""

from __future__ import annotations

import functools
import sys
import traceback
from importlib.metadata import EntryPoint
from typing import Any

from ctvr.methods import UntrustedClass, _look_in_method_folders, _MethodFolders, import_foreign, trusted
from ctvr.methods.plug_ins import every_plug_in


def load_object(point: EntryPoint, is_installed: bool) -> Any:
    """Import and return the object of an entry point, or of a `MODULE:NAME` that the user has given.

    Raises:
        UntrustedClass: for a name that is not installed and that `trust` has not allowed.
        ValueError: if the object cannot be imported.
    """
    if not is_installed:
        if point.value not in trusted():
            raise UntrustedClass(point.value)
        _look_in_method_folders(point.module)
    module = import_foreign(point.value, point.module)
    try:
        return functools.reduce(getattr, point.attr.split("."), module)
    except AttributeError as error:
        raise ValueError(f"{point.value}: {point.module} has no {point.attr}. Correct the name.") from error


def place_in_user_code(error: BaseException) -> str:
    """Return the innermost line of user code in the traceback of an error, as `FILE, line N`; empty if none."""
    places = (*trusted(), *(point.value for point in every_plug_in()))
    tops = {place.partition(":")[0].partition(".")[0] for place in places} - {"ctvr", "torch"}
    tops |= {name for finder in sys.meta_path if isinstance(finder, _MethodFolders) for name in finder.own}
    frames = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in tops
    ]
    return frames[-1] if frames else ""
