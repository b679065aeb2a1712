"""A figure depends on its numbers only."""

import matplotlib
import numpy as np
import pytest

from ctvr.orchestrator.figures.figures import draw_matrices, draw_shares, to_bytes
from ctvr.orchestrator.figures.plots import Line, Panel, draw

MATRICES = {"own_1 %": [[10.0], [20.0, None]]}
HOSTILE = {"text.usetex": True, "font.size": 60, "axes.facecolor": "red", "savefig.bbox": "tight", "lines.linewidth": 9}
FIGURES = {
    "matrices": lambda: draw_matrices(MATRICES, "title"),
    "shares": lambda: draw_shares(np.eye(2), "title"),
    "plots": lambda: draw([Panel("x", "y", [Line("a_b", "lwf", [(1, 2, 0.1), (2, 3, 0.1)])])], "title"),
}


@pytest.mark.parametrize(
    ("figure", "form"), [("matrices", "png"), ("shares", "pdf"), ("plots", "png"), ("plots", "pdf")]
)
def test_settings_of_a_matplotlibrc_change_no_figure(figure, form):
    expected = to_bytes(FIGURES[figure](), form)
    with matplotlib.rc_context(HOSTILE):  # what a matplotlibrc of the current folder sets
        assert to_bytes(FIGURES[figure](), form) == expected
        assert matplotlib.rcParams["font.size"] == 60  # the user's own figures keep their settings


@pytest.mark.parametrize("count", [3, 60])
def test_every_row_of_a_figure_is_in_the_legend(count):
    lines = [Line(f"row {number}", "lwf", [(1, number, 0.1), (2, 3, 0.1)]) for number in range(count)]
    figure = draw([Panel("x", "y", lines)], "title")
    figure.canvas.draw()
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    assert page.y0 <= box.y0 < box.y1 <= page.y1
    (panel,) = figure.axes
    assert panel.get_window_extent().width > 0.4 * panel.get_window_extent().height
