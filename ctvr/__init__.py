"""Continual text-to-video retrieval in Python: train, search settings, tabulate, query a trained model.

    import ctvr

    ctvr.run("clip4clip", "shapes-5", settings={"optim.epochs": 2})
    model = ctvr.load("clip4clip")
    for hit in model.search("a red square moves left", k=5):
        print(hit.rank, hit.score, hit.path)

`import ctvr` imports nothing heavy: each name is imported on first use. Settings and errors are those of the command
line: a `ctvr.ConfigError` of one line names the setting and the remedy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ctvr.interrupt  # noqa: F401 - before the next imports, which take time
from ctvr.kernels import pin
from ctvr.torch_import import guard

if TYPE_CHECKING:
    from ctvr.api import Run, Sweep, check_method, list_methods, list_streams, load, run, schema, stream, sweep, table
    from ctvr.methods.base import Batch, Method, Task
    from ctvr.methods.settings import setting
    from ctvr.orchestrator.errors import ConfigError, CtvrError
    from ctvr.orchestrator.retrieval.model import Hit, Model
    from ctvr.orchestrator.retrieval.mteb import MtebEncoder

pin()
guard()

_PUBLIC = {
    name: module
    for module, names in (
        ("ctvr.api", "run sweep table load list_streams stream list_methods check_method schema Run Sweep"),
        ("ctvr.methods.base", "Method"),
        ("ctvr.methods.data", "Batch Task"),
        ("ctvr.methods.settings", "setting"),
        ("ctvr.orchestrator.errors", "CtvrError ConfigError"),
        ("ctvr.orchestrator.retrieval.model", "Model Hit"),
        ("ctvr.orchestrator.retrieval.mteb", "MtebEncoder"),
    )
    for name in names.split()
}
__all__ = [
    "Batch",
    "ConfigError",
    "CtvrError",
    "Hit",
    "Method",
    "Model",
    "MtebEncoder",
    "Run",
    "Sweep",
    "Task",
    "check_method",
    "list_methods",
    "list_streams",
    "load",
    "run",
    "schema",
    "setting",
    "stream",
    "sweep",
    "table",
]


def __getattr__(name: str) -> Any:
    if name == "methods":
        return importlib.import_module("ctvr.methods")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ctvr' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
