"""The numbers that the papers print, beside ours: `paper_numbers/*.json`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.tables.table import Row, Value

if TYPE_CHECKING:
    from orchestrator.tracking.values import RunRecord

FOLDER = Path(__file__).parent / "paper_numbers"
BACKBONE = "backbone {name}, the paper has ViT-B/32"


def paper_numbers(name: str) -> dict[str, Any] | None:
    """The published numbers of a stream (`msrvtt-10`, ..., `cvlm`); None if there are none."""
    path = FOLDER / f"{name}.json"
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def with_paper(row: Row, run: RunRecord) -> Row:
    """The row with the published numbers, where the run is on that benchmark and on its test videos."""
    paper = paper_numbers(run.tags.get("ctvr.paper", "")) or {}
    entry = paper.get("methods", {}).get(row.method)
    if entry is None or str(run.settings.get("evaluation.split", "test")) != "test":
        return row
    values = {key: _published(value) for key, value in entry["values"].items()}
    backbone = str(run.settings.get("backbone.name", "ViT-B-32"))
    marks = row.marks
    if paper["protocol"] == "ctvr" and not backbone.startswith("ViT-B-32"):
        marks += (BACKBONE.format(name=backbone),)
    return replace(
        row, marks=marks, paper=values, paper_source=entry["source"], paper_marks=tuple(entry.get("notes", ()))
    )


def _published(value: float | list[float | None]) -> Value:
    mean, std = value if isinstance(value, list) else (value, None)
    return Value(math.nan if mean is None else mean, math.nan if std is None else std)


def place(method: str) -> tuple[int, int]:
    """The papers' order: zero-shot first, the upper bound last."""
    order = [*(paper_numbers("msrvtt-10") or {}).get("methods", {}), *(paper_numbers("cvlm") or {}).get("methods", {})]
    if method == "upper_bound":
        return 2, 0
    return (0, order.index(method)) if method in order else (1, 0)
