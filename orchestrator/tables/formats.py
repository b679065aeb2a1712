"""Formatting of result tables as Markdown, LaTeX (booktabs) or CSV. write.py writes the files."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.orchestrator.tables.table import MISSING, Column, Difference, Row, Table, Value, cell, decimals, number

LONGEST = 240  # maximum characters of a note below a table; longer notes are comments in the LaTeX file
NARROW = 8  # maximum columns of a table that fits one column of a two-column page
PRINTED = {  # methods whose printed name differs from the name of their class
    "zero_shot": "Zero-Shot CLIP",
    "head_linear": "Linear head",
    "head_low_rank": "Low-rank head",
    "head_mlp": "MLP head",
    "head_ridge": "Ridge head",
    "clip4clip": "CLIP4Clip",
    "upper_bound": "Joint training",
    "lora": "LoRA",
    "mv_adapter": "MV-Adapter",
    "xpool": "X-Pool",
    "clip_vip": "CLIP-ViP",
    "moe_adapter": "MoE-Adapter",
    "cclip": "C-CLIP",
    "vr_lwf": "VR-LwF",
    "er_ring": "ER-Ring",
    "drift_adapter": "Drift-Adapter",
    "lambda_orthogonality": "Lambda-Orthogonality",
    "base_moco": "Base-MoCo",
    "bmu_moco": "BMU-MoCo",
    "bmu_fixed": "BMU-MoCo, fixed",
    "bmu_ensemble": "BMU-MoCo, ensemble",
    "lwf_moco": "LwF-MoCo",
    "co2l_moco": "Co2L-MoCo",
    "lump_moco": "LUMP-MoCo",
    "tome": "ToMe",
    "evit": "EViT",
    "sta": "STA",
    "diffrate": "DiffRate",
    "testa": "TESTA",
    "dgl_transformer": "DGL, transformer",
    "umt4clip": "UMT4CLIP",
    "vop_fc": "VoP, F+C",
    "bmu_moco_local": "BMU-MoCo, local",
    "er_ring_moco": "ER-Ring-MoCo",
    "der_moco": "DER-MoCo",
    "tvr_plus_cl": "TVR + CL",
}
_NAME = re.compile(r"\w+")


def to_markdown(tables: Table | Sequence[Table]) -> str:
    """Return a Markdown section for each table. Published numbers follow our row as a row in italics."""
    return "\n\n".join(_markdown(table) for table in _several(tables)) + "\n"


def to_latex(tables: Table | Sequence[Table]) -> str:
    """Return a LaTeX table for each stream, for the package booktabs. All text is escaped.

    Methods have the names that their papers print. Numbers have at most four significant digits. Notes of more than
    `LONGEST` characters are comments.
    """
    return "\n\n".join(_latex(table) for table in _several(tables)) + "\n"


def to_csv(tables: Table | Sequence[Table]) -> str:
    """Return CSV text with a line for each row: our values, published values, their differences, all other metrics.

    Text that a spreadsheet would evaluate as a formula is prefixed with an apostrophe.
    """
    rows = [(table, row) for table in _several(tables) for row in table.rows]
    lines = [_csv_cells(table, row) for table, row in rows]
    names = list(dict.fromkeys(name for line in lines for name in line))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([line.get(name, MISSING) for name in names] for line in lines)
    return out.getvalue()


# --- Markdown -----------------------------------------------------------------------------------------------


def _markdown(table: Table) -> str:
    feet = Footnotes()
    arrows = {"up": " ↑", "down": " ↓", "": ""}
    titles = ["Method", *(f"{c.title}{arrows[c.better]}" for c in table.columns), *last_titles(table)]
    lines = [
        f"### {_markdown_text(table.heading)}",
        "",
        markdown_line(titles),
        markdown_line([":--", *["--:"] * (len(titles) - 1)]),
    ]
    for row, title in with_titles(table):
        if title:
            lines.append(markdown_line([f"*{_markdown_text(title)}*", *[""] * (len(titles) - 1)]))
        cells = []
        for column in table.columns:
            text = _markdown_text(cell(row, column))
            cells.append(f"**{text}**" if table.is_best(row, column) else text)
        label = _markdown_text(row.label) + "".join(
            f"<sup>{sign}</sup>" for sign in [",".join(feet.signs(row.marks))] if sign
        )
        last = [
            _markdown_text(text) for text in (*table.comparison_cells(row), str(len(row.seeds)), *table.cost_cells(row))
        ]
        lines.append(markdown_line([label, *cells, *last]))
        if row.paper:
            signs = ",".join([feet.source(row.paper_source), *feet.signs(row.paper_marks)])
            printed = [number(row.paper[c.key], c.digits) if c.key in row.paper else "" for c in table.columns]
            cells = [f"*{text}*" if text else "" for text in printed]
            lines.append(markdown_line([f"&emsp;*paper* <sup>{signs}</sup>", *cells, *[""] * len(last_titles(table))]))
    lines += ["", *(f"- {_markdown_text(note)}" for note in table.notes)]
    lines += [f"- <sup>{sign}</sup> {_markdown_text(text)}" for sign, text in feet.all()]
    return "\n".join(lines)


def with_titles(table: Table) -> Iterator[tuple[Row, str]]:
    """Yield (row, title) block by block. The title is "", except for the first row of each of several blocks."""
    for title, rows in table.blocks:
        yield from zip(rows, [title, *[""] * len(rows)])


def last_titles(table: Table) -> list[str]:
    return [
        *table.comparison_titles,
        "Seeds",
        *(["Trials", "Time"] if table.rows and table.cost_cells(table.rows[0]) else []),
    ]


def markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_text(text: str) -> str:
    """Escape text so that it is shown literally: no markup, no cell border, no line break."""
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


# --- LaTeX --------------------------------------------------------------------------------------------------

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_text(text: str) -> str:
    """Escape everything that LaTeX would interpret as a command."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _latex(table: Table) -> str:
    feet, shared = Footnotes(), shared_marks(table)
    arrows = {"up": r" $\uparrow$", "down": r" $\downarrow$", "": ""}
    heads = ["Method", *(f"{latex_text(c.title)}{arrows[c.better]}" for c in table.columns), *last_titles(table)]
    body: list[str] = []
    for row, title in with_titles(table):
        if title:
            body += [r"\midrule"] if body else []
            body.append(f"\\multicolumn{{{len(heads)}}}{{l}}{{\\textit{{{latex_text(title)}}}}} \\\\")
        cells = []
        for column in table.columns:
            text = _latex_cell(row, column)
            cells.append(f"\\textbf{{{text}}}" if table.is_best(row, column) else text)
        last = [
            *(latex_text(cell).replace("-", "$-$") for cell in table.comparison_cells(row)),
            str(len(row.seeds)),
            *map(latex_text, table.cost_cells(row)),
        ]
        marks = [mark for mark in row.marks if mark not in shared and len(mark) <= LONGEST]
        body.append(_latex_line([latex_text(printed_name(row.label)) + _super(feet.signs(marks)), *cells, *last]))
        if row.paper:
            signs = _super([feet.source(row.paper_source), *feet.signs(row.paper_marks)])
            printed = [_latex_number(row.paper[c.key], c.digits) if c.key in row.paper else "" for c in table.columns]
            cells = [f"\\textit{{{text}}}" if text else "" for text in printed]
            body.append(_latex_line([f"\\quad\\textit{{paper}}{signs}", *cells, *[""] * len(last_titles(table))]))
    below = [*table.notes, *(f"All rows: {mark}" for mark in shared)]
    notes = [latex_text(round_numbers(printed_name(note))) for note in below if len(note) <= LONGEST]
    notes += [f"{_super([sign])} {latex_text(round_numbers(text))}" for sign, text in feet.all()]
    long = [note for note in below if len(note) > LONGEST]
    long += [f"{row.label}: {mark}" for row in table.rows for mark in row.marks if len(mark) > LONGEST]
    size = "table*" if len(heads) > NARROW else "table"
    return "\n".join(
        [
            *(f"% {' '.join(note.split())}" for note in long),
            f"\\begin{{{size}}}[t]",
            r"\centering",
            f"\\caption{{Text-to-video retrieval on {latex_text(table.heading)}.}}",
            f"\\label{{tab:{re.sub(r'[^a-zA-Z0-9]+', '-', table.heading).strip('-').lower()}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            _latex_line(heads),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *([r"\par\smallskip\raggedright\footnotesize"] if notes else []),
            *(note + r"\par" for note in notes),
            f"\\end{{{size}}}",
        ]
    )


def _latex_number(value: Value, digits: int) -> str:
    text = number(value, decimals(value.mean, digits), r"{\scriptsize$\pm$")
    text = text + "}" if "$" in text else text
    return "$-$" + text[1:] if text.startswith("-") else text


def _latex_cell(row: Row, column: Column) -> str:
    known = row.intervals.get(column.key)
    if known is None:
        return _latex_number(row.values.get(column.key, Value()), column.digits)
    return known.with_bounds().replace("-", "$-$")


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _super(signs: Sequence[str]) -> str:
    return f"\\textsuperscript{{{','.join(signs)}}}" if signs else ""


# --- CSV ----------------------------------------------------------------------------------------------------


def _csv_cells(table: Table, row: Row) -> dict[str, str]:
    cells = {
        "stream": _safe(table.stream),
        "method": _safe(row.method),
        "label": _safe(row.label),
        "access": row.access,
        "n": str(len(row.seeds)),
        "seeds": _safe(" ".join(row.seeds)),
    }
    for column in table.columns:
        ours, paper = row.values.get(column.key, Value()), row.paper.get(column.key, Value())
        cells[column.key], cells[f"{column.key}_std"] = _plain(ours.mean), _plain(ours.std)
        cells[f"{column.key}_paper"], cells[f"{column.key}_paper_std"] = _plain(paper.mean), _plain(paper.std)
        cells[f"{column.key}_minus_paper"] = _plain(ours.mean - paper.mean)
        if (known := row.intervals.get(column.key)) is not None:
            cells[f"{column.key}_low"], cells[f"{column.key}_high"] = _plain(known.low), _plain(known.high)
    seen = row.vs_best or Difference()
    for name, value in (("r1_vs_best", seen.value), ("low", seen.low), ("high", seen.high), ("p", seen.p)):
        cells[name if name == "r1_vs_best" else f"{name}_vs_best"] = _plain(value)
    cells["trials"] = MISSING if row.trials is None else str(row.trials)
    cells["trials_by_hand"] = row.by_hand
    cells["seconds"] = _plain(row.seconds)
    for key in sorted(row.extra):
        cells[key], cells[f"{key}_std"] = _plain(row.extra[key].mean), _plain(row.extra[key].std)
    cells["paper_source"] = _safe(row.paper_source)
    cells["marks"] = _safe(" | ".join([*row.marks, *row.paper_marks]))
    cells["differs"] = _safe(", ".join(f"{n} {ours} (paper {paper})" for n, (ours, paper) in row.differs.items()))
    cells["settings"] = _safe(" ".join(f"{name}={value}" for name, value in row.settings.items()))
    cells["runs"] = _safe(" ".join(row.runs))
    return cells


def _safe(text: str) -> str:
    """Escape text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.lstrip()[:1] in {"=", "+", "-", "@"} or text[:1] in {"\t", "\r", "\n"} else text


def _plain(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else MISSING


# --- shared -------------------------------------------------------------------------------------------------


def shared_marks(table: Table) -> list[str]:
    """Return the footnotes that all rows share, or [] for a single row. They are printed once, without a letter."""
    first = table.rows[0].marks if len(table.rows) > 1 else ()
    return [mark for mark in first if all(mark in row.marks for row in table.rows)]


def round_numbers(text: str) -> str:
    """Round numbers in a text with more than six decimals, such as sampled settings, to four significant digits."""
    return re.sub(r"(?<![\w.])\d+\.\d{7,}(?:e[-+]?\d+)?", lambda match: f"{float(match[0]):.4g}", text)


class Footnotes:
    """Signs of the footnotes of a table: letters for marks and numbers for sources, in order of first use."""

    def __init__(self) -> None:
        self._marks: list[str] = []
        self._sources: list[str] = []

    def signs(self, marks: Iterable[str]) -> list[str]:
        return [_letters(place) for place in sorted([_place(self._marks, mark) for mark in marks])]

    def source(self, text: str) -> str:
        return str(_place(self._sources, text) + 1)

    def all(self) -> list[tuple[str, str]]:
        """Return (sign, text) of each footnote: marks first, then sources."""
        marks = [(_letters(index), text) for index, text in enumerate(self._marks)]
        return marks + [(str(index + 1), text) for index, text in enumerate(self._sources)]


def _place(known: list[str], text: str) -> int:
    if text not in known:
        known.append(text)
    return known.index(text)


def _letters(index: int) -> str:
    """Return the letters of a 0-based index: a, b, ..., z, aa, ab, ..."""
    text = ""
    while index >= 0:
        text = chr(ord("a") + index % 26) + text
        index = index // 26 - 1
    return text


def _several(tables: Table | Sequence[Table]) -> Sequence[Table]:
    return [tables] if isinstance(tables, Table) else tables


def printed_name(label: str) -> str:
    """Return the label of a row with the printed name of its method: `lwf (searched)` becomes `LwF (searched)`."""
    match = _NAME.match(label)
    name = match[0] if match else ""
    if label[len(name) : len(name) + 1] not in ("", " ", ":", "@") or name not in {**EVERY_METHOD, **CONFIGURATIONS}:
        return label
    return PRINTED.get(name, EVERY_METHOD.get(name, f":{name}").partition(":")[2]) + label[len(name) :]
