"""Scripts of `ctvr streams export-script`: one file that embeds videos and captions without ctvr.

A script is the module of an embedder with the definitions of ctvr that it uses, directly or not: the shared pipeline
and the readers of tables and videos. Their text is copied, so a script samples exactly the frames that ctvr samples.
The modules are not imported, so printing a script needs neither torch nor the package of the model.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.digests import ROOT
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import publish

# Name of a script -> its module in this package, and the models that it loads
SCRIPTS = {
    "open-clip": ("open_clip_model", "models of open_clip"),
    "transformers-clip": ("transformers_clip", "CLIP, SigLIP and SigLIP 2 of transformers"),
    "qwen3-vl": ("qwen3_vl", "Qwen3-VL-Embedding of transformers"),
    "sentence-transformers": ("sentence_model", "models of sentence-transformers; text-only ones embed captions only"),
}
PACKAGE = "ctvr.orchestrator.exporters"


class _Module:
    """Source of a module: its top-level statements, and the statements that define or import each name."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        tree, lines, end = ast.parse(text), text.splitlines(), 0
        self.path = path
        self.document = ast.get_docstring(tree, clean=False)
        self.texts: dict[ast.stmt, str] = {}  # statement -> its lines, with blank lines and comments above; in order
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, list[ast.Import | ast.ImportFrom]] = {}
        for statement in tree.body:
            self.texts[statement] = "\n".join(lines[end : statement.end_lineno])
            end = statement.end_lineno or end
            for name in _names_of(statement):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    self.imports.setdefault(name, []).append(statement)
                else:
                    self.definitions.setdefault(name, []).append(statement)

    def origin(self, name: str) -> tuple[_Module, str] | None:
        """Return our module that defines a name of this module, and the name there; None for other names."""
        if name in self.definitions:
            return self, name
        for found in self.imports.get(name, ()):
            if isinstance(found, ast.ImportFrom) and str(found.module).startswith("ctvr."):
                there = next(each.name for each in found.names if (each.asname or each.name) == name)
                return _read(str(found.module)).origin(there)
        return None

    def needs(self) -> list[_Module]:
        """Return our modules from which this module imports."""
        found = (self.origin(name) for name in self.imports)
        return list(dict.fromkeys(each[0] for each in found if each is not None))


def script_of(name: str) -> str:
    """Return the text of a script.

    Raises:
        ConfigError: for a name that is not in SCRIPTS.
    """
    if name not in SCRIPTS:
        hint = suggest(name, SCRIPTS).strip() or f"Use {', '.join(SCRIPTS)}."
        raise ConfigError("is not the name of a script", "NAME", name, remedy=hint)
    note = f"Printed by `ctvr streams export-script {name}`, ctvr {importlib.metadata.version('ctvr')}"
    return _join(_read(f"{PACKAGE}.{SCRIPTS[name][0]}"), note)


def write_script(text: str, out: Path) -> str:
    """Write a script to a new file; return a report.

    Raises:
        ConfigError: if the file exists, cannot be written, or would hide a package that the script imports.
    """
    nodes = list(ast.walk(ast.parse(text)))
    imported = {each.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    if out.stem in imported:
        remedy = "Use another name, such as embed.py."
        raise ConfigError(f"would hide the package {out.stem}, which the script imports", "--out", str(out), remedy)
    if out.exists() or out.is_symlink():
        raise ConfigError("already exists", "--out", str(out), remedy="Use another file.")
    publish(out, text.encode())
    return f"written: {out}\nnext: python {shlex.quote(str(out))} --help"


def _join(entry: _Module, note: str) -> str:
    """Return the module `entry`, whose `main` the script runs, with all definitions that it reaches."""
    used: dict[ast.stmt, _Module] = {}
    libraries: dict[str, set[str]] = {}  # name -> the statements that import it
    waiting = [(entry, statement) for each in entry.definitions.values() for statement in each]
    while waiting:
        module, statement = waiting.pop()
        if statement in used:
            continue
        used[statement] = module
        for node in ast.walk(statement):
            assert not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("ctvr."), module.path
            if not isinstance(node, ast.Name):
                continue
            if (origin := module.origin(node.id)) is not None:
                waiting += [(origin[0], each) for each in origin[0].definitions[origin[1]]]
            elif node.id in module.imports:
                libraries.setdefault(node.id, set()).update(
                    _import_of(each, node.id) for each in module.imports[node.id]
                )
    for name, found in libraries.items():
        assert len(found) == 1 or all(each.startswith(f"import {name}.") for each in found), f"{name}: {found}"
    own: list[_Module] = []
    others: list[_Module] = []
    # the exporters use the other modules only inside functions, so they come first
    for each in _order_modules(entry):
        if each in used.values():
            (own if each.path.parent == entry.path.parent else others).append(each)
    names = _new_names([*own, *others], used)
    imports = sorted(set().union(*libraries.values()), key=lambda line: (line.startswith("from"), line))
    parts = [f'"""{entry.document}"""', f"# {note}", "from __future__ import annotations", "\n".join(imports)]
    for title, modules in (("Model and export", own), ("Readers of tables and videos, copied from ctvr", others)):
        texts = [_rename_in(each, one, names) for each in modules for one in each.texts if used.get(one) is each]
        parts.append("\n".join([f"# ---- {title}", *texts]))
    return "\n\n".join([*parts, '\nif __name__ == "__main__":\n    raise SystemExit(main())']) + "\n"


def _order_modules(module: _Module) -> Iterator[_Module]:
    """Yield a module and all modules that it imports, directly or not; a module follows the modules that it imports."""
    seen: set[_Module] = set()

    def visit(each: _Module) -> Iterator[_Module]:
        if each not in seen:
            seen.add(each)
            for other in each.needs():
                yield from visit(other)
            yield each

    return visit(module)


def _new_names(modules: list[_Module], used: dict[ast.stmt, _Module]) -> dict[tuple[_Module, str], str]:
    """Return the new name of each definition whose name an earlier module also defines."""
    taken, found = set[str](), dict[tuple[_Module, str], str]()
    for module in modules:
        mine = [name for name, each in module.definitions.items() if any(used.get(one) is module for one in each)]
        found |= {(module, name): f"{module.path.stem}_{name.lstrip('_')}" for name in mine if name in taken}
        taken.update(mine)
    return found


def _rename_in(module: _Module, statement: ast.stmt, names: dict[tuple[_Module, str], str]) -> str:
    """Return the text of a statement with the new names of what it defines and uses."""
    text = module.texts[statement]
    inside = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for name in sorted({*inside, *_names_of(statement)}):
        found = module.origin(name)
        new = names.get(found, found[1]) if found is not None else name
        if new != name:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", new, text)
    return text


def _names_of(statement: ast.stmt) -> list[str]:
    """Return the names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [_bound(each) for each in statement.names]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
    return []


def _bound(name: ast.alias) -> str:
    return name.asname or name.name.partition(".")[0]


def _import_of(statement: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return a statement that imports only `name`."""
    (kept, *_) = [each for each in statement.names if _bound(each) == name]
    only = ast.Import([kept]) if isinstance(statement, ast.Import) else ast.ImportFrom(statement.module, [kept], 0)
    return ast.unparse(only)


@cache
def _read(module: str) -> _Module:
    return _Module(ROOT / f"{module.removeprefix('ctvr.').replace('.', '/')}.py")
