"""Matplotlib figures without a GUI, and plots of matrices, shares and positions. plots.py draws lines and points.

Shapes: T tasks. A matrix of a run contains R@1 in percent of task i (column) after task t (row). Cells with i > t are
NaN or None.
"""

from __future__ import annotations

import functools
import io
import logging
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar

import numpy as np

from ctvr.orchestrator.figures.styles import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = Sequence[Sequence[float | None]]
P = ParamSpec("P")
R = TypeVar("R")


def use_default_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to draw with matplotlib's default settings, ignoring any matplotlibrc.

    matplotlib reads that file from the current folder first. The file can change every figure. With
    text.usetex, it can start LaTeX with an arbitrary preamble.
    """

    @functools.wraps(draw)
    def drawn(*given: P.args, **named: P.kwargs) -> R:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # matplotlib warns if the home folder is read-only
        import matplotlib

        defaults: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
        with matplotlib.rc_context(defaults):
            return draw(*given, **named)

    return drawn


def to_square_matrix(matrix: Matrix) -> np.ndarray:
    """Convert nested lists, of which row t may stop at column t, to (T, T) float64 with NaN above the diagonal."""
    size = len(matrix)
    full = np.full((size, size), np.nan)
    for t, row in enumerate(matrix):
        for i, value in enumerate(row[: t + 1]):
            full[t, i] = np.nan if value is None else float(value)
    return full


@use_default_style
def draw_matrices(
    matrices: Mapping[str, Matrix], title: str = "", counted: str = "R@1", limits: tuple[float, float] | None = None
) -> Figure:
    """Draw one panel per matrix, next to each other on one color scale, with the numbers in the cells.

    `counted` is the name of the metric. `limits` are the values of the palest and the darkest color. If None, these are
    the smallest and the largest value.
    """
    figure, panels = new_figure(len(matrices), panel=max(3.4, 0.46 * max(map(len, matrices.values())) + 1.4))
    arrays = {name: to_square_matrix(matrix) for name, matrix in matrices.items()}
    known = np.concatenate([a[np.isfinite(a)] for a in arrays.values()])
    low, high = limits or ((float(known.min()), float(known.max())) if known.size else (0.0, 1.0))
    high = max(high, low + 1e-6)
    image: Any = None
    for panel, (name, array) in zip(panels, arrays.items()):
        image = _matrix(panel, array, low, high)
        panel.set_title(name, fontsize=10, color=INK, loc="left")
    _bar(figure, image, panels, f"{counted} (%)", (low, high))
    if title:
        figure.suptitle(textwrap.fill(title, 100), fontsize=11, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def draw_changes(changes: Mapping[str, Matrix], title: str, counted: str = "R@1") -> Figure:
    """Draw one panel per row of a table on one color scale: gains (blue) and losses (red) in points, with signs.

    `counted` is the name of the metric.
    """
    arrays = {name: to_square_matrix(matrix) for name, matrix in changes.items()}
    columns = min(3, len(arrays))
    lines = -(-len(arrays) // columns)
    panel = max(3.2, 0.46 * max(map(len, arrays.values())) + 1.4)
    figure, panels = new_figure(columns, panel=panel * lines, width=panel * columns + 0.8, rows=lines)
    high = max(1.0, *(float(np.nanmax(np.abs(array), initial=0.0)) for array in arrays.values()))
    image: Any = None
    for place, (name, array) in zip(panels, arrays.items()):
        image = _matrix(place, array, -high, high, signed=True)
        place.set_title(wrap_name(name), fontsize=10, color=INK, loc="left")
    for place in panels[len(arrays) :]:
        place.set_visible(False)
    _bar(figure, image, panels, f"{counted} less zero-shot (points)", (-high, high))
    figure.suptitle(textwrap.fill(title, max(44, 40 * columns)), fontsize=11, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def draw_similarities(matrices: Mapping[str, Sequence[Sequence[float]]], title: str) -> Figure:
    """Draw one panel per square matrix of cosines (n, n), with numbers in the cells if they fit.

    The scale ends at the largest off-diagonal value, because the diagonal is always 1.
    """
    arrays = {name: np.asarray(matrix, dtype=float) for name, matrix in matrices.items()}
    largest = max(map(len, arrays.values()))
    figure, panels = new_figure(len(arrays), panel=max(3.4, min(5.0, 0.42 * largest + 1.4)))
    others = np.concatenate([array[~np.eye(len(array), dtype=bool)] for array in arrays.values()])
    low = float(others.min(initial=0.0))
    high = max(float(others.max(initial=low)), low + 0.1)
    image: Any = None
    for panel, (name, array) in zip(panels, arrays.items()):
        image = _matrix(panel, array, low, high, ("category", "category"), 2 if largest <= 10 else None)
        panel.set_title(name, fontsize=10, color=INK, loc="left")
    _bar(figure, image, panels, "cosine", (low, high))
    figure.suptitle(textwrap.fill(title, 40 * len(arrays)), fontsize=10, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def draw_scores(matrices: Mapping[str, Sequence[Sequence[float]]], title: str) -> Figure:
    """Draw one panel per matrix of captions x videos, each on its own color scale."""
    largest = max(map(len, matrices.values()))
    figure, panels = new_figure(len(matrices), panel=max(3.4, min(5.0, 0.42 * largest + 1.4)))
    for panel, (name, matrix) in zip(panels, matrices.items()):
        array = np.asarray(matrix, dtype=float)
        between = (float(array.min()), max(float(array.max()), float(array.min()) + 1e-12))
        image = _matrix(panel, array, *between, ("video", "caption"), 2 if largest <= 10 else None)
        panel.set_title(name, fontsize=10, color=INK, loc="left")
        _bar(figure, image, [panel], "score", between)
    figure.suptitle(textwrap.fill(title, 40 * len(matrices)), fontsize=10, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def draw_drift(points: np.ndarray, others: np.ndarray, labels: Sequence[str], title: str, other: str) -> Figure:
    """Draw the positions (T, N, 2) of N queries in T states of a model, joined in order, and M other points (M, 2).

    Markers change from dark to bright over the states, so that they are distinguishable without color.

    Args:
        labels: names of the T states in the legend.
        other: name of the other points in the legend.
    """
    from matplotlib import colormaps

    figure, (panel,) = new_figure(1, panel=4.8, width=8.2)
    states = len(points)
    panel.plot(points[..., 0], points[..., 1], color=FAINT, linewidth=0.8, zorder=1)
    for number, (places, label) in enumerate(zip(points, labels)):
        shade = colormaps["viridis"](0.92 * number / max(states - 1, 1))
        panel.scatter(places[:, 0], places[:, 1], s=22, color=[shade], label=label, zorder=3 + number)
    panel.plot(others[:, 0], others[:, 1], "s", markersize=5, markerfacecolor="none", color=INK, label=other, zorder=2)
    panel.set_xlabel("first principal direction", color=INK)
    panel.set_ylabel("second principal direction", color=INK)
    panel.set_aspect("equal", adjustable="datalim")
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    figure.suptitle(textwrap.fill(title, 100), fontsize=10, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def draw_shares(shares: np.ndarray, title: str) -> Figure:
    """Draw the share (%) of each expert (E rows) in each task (T columns), with the numbers in the cells."""
    experts, tasks = shares.shape
    figure, (panel,) = new_figure(1, panel=max(2.6, 0.36 * experts + 1.5), width=max(4.6, 0.43 * tasks + 2.2))
    routed = shares[:, np.nanmax(shares, axis=0, initial=0) < 100]  # an expert with 100 % would make the others pale
    high = max(float(np.nanmax(routed, initial=0)), 1.0)
    image = _matrix(panel, shares, 0.0, high, ("task", "expert"))
    _bar(figure, image, [panel], "share of the gates (%)", (0.0, high))
    figure.suptitle(textwrap.fill(title, max(48, 7 * tasks)), fontsize=10, color=INK, x=0.01, ha="left")
    return figure


@use_default_style
def save(figure: Figure, to: Path | BinaryIO, form: str = "png") -> None:
    """Write a figure as "png", "pdf" or "svg", without the date, so that equal figures give equal bytes."""
    import matplotlib

    omitted = {"pdf": ("CreationDate", "Creator", "Producer"), "svg": ("Date", "Creator")}.get(form, ("Software",))
    with matplotlib.rc_context({"svg.hashsalt": "ctvr"}):  # otherwise ids in the SVG are random
        figure.savefig(to, dpi=150, format=form, metadata=dict.fromkeys(omitted))


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return the bytes that `save` writes for a figure."""
    buffer = io.BytesIO()
    save(figure, buffer, form)
    return buffer.getvalue()


def wrap_name(name: str) -> str:
    """Wrap the name of a row for the legend, so that the plot has enough width. Cut names of more than four lines."""
    lines = textwrap.wrap(name, 28, break_long_words=True)
    return "\n".join([*lines[:3], "..."] if len(lines) > 4 else lines)


def new_figure(count: int, panel: float, width: float | None = None, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` x `count` panels without the global state of pyplot; return it with its panels.

    The figure is `panel` inches high and `width` inches wide. By default, each panel is `panel` inches wide.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width or panel * count + 0.8, panel), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, count, squeeze=False).flat)


def _bar(figure: Figure, image: Any, panels: Sequence[Axes], label: str, between: tuple[float, float]) -> None:
    bar = figure.colorbar(image, ax=list(panels), fraction=0.035, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.set_label(label, fontsize=9, color=INK)
    bar.ax.set_ylim(*between)  # starts below `low`, so that the palest cells differ from the background


def _matrix(
    panel: Axes,
    array: np.ndarray,
    low: float,
    high: float,
    names: tuple[str, str] = ("evaluated on task", "after learning task"),
    digits: int | None = -1,
    signed: bool = False,
) -> Any:
    """Draw an array as colored cells with values of `digits` decimals, and return the image.

    If `digits` is -1, as many decimals as fit are shown. If it is None, values are not shown. If `signed`, values have
    a sign, losses are red, gains are blue, and `low` must be `-high`.
    """
    rows, columns = array.shape
    palest = low if signed else low - 0.15 * (high - low)
    image = panel.imshow(np.ma.masked_invalid(array), cmap="RdBu" if signed else "Blues", vmin=palest, vmax=high)
    digits = (1 if columns <= 12 else 0) if digits == -1 else digits
    for t in range(rows):
        for i in range(columns):
            if digits is not None and np.isfinite(array[t, i]):
                dark = abs(array[t, i]) > 0.6 * high if signed else (array[t, i] - low) / (high - low) > 0.6
                text = f"{array[t, i]:{'+' * signed}.{digits}f}"
                panel.text(i, t, text, ha="center", va="center", fontsize=7, color="white" if dark else INK)
    panel.set_xticks(range(columns), [str(i + 1) for i in range(columns)])
    panel.set_yticks(range(rows), [str(t + 1) for t in range(rows)])
    panel.set_xlabel(names[0], fontsize=9, color=INK)
    panel.set_ylabel(names[1], fontsize=9, color=INK)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_xticks([i - 0.5 for i in range(1, columns)], minor=True)
    panel.set_yticks([t - 0.5 for t in range(1, rows)], minor=True)
    panel.grid(which="minor", color="white", linewidth=1.5)
    panel.tick_params(which="minor", length=0)
    return image
