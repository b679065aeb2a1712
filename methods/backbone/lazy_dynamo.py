"""Import of open_clip without torch._dynamo, which takes a third of it and which no tower needs.

torchvision and timm, which open_clip imports, take two functions from torch._dynamo. Meanwhile a stand-in has these,
which import the real ones when they are called, and gives way to the real module where anything else is asked of it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

NAMES = ("torch._dynamo", "torch._dynamo.utils")
LIBRARIES = ("torchvision", "timm", "open_clip")


def import_open_clip() -> ModuleType:
    """Import open_clip; torch._dynamo is imported when it is first needed."""
    if not any(name in sys.modules for name in (*NAMES, *LIBRARIES)):
        package, utils = _StandIn(NAMES[0]), _StandIn(NAMES[1])
        package.__dict__.update(__path__=[], disable=_disable)
        utils.__dict__["is_compile_supported"] = _is_compile_supported
        sys.modules.update(zip(NAMES, (package, utils)))
        try:
            return importlib.import_module("open_clip")
        except ImportError:  # of a part of torch._dynamo that other versions import: begin again with the real one
            for name in list(sys.modules):
                if name.partition(".")[0] in LIBRARIES:
                    del sys.modules[name]
        finally:
            _remove()
    return importlib.import_module("open_clip")


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by the import system
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _remove() -> None:
    for name in NAMES:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


def _real(name: str) -> ModuleType:
    _remove()
    return importlib.import_module(name)


def _is_compile_supported(device_type: object) -> Any:
    return _real(NAMES[1]).is_compile_supported(device_type)


def _disable(function: Any = None, *words: Any, **options: Any) -> Any:
    """Return a function that `torch._dynamo.disable` is applied to at its first call."""
    if not callable(function) or isinstance(function, type):
        return _real(NAMES[0]).disable(function, *words, **options)

    @functools.cache
    def disabled() -> Any:
        return _real(NAMES[0]).disable(function, *words, **options)

    return functools.wraps(function)(lambda *given, **named: disabled()(*given, **named))
