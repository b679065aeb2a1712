"""Names of protocols: built-in ones, and those of other installed packages (entry points `ctvr.protocols`).

This module reads only names and does not import the packages; the classes are in learning/evaluation/protocols.py.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

PROTOCOLS = ("ctvr", "cvlm", "ucl", "qa")


def plugins() -> dict[str, EntryPoint]:
    """Return the protocols of installed packages as name -> `module:Class`. Built-in names cannot be replaced."""
    return {point.name: point for point in entry_points(group="ctvr.protocols") if point.name not in PROTOCOLS}
