"""Digests of code outside this package, such as the module of a plug-in, and of all that this code imports.

    closure(modules)   = modules and what they import, except the standard library, ctvr and ctvr's own dependencies
    a local module     is digested as the bytes of its file (source, bytecode, extension or member of a zip archive),
                       with its parent packages and the files that a literal at module level names
    a distribution     is digested as its name, version and the hashes of its RECORD, with the distributions that it
                       requires

Imports are read from the syntax tree, including imports in functions, in conditions and by `import_module("name")`.
For a computed name such as `f"a.b.{name}"`, all modules of `a.b` are included. Nothing is imported. Editable
distributions are digested like local modules, because their RECORD does not list the files.

The closure does not cover files that are read after the import, module names that a file outside a package computes,
imports inside compiled extensions, system libraries, and installed files that were edited in place.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from ctvr.methods import find_in_method_folders, trusted
from ctvr.methods.plug_ins import every_plug_in
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.keys.imports import Named, names_in

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_OUR_NAME = "ctvr"
_ALL = "all"  # the extra that names the packages of every command


def digest_closure(*modules: str) -> str:
    """Return one digest of modules and all that they import, independent of the location of their files."""
    return digest_of(sorted(Closure(modules).digests.items()))


class Closure:
    """Modules, with the digests of all modules, files and distributions that they consist of, import or name.

    Args:
        modules: dotted names, importable here or in the user's folders of methods.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        importlib.invalidate_caches()  # the finders' cached listings may lack files that were just created
        self.digests: dict[str, str] = {}  # module, file or distribution -> SHA-256
        self.files: dict[str, Path] = {}  # module -> its file, or the path of a member inside an archive
        self.ours: set[str] = set()  # modules of ctvr that are imported
        self._records: dict[Path, list[tuple[importlib.metadata.Distribution, str]]] = {}
        self._specs: dict[str, ModuleSpec | None] = {}
        self._todo = [(name, Path()) for name in modules]
        self._seen: set[str] = set()
        while self._todo:
            self._add(*self._todo.pop())

    def _add(self, module: str, folder: Path) -> None:
        """Add a module and its parent packages; `folder` contains the top-level package of the importing module."""
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if parts[0] == _OUR_NAME:
                self.ours.add(name)
            elif name not in self._seen:
                self._seen.add(name)
                spec = self._spec(name, folder)
                if spec is None or not self._read(name, spec):
                    return

    def _spec(self, name: str, folder: Path) -> ModuleSpec | None:
        if name in self._specs:
            return self._specs[name]
        parent, _, _ = name.rpartition(".")
        above = self._specs.get(parent)
        path = above.submodule_search_locations if above is not None else None
        loaded = sys.modules.get(name)
        found = None
        if name in sys.stdlib_module_names and loaded is not None:
            found = loaded.__spec__  # a file of this name cannot replace a loaded module
        elif not parent:
            found = _find_spec(name) or PathFinder.find_spec(name, [str(folder)]) or find_in_method_folders(name)
        elif path is not None:
            found = _find_spec(name, list(path))
        self._specs[name] = found or (getattr(loaded, "__spec__", None) if not folder.parts else None)
        return self._specs[name]

    def _read(self, name: str, spec: ModuleSpec) -> bool:
        """Digest a module and queue its imports; return whether its submodules must also be read."""
        if spec.origin is None or not spec.has_location:  # a namespace package, or built into Python
            return spec.submodule_search_locations is not None
        file, depth = Path(spec.origin), len(name.split("."))
        if spec.origin.startswith(_STANDARD) and not set(_INSTALLED) & set(file.parts):
            return False
        root = file.parents[depth - (spec.submodule_search_locations is None)]
        if (owner := self._owner(root, file)) is not None:
            self._add_distribution(owner)
            return False
        data = file.read_bytes() if file.is_file() else spec.loader.get_data(spec.origin)  # type: ignore[union-attr]
        self.digests[name], self.files[name] = hashlib.sha256(data).hexdigest(), file
        if file.suffix == ".py":
            is_package = spec.submodule_search_locations is not None
            self._follow(name, names_in(data, name, is_package), root)
        return True

    def _follow(self, module: str, found: Named, root: Path) -> None:
        self._todo += [(name, root) for name in found.modules]
        for prefix in found.computed:
            self._todo += [(name, root) for name in self._list_submodules(prefix or module.partition(".")[0])]
        folders = [parent for parent in self.files[module].parents if parent.is_relative_to(root)]
        for text in found.files:
            file = next((folder / text for folder in folders if (folder / text).is_file()), None)
            label = f"{module}: file {text}"
            if file is not None and label not in self.digests and file != self.files[module]:
                self.digests[label], self.files[label] = digest_file(file), file
                if file.suffix == ".py":  # loaded by its path
                    self._follow(label, names_in(file.read_bytes(), "", False), root)

    def _list_submodules(self, package: str) -> list[str]:
        """List the dotted names of all modules of a package that are outside site-packages."""
        spec = self._spec(package, Path()) if package else None
        found = []
        for folder in map(Path, (spec.submodule_search_locations if spec is not None else None) or ()):
            for file in sorted(folder.rglob("*")):
                stem = _module_name(file.name)
                if stem and not set(_INSTALLED) & set(file.parts):
                    parts = [*file.relative_to(folder).parts[:-1], *([] if stem == "__init__" else [stem])]
                    found.append(".".join([package, *parts]))
        return found

    def _owner(self, root: Path, file: Path) -> importlib.metadata.Distribution | None:
        """Return the distribution installed in folder `root` whose RECORD lists a file, or None."""
        if root not in self._records:
            listed = importlib.metadata.distributions(path=[str(root)]) if root.is_dir() else ()
            self._records[root] = [(each, f"\n{each.read_text('RECORD') or ''}") for each in listed]
        row = f"\n{file.relative_to(root).as_posix()},"
        return next((each for each, text in self._records[root] if row in text), None)

    def _add_distribution(self, found: importlib.metadata.Distribution) -> None:
        """Digest a distribution and the distributions that it requires, without the requirements of its extras."""
        name = _normalize_name(found.metadata["Name"])
        if name in own_dependencies() or f"distribution {name}" in self.digests:
            return
        rows = [line.rsplit(",", 2)[:2] for line in (found.read_text("RECORD") or "").splitlines()]
        installed = sorted(row for row in rows if row[-1] and not re.match(r"\.\.|/|[^/]*\.dist-info/", row[0]))
        self.digests[f"distribution {name}"] = digest_of([name, found.version, installed])
        for required in _list_requirements(found):
            try:
                self._add_distribution(importlib.metadata.distribution(required))
            except importlib.metadata.PackageNotFoundError:
                continue  # required on other systems only, or missing, so that the import fails


def digest_plugins() -> str:
    """Return one digest of all installed plug-ins and of the classes that the user trusts; "" if there are none."""
    modules = {*(point.module for point in every_plug_in()), *(place.partition(":")[0] for place in trusted())}
    return digest_closure(*sorted(modules)) if modules else ""


@functools.lru_cache(maxsize=1)
def own_dependencies() -> set[str]:
    """Return the normalized names of ctvr and of the distributions that it requires."""
    try:
        return {_OUR_NAME, *_list_requirements(importlib.metadata.distribution(_OUR_NAME), _ALL)}
    except importlib.metadata.PackageNotFoundError:  # ctvr is a checkout on PYTHONPATH
        return {_OUR_NAME}


def _list_requirements(found: importlib.metadata.Distribution, extra: str = "") -> list[str]:
    """Return the normalized names that a distribution requires, and those of one of its extras."""
    wanted = (text for text in found.requires or () if "extra ==" not in text or (extra and f'"{extra}"' in text))
    return [_normalize_name(re.split(r"[^\w.-]", text)[0]) for text in wanted]


def _normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _find_spec(name: str, path: list[str] | None = None) -> ModuleSpec | None:
    """Find the spec of a module as an import statement does, but without importing its parent packages."""
    try:
        return next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
    except KeyError:  # Python finds a nested namespace package only if its parent is loaded
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [os.path.join(folder, name.rpartition(".")[2]) for folder in path or ()]
        return spec


def _module_name(name: str) -> str:
    """Return the module name in a file's name, or "" if the file is not a Python module."""
    ending = next((each for each in (".py", *EXTENSION_SUFFIXES) if name.endswith(each)), None)
    return name.removesuffix(ending) if ending else ""
