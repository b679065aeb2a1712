"""Styles of methods in all figures. Each method has a fixed color, line and marker, distinguishable without color."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LineName = Literal["-", "--", ":", "-."]
INK, SOFT, FAINT = "#24292f", "#59636e", "#d0d7de"
# Okabe-Ito without the pale yellow, which is invisible on white: distinguishable with a color vision deficiency.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
LINES: tuple[LineName, ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MORE_MARKERS = ("<", ">", "p", "h", "*", "d", "8")  # for methods after the first 56, which use all other markers
# The position of a method determines its style, so append new methods and never insert them
ORDER = (
    *("clip4clip", "framefusion_moe", "structalign", "lwf", "xpool", "moe_adapter", "zero_shot"),
    *("clip_vip", "tvr_plus_cl", "zscl", "vr_lwf", "tempme", "lora", "upper_bound"),
    *("sta", "bmu_moco", "diffrate", "tome", "evit", "prompt", "adapter"),
    *("base_moco", "bmu_moco_local", "co2l_moco", "lwf_moco", "er_ring_moco", "der_moco", "lump_moco"),
    *("camoe", "dsl", "co2l", "ewc", "er_ring", "der", "lump"),
    *("bmu_fixed", "bmu_ensemble", "testa", "dgl", "dgl_transformer", "mv_adapter"),
    *("plevu", "vop", "vop_fc", "umt", "umt4clip"),
    *("image_finetune", "image_si", "image_der", "image_lump", "image_bmu_moco", "image_multi_task", "umt_qa"),
    *("image_progressive", "cclip"),
    *("qdc", "drift_adapter", "lambda_orthogonality", "lpi", "dar", "ctp", "xbt"),
    *("head_linear", "head_low_rank", "head_mlp", "head_ridge", "dns"),
)


@dataclass(frozen=True)
class Style:
    """Style of a row: color, line and marker."""

    colour: str
    line: LineName
    marker: str
    is_hollow: bool = False  # the marker is an outline
    hue: int = 0  # index into `COLOURS`, of which `colour` may be a shade

    @property
    def face(self) -> str:
        return "white" if self.is_hollow else self.colour


def style_of(method: str, variant: int = 0) -> Style:
    """Return the style of a row of a method, where `variant` is the 0-based index of the row among rows of the method.

    Row 0 has the color of the method, other rows have shades of it. The style of a third-party method follows from a
    digest of its name.
    """
    known = method in ORDER
    place = ORDER.index(method) if known else int(hashlib.sha256(method.encode()).hexdigest()[:8], 16)
    group = place // len(COLOURS)
    colour = COLOURS[place % len(COLOURS)]
    markers = MORE_MARKERS if known and group >= 2 * len(LINES) else MARKERS
    mixed = _mixed(colour, "#000000" if variant % 2 else "#ffffff", min(0.75, 0.25 * ((variant + 1) // 2 + 1)))
    return Style(
        mixed if variant else colour,
        LINES[(group + variant) % len(LINES)],
        markers[(place + group + variant) % len(markers)],
        is_hollow=(group // len(LINES) + variant) % 2 == 1,
        hue=place % len(COLOURS),
    )


def styles_of(rows: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Style]:
    """Return the style of each row (label, method) of a figure; rows of one method differ in shade, line and marker.

    The row whose label is the name of its method has the style of the method. Without such a row, the first row of the
    method has it.
    """
    found = {}
    for label, method in rows:
        of_method = sorted((each for each in rows if each[1] == method), key=lambda each: each[0] != method)
        found[label, method] = style_of(method, of_method.index((label, method)))
    return found


def _mixed(colour: str, other: str, share: float) -> str:
    """Mix color `other` with weight `share` into color `colour`; all colors are #rrggbb."""
    pairs = ((int(a, 16), int(b, 16)) for a, b in zip(_parts(colour), _parts(other)))
    return "#" + "".join(f"{round((1 - share) * a + share * b):02x}" for a, b in pairs)


def _parts(colour: str) -> tuple[str, str, str]:
    return colour[1:3], colour[3:5], colour[5:7]
