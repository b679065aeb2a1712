"""Installation of a package with entry points into a folder, as an installer leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, groups: Mapping[str, Mapping[str, str]], **modules: str) -> None:
    """Write modules (name -> source) and the metadata of a distribution.

    Args:
        site: folder that the caller puts on `sys.path`.
        name: name of the distribution.
        groups: group of entry points -> name -> `module:object`.
    """
    dist = site / f"{name}-1.dist-info"
    dist.mkdir(parents=True)
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [
        line for group, found in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in found.items()))
    ]
    (dist / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)
