"""Consistency of a bundle: whether its table and digest follow from its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ctvr.orchestrator.bundles.bundle import Bundle, digest
from ctvr.orchestrator.bundles.from_ranks import table_of
from ctvr.orchestrator.tables.table import Difference

TOLERANCE = 1e-6  # relative difference of values, for other versions of NumPy and SciPy
COMPARED = tuple(field.name for field in fields(Difference))


def seal(about: Mapping[str, Any], ranks: Mapping[str, np.ndarray]) -> Bundle:
    """Return a bundle with the table and the digest that follow from its ranks."""
    whole = {**about, "table": table_of(Bundle(about, ranks))}
    return Bundle({**whole, "digest": digest(whole, ranks)}, ranks)


def inconsistencies(bundle: Bundle) -> list[str]:
    """Return a phrase for each part of a bundle that does not follow from its ranks; [] if it is consistent."""
    found = []
    try:
        if (computed := digest(bundle.about, bundle.ranks)) != bundle.about["digest"]:
            found.append(f"digest: {bundle.about['digest'][:12]} in the file, {computed[:12]} from its content")
        found += list(_early_ranks(bundle))
        stated, computed_rows = _values(bundle.about["table"]), _values(table_of(bundle))
    except ModuleNotFoundError:  # of this installation, not of the bundle
        raise
    except Exception as error:  # content of an unknown author reaches JSON and every function of a table
        return [*found, f"digest or table: cannot be computed ({type(error).__name__})"]
    for name in dict.fromkeys([*computed_rows, *stated]):
        first, second = stated.get(name, "absent"), computed_rows.get(name, "absent")
        if not _is_close(first, second):
            found.append(f"{name}: {first} in the file, {second} from its ranks")
    return found


def _early_ranks(bundle: Bundle) -> Iterator[str]:
    """Yield each run that has ranks of queries of a task before that task was learned."""
    for place, run in enumerate(bundle.about["runs"]):
        tasks = bundle.tasks_of(place)
        is_later = tasks[None] > np.arange(tasks.max() + 1)[:, None]  # (T, Q)
        if any(each[place][:, is_later].any() for each in bundle.ranks.values()):
            yield f"run {run['id'][:8]}: it has ranks of queries before their task was learned"


def _values(table: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of a table by a name that a reader can find, for example `row 2 (lwf), r1`."""
    found: dict[str, Any] = {}
    for place, row in enumerate(table, 1):
        name = f"row {place} ({row['label']})"
        found |= {f"{name}, {key}": row[key] for key in row if key not in ("cells", "vs_best")}
        for key, (mean, std) in row["cells"].items():
            found |= {f"{name}, {key}": mean, f"{name}, std of {key}": std}
        versus = row["vs_best"] if row["vs_best"] is not None else [None] * len(COMPARED)
        found |= {f"{name}, {key} of its comparison": value for key, value in zip(COMPARED, versus, strict=True)}
    return found


def _is_close(first: Any, second: Any) -> bool:
    if isinstance(first, float | int) and isinstance(second, float | int):
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(first == second)
