"""Writing of tables as files: Markdown, LaTeX, CSV and figures, each atomically."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ctvr.orchestrator.tables.curves import changes
from ctvr.orchestrator.tables.formats import to_csv, to_latex, to_markdown
from ctvr.orchestrator.tables.table import Table
from ctvr.orchestrator.tables.table_figures import drawings, expert_shares


def write(made: Table | Sequence[Table], folder: Path) -> list[Path]:
    """Write `<stream>.md|.tex|.csv` and the figures of every table; each file is written atomically.

    Returns:
        The paths: the tables first, then each figure of table_figures.py as PNG and PDF, then two matrices of each row.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in [made] if isinstance(made, Table) else made:
        name = _slug(table.stream)
        for suffix, text in ((".md", to_markdown(table)), (".tex", to_latex(table)), (".csv", to_csv(table))):
            written.append(_publish(folder / f"{name}{suffix}", text.encode()))
        written += _write_figures(table, folder, name)
    return written


def _write_figures(table: Table, folder: Path, name: str) -> list[Path]:
    from ctvr.orchestrator.tracking import figures, plots  # matplotlib takes a second to import

    drawn = {
        f"{name}_{what}": plots.draw(panels, f"{table.stream}: {title}") for what, title, panels in drawings(table)
    }
    if changed := changes(table):
        title = f"{table.stream}: change of each task's {table.measured} since zero-shot, own gallery"
        drawn[f"{name}_changes"] = figures.draw_changes(changed, title, table.measured)
    for row in table.rows:
        if row.matrices:
            seeds = f"mean of {len(row.seeds)} seeds" if len(row.seeds) > 1 else f"seed {row.seeds[0]}"
            title = f"{row.label} on {table.stream}, {seeds}"
            if len(shares := expert_shares(row)):
                drawn[f"{name}_{_slug(row.label)}_experts"] = figures.draw_shares(shares, f"experts of {title}")
            drawn[f"{name}_{_slug(row.label)}_matrices"] = figures.draw_matrices(row.matrices, title, table.measured)
    paths = []
    for stem, figure in drawn.items():
        for form in ("png", "pdf"):
            buffer = io.BytesIO()
            figures.save(figure, buffer, form)
            figure.set_layout_engine("none")  # laid out once, for both forms
            paths.append(_publish(folder / f"{stem}.{form}", buffer.getvalue()))
    return paths


def _publish(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return path


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80] or "table"
