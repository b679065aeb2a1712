"""Writing of tables as files: Markdown, LaTeX, CSV and figures, each atomically."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.orchestrator import memo
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import publish
from ctvr.orchestrator.tables.curves import changes
from ctvr.orchestrator.tables.formats import to_csv, to_latex, to_markdown
from ctvr.orchestrator.tables.table import Table

if TYPE_CHECKING:
    from ctvr.orchestrator.tables.claims import Result

FORMS = ("png", "pdf")
SLIDES = ("svg", "pdf")  # vector graphics


def write(made: Table | Sequence[Table], folder: Path, figures: bool = True) -> list[Path]:
    """Write `<stream>.md|.tex|.csv` and the figures of every table; each file is written atomically.

    Args:
        made: tables.
        folder: folder of the files, created if it does not exist.
        figures: whether to draw all figures. If False, only figures whose files exist are updated.

    Returns:
        The paths: the files of all tables, then the figures of each table as PNG and PDF. These are the figures of
        table_figures.py, the changes since zero-shot, and the matrices of each row. The figure of means over streams
        is last, if there are several tables. A figure whose data have not changed is not drawn again.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    tables = [made] if isinstance(made, Table) else made
    for table in tables:
        for suffix, text in ((".md", to_markdown(table)), (".tex", to_latex(table)), (".csv", to_csv(table))):
            written.append(publish(folder / f"{_slug(table.stream)}{suffix}", text.encode()))
    if figures or any(path.suffix.removeprefix(".") in FORMS for path in folder.iterdir()):
        written += _write_figures(_figures(tables), folder, figures)
    return written


def write_slides(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write all figures of tables as SVG and PDF into a folder, which is created if it does not exist.

    Raises:
        ConfigError: if the figures cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write_figures(_figures(tables), folder, True, SLIDES)
    except OSError as error:
        fault = f"the figures cannot be written ({error.strerror})"
        raise ConfigError(fault, f"--figures {folder}", remedy="Use another folder.") from error


def write_claims(
    results: Sequence[Result], stream: str, folder: Path, settings: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the verdicts on claims as `claims.md` and `claims.json`; each file is written atomically.

    `settings` are the settings of the command.
    """
    from ctvr.orchestrator.tables import claims_text

    folder.mkdir(parents=True, exist_ok=True)
    forms = {"md": claims_text.to_markdown(results, stream)}
    forms["json"] = claims_text.to_json(results, stream, settings or {})
    return [publish(folder / f"claims.{suffix}", text.encode()) for suffix, text in forms.items()]


def _write_figures(
    figures: Iterable[tuple[Any, ...]], folder: Path, are_wanted: bool, forms: Sequence[str] = FORMS
) -> list[Path]:
    paths = []
    for stem, draw, *of in figures:
        files = [folder / f"{stem}.{form}" for form in forms]
        if not are_wanted and not any(file.exists() for file in files):
            continue
        question = ["figure", draw, json.loads(json.dumps(of, default=_plain)), *forms]
        if memo.recall(question) != [_digest(file) for file in files]:
            memo.keep(question, [hashlib.sha256(content).hexdigest() for content in _write_figure(files, draw, *of)])
        paths += files
    return paths


def _write_figure(files: Sequence[Path], draw: str, *of: Any) -> list[bytes]:
    from ctvr.orchestrator.figures import figures, plots  # matplotlib takes a second to import

    figure = (plots.draw if draw == "draw" else getattr(figures, draw))(*of)
    contents = []
    for file in files:
        contents.append(figures.to_bytes(figure, file.suffix.removeprefix(".")))
        figure.set_layout_engine(None)  # laid out once for all formats
        publish(file, contents[-1])
    return contents


def _figures(tables: Sequence[Table]) -> Iterator[tuple[Any, ...]]:
    """Yield every figure: the stem of its files, the function of figures/ that draws it, and the arguments."""
    from ctvr.orchestrator.tables.table_figures import list_drawings, mean_cost

    for table in tables:
        for what, title, panels in list_drawings(table):
            yield f"{_slug(table.stream)}_{what}", "draw", panels, f"{table.stream}: {title}"
        yield from _figures_of_rows(table, _slug(table.stream))
    if len(tables) > 1 and (panels := mean_cost(tables)):
        title = f"{', '.join(table.stream for table in tables)}: R@1 against cost (grey: no row beats these)"
        yield "mean_cost", "draw", panels, title


def _figures_of_rows(table: Table, name: str) -> Iterator[tuple[Any, ...]]:
    from ctvr.orchestrator.tables.table_figures import expert_shares

    if changed := changes(table):
        title = f"{table.stream}: change of each task's {table.measured} since zero-shot, own gallery"
        yield f"{name}_changes", "draw_changes", changed, title, table.measured
    limits = _limits(table)
    for row in table.rows:
        if row.matrices:
            seeds = f"mean of {len(row.seeds)} seeds" if len(row.seeds) > 1 else f"seed {row.seeds[0]}"
            title = f"{row.label} on {table.stream}, {seeds}"
            if len(shares := expert_shares(row)):
                yield f"{name}_{_slug(row.label)}_experts", "draw_shares", shares, f"experts of {title}"
            yield f"{name}_{_slug(row.label)}_matrices", "draw_matrices", row.matrices, title, table.measured, limits


def _limits(table: Table) -> tuple[float, float]:
    """Return (0, largest value) of all matrices of a table: one color scale for the figures of all rows."""
    values = [each for row in table.rows for matrix in row.matrices.values() for line in matrix for each in line]
    return (0.0, max([each for each in values if each == each], default=1.0))


def _plain(value: Any) -> Any:
    """Convert a dataclass or array among the arguments of a figure for JSON."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value.tolist()  # NumPy array


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80] or "table"
