"""Location of an exception in user code: a class in the user's file, or a plug-in of another package."""

from __future__ import annotations

import importlib.metadata
import sys
import traceback

from ctvr.methods import _MethodFolders, trusted

GROUPS = ("methods", "streams", "protocols", "searchers", "schedulers", "search_spaces")  # after `ctvr.`


def place_in_user_code(error: BaseException) -> str:
    """Return the innermost line of user code in the traceback of an error, as `FILE, line N`; empty if none."""
    points = (point.value for kind in GROUPS for point in importlib.metadata.entry_points(group=f"ctvr.{kind}"))
    tops = {place.partition(":")[0].partition(".")[0] for place in (*trusted(), *points)} - {"ctvr"}
    tops |= {name for finder in sys.meta_path if isinstance(finder, _MethodFolders) for name in finder.own}
    frames = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in tops
    ]
    return frames[-1] if frames else ""
