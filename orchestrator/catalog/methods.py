"""List of methods for `ctvr methods`, read from the sources without importing them or torch."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, plugins
from ctvr.orchestrator.tables.verified import counted


def methods_text() -> str:
    """Return a line for each method (name, first paragraph of its module), and the numbers of verified methods."""
    width = max(map(len, [*EVERY_METHOD, *CONFIGURATIONS]))
    lines = []
    for name in EVERY_METHOD:
        first = _first_sentence(EVERY_METHOD[name].partition(":")[0])
        lines.append(f"{name:<{width}}  {first}")
    for name, (method, own) in CONFIGURATIONS.items():
        lines.append(f"{name:<{width}}  {method} with preset {own}")
    lines += [f"{name}  {place}, from another package" for name, place in plugins().items()]
    lines += ["", counted()]
    lines.append("No published number has been reproduced here: pre-trained weights and data sets were not available.")
    return "\n".join([*lines, "", "Settings of a method: ctvr methods NAME"])


def _first_sentence(module: str) -> str:
    """Return the first paragraph of the docstring of a module, as one line."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return "(source not available)"
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")
