"""Continual text-to-video retrieval: the names for notebooks and scripts, each loaded when it is first asked for.

    from orchestrator import Places, Store, execute, load_model, load_stream, resolve

`import orchestrator` itself loads nothing heavy: the command line, a Ray driver and `digests.py` need it to be instant.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "execute": "orchestrator.learning.run",
    "resolve": "orchestrator.learning.resolve",
    "load_model": "orchestrator.learning.assemble",
    "load_stream": "orchestrator.streams.load",
    "Places": "orchestrator.learning.run",
    "Store": "orchestrator.store.store",
    "CtvrError": "orchestrator.errors",
    "ConfigError": "orchestrator.errors",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}. Public names: {', '.join(_PUBLIC)}.")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
