"""Line and scatter plots of a table's rows, in panels with one legend. The values come from tables/table_figures.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from ctvr.orchestrator.figures.figures import new_figure, use_default_style, wrap_name
from ctvr.orchestrator.figures.styles import FAINT, INK, SOFT, LineName, Style, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Line:
    """A curve of a panel, usually the curve of one table row. `points`: (x, mean, std); std is NaN if it is unknown."""

    label: str
    method: str  # determines color, line and marker
    points: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: axis titles, lines, and their decoration."""

    x: str
    y: str
    lines: Sequence[Line]
    title: str = ""
    levels: Sequence[Line] = ()  # rows without an x, drawn as a horizontal line at the first point's mean
    dashed: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)  # label -> (x, y); gray lines
    joined: bool = True  # False: points only, with their std as error bars
    bars: bool = False  # True: bars instead of lines, as a group at each x with one bar per line
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()  # (position, label); if empty, the x values if they are few integers
    borders: Sequence[float] = ()  # vertical lines, for example at the ends of tasks
    front: Sequence[tuple[float, float]] = ()  # corners of a Pareto front
    between: tuple[float, float] | None = None  # limits of y, for panels that are compared


@use_default_style
def draw(panels: Sequence[Panel], title: str) -> Figure:
    """Draw panels (at most three in a row) with one legend on the right."""
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    shown = [line for panel in panels for line in (*panel.lines, *panel.levels)]
    styles = styles_of(list(dict.fromkeys((line.label, line.method) for line in shown)))
    names = [wrap_name(label) for label, _ in styles]
    of_legend = max(1, -(-sum(name.count("\n") + 1 for name in names) // (20 * rows)))
    width = (4.3 if columns > 1 else 5.2) * columns + 2.2 * of_legend
    figure, places = new_figure(columns, panel=3.9 * rows, width=width, rows=rows)
    for panel, place in zip(panels, places):
        for number, line in enumerate(panel.lines):
            style = styles[line.label, line.method]
            _bars(place, line, style, number, len(panel.lines)) if panel.bars else _line(place, panel, line, style)
        for level in panel.levels:
            _level(place, level, styles[level.label, level.method])
        for label, points in panel.dashed.items():
            place.plot(*zip(*points), color=SOFT, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
            place.annotate(label, points[-1], (0, 3), textcoords="offset points", fontsize=8, color=SOFT, ha="right")
        _dress(place, panel)
    for place in places[len(panels) :]:
        place.set_visible(False)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    levels = {(level.label, level.method) for panel in panels for level in panel.levels}
    joined = any(panel.joined and not panel.bars for panel in panels)
    handles = [_handle(style, joined, is_level=row in levels) for row, style in styles.items()]
    figure.legend(
        handles, names, fontsize=8, frameon=False, loc="outside right upper", handlelength=3.2, ncols=of_legend
    )
    return figure


def _handle(style: Style, joined: bool, is_level: bool) -> Line2D:
    """Return the legend entry of a row."""
    from matplotlib.lines import Line2D

    line: LineName | Literal["none"] = _dashed(style) if is_level else style.line if joined else "none"
    marker = "none" if is_level else style.marker
    return Line2D([], [], color=style.colour, linestyle=line, marker=marker, markerfacecolor=style.face, markersize=5)


def _dashed(style: Style) -> LineName:
    """Return the line style of a level. It is not solid, so that it differs from the line of a row."""
    return style.line if style.line != "-" else "--"


def _line(place: Axes, panel: Panel, line: Line, style: Style) -> None:
    x, means, stds = (np.asarray(column, float) for column in zip(*line.points))
    place.errorbar(
        x,
        means,
        yerr=None if panel.joined or not np.isfinite(stds).any() else np.nan_to_num(stds),
        color=style.colour,
        linestyle=style.line if panel.joined else "none",
        marker=style.marker,
        markersize=(4 if len(x) <= 30 else 2) if panel.joined else 7,
        markerfacecolor=style.face,
        linewidth=1.5,
        elinewidth=1,
    )
    if panel.joined and np.isfinite(stds).any():
        place.fill_between(x, means - stds, means + stds, color=style.colour, alpha=0.13, linewidth=0)


def _bars(place: Axes, line: Line, style: Style, number: int, count: int) -> None:
    """Draw the bars of the `number`-th of `count` lines. The bars at one x have a total width of 0.8."""
    x, means, stds = (np.asarray(column, float) for column in zip(*line.points))
    error = np.nan_to_num(stds) if np.isfinite(stds).any() else None
    width = 0.8 / count
    place.bar(x + (number - (count - 1) / 2) * width, means, 0.92 * width, yerr=error, color=style.colour)
    place.axhline(0, color=INK, linewidth=0.8)


def _level(place: Axes, level: Line, style: Style) -> None:
    _, mean, std = level.points[0]
    if np.isfinite(std):
        place.axhspan(mean - std, mean + std, color=style.colour, alpha=0.10, linewidth=0)
    place.axhline(mean, color=style.colour, linestyle=_dashed(style), linewidth=1.5)


def _dress(place: Axes, panel: Panel) -> None:
    if panel.between is not None:
        place.set_ylim(*panel.between)
    place.set_xlabel(panel.x, fontsize=9, color=INK)
    place.set_ylabel(panel.y, fontsize=9, color=INK)
    place.set_title(panel.title, fontsize=10, color=INK, loc="left")
    if panel.scale == "log":
        place.set_xscale("log")
        _plain_numbers(place)
    known = sorted({x for line in panel.lines for x, _, _ in line.points})
    if panel.ticks:
        place.set_xticks([x for x, _ in panel.ticks], [text for _, text in panel.ticks])
        place.minorticks_off()
    elif panel.joined and len(known) <= 12 and all(float(x).is_integer() for x in known):
        place.set_xticks(known, [str(int(x)) for x in known])
    for border in panel.borders:
        place.axvline(border, color=FAINT, linewidth=1, zorder=0)
    if panel.front:
        costs, gains = zip(*panel.front)
        place.step([*costs, known[-1]], [*gains, gains[-1]], where="post", color=FAINT, linewidth=2, zorder=0)
    place.grid(axis="y", color=FAINT, linewidth=0.6)
    place.set_axisbelow(True)
    place.tick_params(labelsize=8, colors=INK, length=0, which="both")
    for side in ("top", "right", "left"):
        place.spines[side].set_visible(False)
    place.spines["bottom"].set_color(FAINT)


def _plain_numbers(place: Axes) -> None:
    """Set the ticks of a logarithmic axis to 1, 2 and 5 times powers of ten, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    place.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    place.xaxis.set_minor_locator(NullLocator())
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
