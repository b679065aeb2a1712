"""Import hooks for torch and open_clip, which change the current folder, garbage collection and TorchDynamo.

The library of cuSPARSELt, which torch loads, also looks for libcuda.so.1 in the current folder (its RUNPATH is
`$ORIGIN:`). Without an installed driver, `import torch` would execute a file of that name in the current folder. The
imports therefore run in the root folder.

The two imports create 400,000 permanent objects. Python's garbage collector would scan them repeatedly, in 0.4 of 3.1
CPU-seconds, so it is disabled during the imports.

torch's compiler makes a folder for its cache when it is imported. If no temporary folder is writable, it would be made
in the current folder, so the hook sets another folder.

open_clip imports torchvision and timm. One module of each imports torch._dynamo, in 1.1 CPU-seconds, for functions that
most processes never call. With the hooks, these functions import torch._dynamo when they are called.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OF_DYNAMO = "torch._dynamo.utils"
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def guard() -> None:
    """Install import hooks: the first import of each module of `GUARDS` runs in its context managers."""
    guarded = {finder.name for finder in sys.meta_path if isinstance(finder, _Finder)}
    for name in GUARDS:
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
        with contextlib.suppress(ValueError):  # another thread has removed it
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(self.name)
        if spec is not None and spec.loader is not None:
            _guard_loader(spec.loader, GUARDS[self.name])
        return spec


def _guard_loader(loader: Loader, guards: tuple[Guard, ...]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        with contextlib.ExitStack() as stack:
            for each in guards:
                stack.enter_context(each())
            execute(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


@contextlib.contextmanager
def _root_folder() -> Iterator[None]:
    try:
        here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)  # survives a rename
    except OSError:  # the folder is unreadable, on a system without O_PATH
        yield
        return
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _cache_elsewhere() -> Iterator[None]:
    if CACHE not in os.environ and not _has_temporary_folder():
        caches = os.environ.get("CTVR_CACHE") or os.path.expanduser("~/.cache/ctvr")
        folder = os.path.join(os.path.abspath(caches), "torchinductor")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            folder = sys.prefix  # exists; torch writes to it only if a model is compiled
        os.environ[CACHE] = folder
    yield


def _has_temporary_folder() -> bool:
    """Return whether a temporary folder is writable; if none is, Python uses the current folder."""
    with contextlib.suppress(OSError):
        return not os.path.samefile(tempfile.gettempdir(), ".")
    return False


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _lazy_dynamo() -> Iterator[None]:
    def is_compile_supported(device_type: str) -> bool:
        return bool(importlib.import_module(OF_DYNAMO).is_compile_supported(device_type))

    lazy = ModuleType(OF_DYNAMO)
    compiler: Any = importlib.import_module("torch.compiler")
    lazy.is_compile_supported = is_compile_supported  # type: ignore[attr-defined]
    is_placed = sys.modules.setdefault(OF_DYNAMO, lazy) is lazy
    disable = compiler.disable
    # The same decorator, except that it imports torch._dynamo at the first call
    compiler.disable = getattr(importlib.import_module("torch._compile"), "_disable_dynamo", disable)
    try:
        yield
    finally:
        compiler.disable = disable
        if is_placed:
            del sys.modules[OF_DYNAMO]


Guard = Callable[[], AbstractContextManager[None]]
GUARDS: dict[str, tuple[Guard, ...]] = {
    "torch": (_cache_elsewhere, _root_folder, _no_collection),
    "open_clip": (_root_folder, _no_collection),
    "torchvision.ops.roi_align": (_lazy_dynamo,),
    "timm.layers.typing": (_lazy_dynamo,),
}
