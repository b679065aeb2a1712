"""Figures of a table and of a run: the T x T matrices and R@1 along the stream. Matplotlib's Agg, no window.

Shapes: T tasks. A matrix holds R@1 in percent of task i (column) after task t (row); the rest is NaN or None.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = Sequence[Sequence[float | None]]
INK, FAINT = "#24292f", "#d0d7de"
# Okabe-Ito without the pale yellow, which vanishes on white: distinguishable with colour vision deficiency.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def square(matrix: Matrix) -> np.ndarray:
    """Lower-triangular lists (row t may stop at column t) or nested lists as (T, T) float64 with NaN above."""
    size = len(matrix)
    full = np.full((size, size), np.nan)
    for t, row in enumerate(matrix):
        for i, value in enumerate(row[: t + 1]):
            full[t, i] = np.nan if value is None else float(value)
    return full


def draw_matrices(matrices: Mapping[str, Matrix], title: str = "") -> Figure:
    """One panel per matrix, side by side on one colour scale, with the numbers written in the cells."""
    figure, panels = _new(len(matrices), panel=max(3.4, 0.46 * max(map(len, matrices.values())) + 1.4))
    arrays = {name: square(matrix) for name, matrix in matrices.items()}
    known = np.concatenate([a[np.isfinite(a)] for a in arrays.values()])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    high = max(high, low + 1e-6)
    image: Any = None
    for panel, (name, array) in zip(panels, arrays.items()):
        image = _matrix(panel, array, low, high)
        panel.set_title(name, fontsize=10, color=INK, loc="left")
    bar = figure.colorbar(image, ax=list(panels), fraction=0.035, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.set_label("R@1 (%)", fontsize=9, color=INK)
    if title:
        figure.suptitle(textwrap.fill(title, 100), fontsize=11, color=INK, x=0.01, ha="left")
    return figure


def draw_curves(curves: Mapping[str, Sequence[tuple[int, float, float]]], title: str, label: str = "R@1 (%)") -> Figure:
    """One line per method over the tasks learned: (step, mean, std) with a band of one std where it is known."""
    figure, (panel,) = _new(1, panel=4.4, width=7.2)
    for index, (name, points) in enumerate(curves.items()):
        steps, means, stds = (np.asarray(column, float) for column in zip(*points))
        colour = COLOURS[index % len(COLOURS)]
        style = LINES[index // len(COLOURS) % len(LINES)]
        marker = MARKERS[index % len(MARKERS)]
        panel.plot(steps, means, style, color=colour, marker=marker, markersize=4, linewidth=1.6, label=_wrapped(name))
        if np.isfinite(stds).any():
            panel.fill_between(steps, means - stds, means + stds, color=colour, alpha=0.15, linewidth=0)
    panel.set_xlabel("tasks learned", fontsize=9, color=INK)
    panel.set_ylabel(label, fontsize=9, color=INK)
    panel.set_title(title, fontsize=11, color=INK, loc="left")
    panel.set_xticks(np.unique(np.concatenate([[s for s, _, _ in p] for p in curves.values()])))
    panel.grid(axis="y", color=FAINT, linewidth=0.6)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(FAINT)
    panel.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _wrapped(name: str) -> str:
    """A name beside a plot, which must leave the plot its room."""
    lines = textwrap.wrap(name, 28, break_long_words=True)
    return "\n".join([*lines[:3], "..."] if len(lines) > 4 else lines)


def save(figure: Figure, to: Path | BinaryIO) -> None:
    """Write a PNG; its bytes depend on the numbers alone."""
    figure.savefig(to, dpi=150, format="png", metadata={"Software": None})


def _new(count: int, panel: float, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in a row, without the global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width or panel * count + 0.8, panel), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _matrix(panel: Axes, array: np.ndarray, low: float, high: float) -> Any:
    size = len(array)
    image = panel.imshow(np.ma.masked_invalid(array), cmap="Blues", vmin=low - 0.15 * (high - low), vmax=high)
    digits = 1 if size <= 12 else 0
    for t in range(size):
        for i in range(t + 1):
            if np.isfinite(array[t, i]):
                dark = (array[t, i] - low) / (high - low) > 0.6
                text = f"{array[t, i]:.{digits}f}"
                panel.text(i, t, text, ha="center", va="center", fontsize=7, color="white" if dark else INK)
    ticks = list(range(size))
    panel.set_xticks(ticks, [str(t + 1) for t in ticks])
    panel.set_yticks(ticks, [str(t + 1) for t in ticks])
    panel.set_xlabel("evaluated on task", fontsize=9, color=INK)
    panel.set_ylabel("after learning task", fontsize=9, color=INK)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    for spine in panel.spines.values():
        spine.set_visible(False)
    panel.set_xticks([t - 0.5 for t in range(1, size)], minor=True)
    panel.set_yticks([t - 0.5 for t in range(1, size)], minor=True)
    panel.grid(which="minor", color="white", linewidth=1.5)
    panel.tick_params(which="minor", length=0)
    return image
