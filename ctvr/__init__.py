"""Continual text-to-video retrieval in Python: train, search settings, tabulate, ask a trained model.

    import ctvr

    ctvr.run("clip4clip", "shapes-5", settings={"optim.epochs": 2})
    model = ctvr.load("clip4clip")
    for hit in model.search("a red square moves left", k=5):
        print(hit.rank, hit.score, hit.path)

`import ctvr` loads nothing heavy: each name is loaded when it is first asked for. Settings are those of the command
line, and so are the mistakes: a `ctvr.ConfigError` of one line that names the setting and what to write.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctvr.api import Run, Sweep, conform, load, methods, run, schema, stream, streams, sweep, table
    from orchestrator.errors import ConfigError, CtvrError
    from orchestrator.retrieval.model import Hit, Model
    from orchestrator.retrieval.mteb import MtebEncoder

_PUBLIC = {
    "run": "ctvr.api",
    "sweep": "ctvr.api",
    "table": "ctvr.api",
    "load": "ctvr.api",
    "streams": "ctvr.api",
    "stream": "ctvr.api",
    "methods": "ctvr.api",
    "conform": "ctvr.api",
    "schema": "ctvr.api",
    "Run": "ctvr.api",
    "Sweep": "ctvr.api",
    "Model": "orchestrator.retrieval.model",
    "Hit": "orchestrator.retrieval.model",
    "MtebEncoder": "orchestrator.retrieval.mteb",
    "CtvrError": "orchestrator.errors",
    "ConfigError": "orchestrator.errors",
}
__all__ = [
    "ConfigError",
    "CtvrError",
    "Hit",
    "Model",
    "MtebEncoder",
    "Run",
    "Sweep",
    "conform",
    "load",
    "methods",
    "run",
    "schema",
    "stream",
    "streams",
    "sweep",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ctvr' has no attribute {name!r}. Public names: {', '.join(__all__)}.")
    _check_packages()
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def _check_packages() -> None:
    """Refuse a file in the present folder or on PYTHONPATH that hides one of the packages that we import.

    Raises:
        ImportError: one line with the file.
    """
    import orchestrator

    try:
        from orchestrator.interpreter import hidden_package
    except ImportError:
        raise ImportError(f"{orchestrator.__file__} hides the package orchestrator of ctvr. Rename it.") from None
    if hidden := hidden_package():
        raise ImportError(hidden)


def __dir__() -> list[str]:
    return list(__all__)
