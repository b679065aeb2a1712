"""Imports of torch and open_clip: outside the current folder, and without garbage collection.

The library of cuSPARSELt, which torch loads, also searches libcuda.so.1 in the current folder (its RUNPATH is
`$ORIGIN:`). Where no driver is installed, `import torch` would execute a file of that name.

The two imports create 400,000 permanent objects. Python's collector would scan them repeatedly, which takes 0.4 of 3.1
CPU-seconds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("torch", "open_clip")


def guard() -> None:
    """Install an import hook: each library's first import runs with / as the current folder and without collection."""
    guarded = {finder.name for finder in sys.meta_path if isinstance(finder, _Finder)}
    for name in NAMES:
        if name not in sys.modules and name not in guarded:
            sys.meta_path.insert(0, _Finder(name))


class _Finder(MetaPathFinder):
    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(self.name)
        if spec is not None and spec.loader is not None:
            _execute_elsewhere(spec.loader)
        return spec


def _execute_elsewhere(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with _root_folder(), _no_collection():
            execute(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


@contextlib.contextmanager
def _root_folder() -> Iterator[None]:
    try:
        here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)  # its name may have changed at the end
    except OSError:  # a system without O_PATH, and a folder that cannot be read
        yield
        return
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
