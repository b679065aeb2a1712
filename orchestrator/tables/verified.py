"""Comparisons with the authors' own code, as data: verified.json in this folder.

An entry is one method under one preset, with the release that was run (unmodified, on small seeded weights) and its
checks. A check states what was compared, the number of cases (tensors, tables or values), the tolerance and the test.
The reference of a check `in_clone` is among the fixtures of the repository. Other checks need the complete reference
files (folder `reference/` of CTVR_SHARED) and are skipped without them. `open` lists the parts that could not be
compared, with reasons.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "verified.json"
# state: queues, momentum models and statistics after a step; evaluation: metrics and revised similarities;
# recipe: groups of the optimizer, decay, frozen parts, clamps
WHAT = ("forward", "loss", "gradients", "steps", "state", "schedule", "recipe", "evaluation")
PROVES_CODE = {"forward", "loss", "gradients"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison of values with those of a release."""

    what: str  # kind of check, one of `WHAT`
    cases: int
    tolerance: float  # largest absolute difference; 0: the values are equal
    test: str  # path::function
    in_clone: bool = True  # False: only with the complete reference files

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise ValueError(f"what: {self.what!r} is not one of {', '.join(WHAT)}.")
        if self.cases < 1 or self.tolerance < 0:
            raise ValueError(f"cases and tolerance: {self.cases} cases within {self.tolerance} prove nothing.")


@dataclass(frozen=True, kw_only=True)
class Verified:
    """Comparison of one method, under one preset, with one release."""

    method: str
    preset: str
    source: str  # owner/name@commit, or owner/name (commit not recorded)
    checks: tuple[Check, ...]
    open: str = ""  # the parts that could not be compared, with reasons


@dataclass(frozen=True, kw_only=True)
class VerificationRow:
    """The row of a method in REPRODUCIBILITY.md, without its comparisons (`Verified`)."""

    method: str
    grade: str  # `paper` or `ours`: basis of a method that no check compares with a release
    tests: tuple[str, ...]
    against: str
    note: str = ""


@cache
def read() -> tuple[tuple[VerificationRow, ...], tuple[Verified, ...]]:
    """Return all rows and all entries of the file, in its order.

    Raises:
        ValueError: for a malformed entry.
    """
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    rows = tuple(VerificationRow(**{**row, "tests": tuple(row["tests"])}) for row in data["methods"])
    return rows, tuple(
        Verified(**{**entry, "checks": tuple(Check(**check) for check in entry["checks"])})
        for entry in data["verified"]
    )


def of_method(method: str) -> tuple[Verified, ...]:
    """Return the entries of a method or configuration."""
    return tuple(entry for entry in read()[1] if entry.method == method)


def equals(entry: Verified, only: Collection[str] = WHAT) -> str:
    """Return the footnote `forward, loss and gradients match owner/name@commit within 1e-05 on seeded weights`.

    Args:
        entry: the comparison.
        only: the kinds of checks to list. The footnote is "" if the entry has none of them.
    """
    checks = [check for check in sorted(entry.checks, key=lambda check: WHAT.index(check.what)) if check.what in only]
    if not checks:
        return ""
    names = list(dict.fromkeys(check.what for check in checks))
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    worst = max(check.tolerance for check in checks)
    verb = "match" if len(names) > 1 else "matches"
    return f"{listed} {verb} {entry.source} within {worst:g} on seeded weights"


def counted() -> str:
    """Return text that states how many methods are compared with their authors' code, and how many have grade code."""
    rows, entries = read()
    compared, graded = {entry.method for entry in entries}, {row.method for row in rows if grade_of(row) == "code"}
    return (
        f"Tests compare {len(compared)} of {len(rows)} methods with their authors' code. "
        f"{len(graded)} of these have the grade code: a test in every clone compares features, losses or gradients."
    )


def grade_of(row: VerificationRow) -> str:
    """Return `code` if a check of features, losses or gradients runs in every clone. Otherwise return `row.grade`."""
    checks = [check for entry in of_method(row.method) for check in entry.checks]
    return "code" if any(check.in_clone and check.what in PROVES_CODE for check in checks) else row.grade


# --- text that is printed and written ------------------------------------------------------------------------------


def text() -> str:
    """Return every method with its grade and every entry with its checks, as text for a terminal."""
    lines = []
    for row in read()[0]:
        lines.append(f"{row.method}: {grade_of(row)}; against {row.against}")
        lines += [f"  could not be verified, or differs: {row.note}"] * bool(row.note)
    lines.append("")
    for entry in read()[1]:
        lines.append(f"{entry.method}, preset {entry.preset}: {entry.source}")
        for check in entry.checks:
            where = "" if check.in_clone else "  (where the reference files are)"
            lines.append(f"  {check.what:<10}  {check.cases:>4} cases to {check.tolerance:g}  {check.test}{where}")
        if entry.open:
            lines.append(f"  not compared: {entry.open}")
    entries = read()[1]
    total = sum(check.cases for entry in entries for check in entry.checks)
    clone = sum(check.cases for entry in entries for check in entry.checks if check.in_clone)
    lines.append("")
    lines.append(f"{counted()} There are {total} cases, {clone} of them in every clone.")
    return "\n".join(lines)
