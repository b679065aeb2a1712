"""Implementation of `ctvr methods new`: writes a package whose method runs and passes the contract checks."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins
from ctvr.orchestrator.catalog.method_templates import KINDS, SPACE
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import nearest_name, new_folder

PROJECT = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "ctvr-DASHED"
version = "0.1.0"
dependencies = ["ctvr"]

[project.entry-points."ctvr.methods"]
NAME = "NAME:CLASS"

[project.entry-points."ctvr.search_spaces"]
NAME = "NAME_space"

[tool.setuptools]
py-modules = ["NAME", "NAME_space"]
"""


def new_method(name: str, into: Path = Path(), kind: str = "retriever") -> str:
    """Write the package of a method called `name` to the new folder `into/name`; return the next commands.

    Args:
        name: name of the module and the method.
        into: parent of the folder.
        kind: key of KINDS.

    Raises:
        ConfigError: for a name that Python or ctvr cannot use, or a folder that already exists.
    """
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name != name.lower():
        close = re.sub("[^a-z0-9]+", "_", nearest_name(name).lower()).strip("_")
        meant = close if close.isidentifier() and not keyword.iskeyword(close) else f"my_{close}"
        raise ConfigError(
            f"methods new {name!r:.80}: is not a module name. Use lower-case letters, digits and _, e.g. {meant}."
        )
    if name in EVERY_METHOD or name in CONFIGURATIONS or name in plugins() or name == "ctvr":
        fault = "a method of this name already exists"
        raise ConfigError(fault, f"methods new {name!r}", remedy="Choose another name.")
    folder = into / name
    if folder.exists():
        raise ConfigError(f"{folder} already exists", "methods new", remedy="Choose another name or --into FOLDER.")
    if name in sys.stdlib_module_names or ((found := find_spec(name)) and found.origin):
        raise ConfigError(f"methods new {name!r}: would shadow an installed module of this name. Choose another name.")
    if not into.is_dir():
        raise ConfigError("is not a folder", f"--into {into}", remedy="Create it first, or omit --into.")
    cls = "".join(part.capitalize() for part in name.split("_")) or "Method"
    written = KINDS[kind]
    files = {
        "pyproject.toml": PROJECT,
        f"{name}.py": written.module,
        f"{name}_space.py": SPACE.replace("RANGES", "\n    ".join(written.ranges)),
        f"test_{name}.py": written.test,
    }
    with new_folder(folder) as new:
        for file, text in files.items():
            made = text.replace("NAME", name).replace("CLASS", cls).replace("DASHED", name.replace("_", "-"))
            (new / file).write_text(made, encoding="utf-8")
    place = f"{name}:{cls}"
    return "\n".join(
        [
            f"written: {', '.join(str(folder / file) for file in files)}",
            f"next: cd {folder}",
            f"      ctvr methods check {place}",
            f"      ctvr run {place} shapes-5",
            f"      pip install --no-deps -e .      # then `ctvr run {name} shapes-5`, also in sweeps",
        ]
    )
