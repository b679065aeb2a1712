"""Planted bugs: those of bugs.yaml, and those generated for the functions that changed since a commit."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
OPPOSITE: dict[type[ast.AST], str] = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Bug(NamedTuple):
    """A wrong line; `breaks` names the fault, one of `tests` must fail. `line` counts from 1; 0: found by its text."""

    file: str
    before: str
    after: str
    breaks: str
    tests: tuple[str, ...]
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks}"


def tests_of(file: str) -> tuple[str, ...]:
    """Name the test file that mirrors a source file."""
    folder, _, name = file.rpartition("/")
    return (f"tests/{folder}/test_{name}",)


def _kept() -> Iterator[Bug]:
    table = yaml.safe_load((ROOT / "tests/mutants/bugs.yaml").read_text(encoding="utf-8"))
    for file, bugs in table.items():
        for bug in bugs:
            yield Bug(file, bug["before"], bug["after"], bug["breaks"], tuple(bug.get("tests", tests_of(file))))


BUGS = tuple(_kept())


def changed_lines(root: Path, commit: str) -> dict[str, set[int]]:
    """Map each source file that differs from `commit` to the numbers of its new or changed lines.

    Raises:
        ValueError: if git does not know the commit.
    """
    words = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", "--relative", commit, "--", "*.py"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"--changed {commit}: {done.stderr.strip().splitlines()[0]}")
    found: dict[str, set[int]] = {}
    file = ""
    for line in done.stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/") if line != "+++ /dev/null" else ""
        elif file and not file.startswith("tests/") and (match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(file, set()).update(range(first, first + max(count, 1)))
    return found


def generated(root: Path, commit: str) -> list[Bug]:
    """Generate a bug for each comparison, operator, constant and call in the functions changed since `commit`."""
    bugs = []
    for file, lines in sorted(changed_lines(root, commit).items()):
        bugs += mutants_of(file, (root / file).read_text(encoding="utf-8"), lines)
    return bugs


def mutants_of(file: str, text: str, lines: set[int]) -> list[Bug]:
    """Generate the bugs of the functions of `text` that hold one of `lines`; each changes one line."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    chosen = [node for node in functions if lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))]
    whole = text.splitlines()
    bugs: dict[tuple[int, str], Bug] = {}
    for node in (inner for function in chosen for statement in function.body for inner in ast.walk(statement)):
        for line, start, end, new, breaks in _edits(node, whole):
            before = whole[line - 1].encode()
            after = (before[:start] + new.encode() + before[end:]).decode().strip()
            bug = Bug(file, whole[line - 1].strip(), after, f"line {line}: {breaks}", tests_of(file), line)
            bugs.setdefault((line, after), bug)
    return [bugs[key] for key in sorted(bugs)]


def _edits(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str, str]]:
    """Yield edits of a node: line, first and last byte in it, the new text, a description."""
    if isinstance(node, ast.Compare):
        yield from _swapped(node.left, node.ops[0], node.comparators[0], lines)
    elif isinstance(node, ast.BinOp):
        yield from _swapped(node.left, node.op, node.right, lines)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == node.end_lineno:
        yield node.lineno, node.col_offset, node.end_col_offset or 0, "pass", "a call is left out"
    elif isinstance(node, ast.Constant) and node.lineno == node.end_lineno:
        new = str(not node.value) if isinstance(node.value, bool) else None
        if type(node.value) in (int, float):
            new = repr(node.value + 1)
        if new is not None:
            yield node.lineno, node.col_offset, node.end_col_offset or 0, new, f"{node.value} is {new}"


def _swapped(
    left: ast.expr, op: ast.AST, right: ast.expr, lines: list[str]
) -> Iterator[tuple[int, int, int, str, str]]:
    """Yield the opposite of an operator that lies on one line between its operands."""
    if type(op) not in OPPOSITE or left.end_lineno != right.lineno:
        return
    start, end = left.end_col_offset or 0, right.col_offset
    between = lines[right.lineno - 1].encode()[start:end].decode()
    sign = between.strip(" ()")
    yield right.lineno, start, end, between.replace(sign, OPPOSITE[type(op)]), f"{sign} is {OPPOSITE[type(op)]}"
