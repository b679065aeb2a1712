"""Modules and files that a Python source names, found in its syntax tree without running it.

import a.b as c, from a import b, from . import b        including those inside functions, classes and conditions
import_module("a.b"), import_module(".b", __package__), __import__("a")
import_module(f"a.{name}"), import_module(name)           computed: every module of `a`, or of the source's own package
open(HERE / "data" / "table.json")                        files: paths in literals that are evaluated at module level
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LONGEST = 255  # maximum number of characters of a literal that may be a path


class Named(NamedTuple):
    """Modules and files that one source names; they need not exist."""

    modules: tuple[str, ...]  # modules, and attributes that may be modules
    computed: tuple[str, ...]  # packages of which any module may be imported; "" means the package of the source
    files: tuple[str, ...]  # literals that may be paths relative to the source


@functools.lru_cache(maxsize=4096)
def names_in(source: bytes, module: str, is_package: bool) -> Named:
    """Return the modules and files that a source names; empty tuples if this version of Python cannot parse it.

    Args:
        source: bytes of the file.
        module: dotted name of the source's module, the base of relative imports.
        is_package: whether the file is an `__init__.py`.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Named((), (), ())
    package = module if is_package else module.rpartition(".")[0]
    modules, computed = dict[str, None](), dict[str, None]()
    importers = {"import_module", "__import__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "importlib":
            importers |= {alias.asname for alias in node.names if alias.name == "import_module" and alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute("." * node.level + (node.module or ""), package)
            modules |= dict.fromkeys([base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")])
        elif isinstance(node, ast.Call) and _called_name(node) in importers:
            name, is_whole = _leading_text(node)
            if is_whole:
                modules[absolute(name, package)] = None
            else:  # `a.b.` before a computed part is a package
                computed[absolute(name.rpartition(".")[0], package) if name.strip(".") else ""] = None
    files = (text for node in _iter_evaluated(tree) for text in _iter_literals(node))
    return Named(tuple(filter(None, modules)), tuple(computed), tuple(dict.fromkeys(files)))


def absolute(name: str, package: str) -> str:
    """Return the absolute dotted name of an import in `package`; leading dots mark a relative import."""
    bare = name.lstrip(".")
    level = len(name) - len(bare)
    if not level:
        return name
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join(filter(None, [*above, bare]))


def _called_name(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _leading_text(node: ast.Call) -> tuple[str, bool]:
    """Return the literal beginning of the name that a call imports, and whether it is the whole name."""
    named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
    given: ast.expr | None = [*node.args, *named, None][0]
    while isinstance(given, ast.BinOp):
        given = given.left
        if isinstance(given, ast.Constant):
            return str(given.value), False
    if isinstance(given, ast.JoinedStr):
        first = given.values[0] if given.values else None
        return (str(first.value), False) if isinstance(first, ast.Constant) else ("", False)
    return (given.value, True) if isinstance(given, ast.Constant) and isinstance(given.value, str) else ("", False)


def _iter_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `node` that an import evaluates; functions and `if __name__ == ...` are excluded."""
    for child in ast.iter_child_nodes(node):
        is_main = isinstance(child, ast.If) and "__name__" in ast.dump(child.test)
        if not is_main and not isinstance(child, _FUNCTIONS):
            yield child
            yield from _iter_evaluated(child)


def _iter_literals(node: ast.AST) -> Iterator[str]:
    """Yield the text of a literal, or the path a/b of `HERE / "a" / "b"` and `join(HERE, "a", "b")`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = [node.value]
    elif isinstance(node, ast.Call):
        parts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    else:
        parts = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if isinstance(node.right, ast.Constant) and isinstance(node.right.value, str):
                parts.insert(0, node.right.value)
            node = node.left
    text = "/".join(parts)
    if text and len(text) <= _LONGEST and text.isprintable():
        yield text
