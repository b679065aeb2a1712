"""A figure depends on its numbers only."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from ctvr.orchestrator.tracking.figures import draw_matrices, draw_shares, in_form
from ctvr.orchestrator.tracking.plots import Line, Panel, draw

MATRICES = {"own_1 %": [[10.0], [20.0, None]]}
HOSTILE = {"text.usetex": True, "font.size": 60, "axes.facecolor": "red", "savefig.bbox": "tight", "lines.linewidth": 9}
FIGURES = {
    "matrices": lambda: draw_matrices(MATRICES, "title"),
    "shares": lambda: draw_shares(np.eye(2), "title"),
    "plots": lambda: draw([Panel("x", "y", [Line("a_b", "lwf", [(1, 2, 0.1), (2, 3, 0.1)])])], "title"),
}


@pytest.mark.parametrize("form", ["png", "pdf"])
@pytest.mark.parametrize("figure", FIGURES)
def test_settings_of_a_matplotlibrc_change_no_figure(figure, form):
    expected = in_form(FIGURES[figure](), form)
    with matplotlib.rc_context(HOSTILE):  # what a matplotlibrc of the current folder sets
        assert in_form(FIGURES[figure](), form) == expected
        assert matplotlib.rcParams["font.size"] == 60  # the user's own figures keep their settings
