"""Import of torch outside the current folder.

The library of cuSPARSELt, which torch loads, also searches libcuda.so.1 in the current folder (its RUNPATH is
`$ORIGIN:`). Where no driver is installed, `import torch` would execute a file of that name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "torch"


def guard() -> None:
    """Let the first `import torch` of this process happen in the root folder."""
    if NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(NAME)
        if spec is not None and spec.loader is not None:
            _execute_elsewhere(spec.loader)
        return spec


def _execute_elsewhere(loader: Loader) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with _root_folder():
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
