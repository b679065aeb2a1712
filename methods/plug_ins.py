"""Plug-ins of other installed packages: entry points in the groups `ctvr.KIND`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Container
from importlib.metadata import EntryPoint

KINDS = (
    "methods",
    "backbones",
    "streams",
    "protocols",
    "searchers",
    "schedulers",
    "search_spaces",
    "metrics",
    "optimizers",
    "mirrors",
)


def installed(kind: str, built_in: Container[str] = ()) -> dict[str, EntryPoint]:
    """Map names to the entry points of a kind. A built-in name keeps its meaning, so its entry point is left out."""
    points = importlib.metadata.entry_points(group=f"ctvr.{kind}")
    return {point.name: point for point in points if point.name not in built_in}


def owners_of(kind: str, name: str) -> list[str]:
    """Return the packages that have different entry points of one name; a name in use must have at most one."""
    points = {point.value: point for point in importlib.metadata.entry_points(group=f"ctvr.{kind}", name=name)}
    return sorted(point.dist.name if point.dist else point.module for point in points.values())


def every_plug_in() -> list[EntryPoint]:
    """Return the entry points through which other packages add to ctvr."""
    return [point for kind in KINDS for point in importlib.metadata.entry_points(group=f"ctvr.{kind}")]
