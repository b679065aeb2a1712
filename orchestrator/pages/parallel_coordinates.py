"""Parallel coordinates of a search's trials, and the association of each setting with the result.

Axes are horizontal and below each other, so that any number of them fits a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, ROW, LEFT, TOP = 420, 46, 12, 22


@dataclass(frozen=True)
class Trial:
    """One complete trial: its searched settings as typed, and its score (`mode` gives the better direction)."""

    settings: dict[str, str]
    score: float


def trials_html(trials: Sequence[Trial], metric: str, mode: str = "max") -> str:
    """Return the drawing with its legend, then the strength of each setting; empty if there is nothing to compare.

    Args:
        trials: best first, with the `settings` that differ.
        metric: the name of `score`.
        mode: "max" or "min".
    """
    names = (
        [name for name in trials[0].settings if len({t.settings.get(name, "") for t in trials}) > 1] if trials else []
    )
    if len(trials) < 2 or not names:
        return ""
    axes = [_Axis(name, [t.settings.get(name, "") for t in trials]) for name in names]
    axes.append(_Axis(metric, [f"{t.score:.2f}" for t in trials], is_score=True))
    height = TOP + ROW * len(axes)
    lines = []
    for index in reversed(range(len(trials))):  # the best on top
        points = " ".join(f"{axis.x(index):.1f},{TOP + ROW * row}" for row, axis in enumerate(axes))
        look = 'stroke="var(--c1)" stroke-width="3"' if index == 0 else 'stroke="var(--c0)" stroke-opacity=".45"'
        lines.append(f'<polyline points="{points}" fill="none" {look}/>')
    drawn = [axis.drawn(TOP + ROW * row) for row, axis in enumerate(axes)]
    said = f"{len(trials)} complete trials over {len(names)} settings; the winner has {metric} {trials[0].score:.2f}"
    return (
        f'<h2>The search</h2><figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(said)}">'
        f"{''.join(lines)}{''.join(drawn)}</svg><figcaption><small>A line is a complete trial, the thick one the "
        f"winner of the search. Last axis: {escape(metric)}.</small></figcaption></figure>{_strengths(axes, mode)}"
    )


class _Axis:
    """One setting: the position of each trial on it, 0 to 1. Numbers over a range of 30 and more are on a log scale."""

    def __init__(self, name: str, values: Sequence[str], is_score: bool = False) -> None:
        self.name, self.values, self.is_score = name, values, is_score
        try:
            self.numbers: list[float] | None = [float(value) for value in values]
        except ValueError:
            self.numbers = None
        if self.numbers is None or not all(map(math.isfinite, self.numbers)):
            order = sorted(set(values))
            self.numbers, self.places = None, [float(order.index(value)) for value in values]
            self.ends = (
                (order[0], order[-1]) if len(order) < 3 else (order[0], f"{', '.join(order[1:-1])}, {order[-1]}")
            )
        else:
            low, high = min(self.numbers), max(self.numbers)
            is_log = low > 0 and high / low >= 30
            self.places = [math.log(number) if is_log else number for number in self.numbers]
            self.ends = (f"{low:.3g}", f"{high:.3g}")

    def x(self, index: int) -> float:
        low, high = min(self.places), max(self.places)
        share = (self.places[index] - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - 2 * LEFT)

    def drawn(self, y: int) -> str:
        weight = ' font-weight="700"' if self.is_score else ""
        return (
            f'<path d="M{LEFT} {y}H{WIDTH - LEFT}" stroke="var(--line)"/><text x="{WIDTH / 2}" y="{y - 8}" '
            f'text-anchor="middle"{weight}>{escape(self.name)}</text><text x="{LEFT}" y="{y + 15}">'
            f'{escape(self.ends[0])}</text><text x="{WIDTH - LEFT}" y="{y + 15}" text-anchor="end">'
            f"{escape(self.ends[1])}</text>"
        )


def _strengths(axes: Sequence[_Axis], mode: str) -> str:
    """Return the association of each setting with the score: a bar each, strongest first."""
    score = _ranks([float(value) * (-1 if mode == "min" else 1) for value in axes[-1].values])
    found = sorted(
        ((strength(axis.numbers, axis.values, score), axis) for axis in axes[:-1]), key=lambda each: -abs(each[0])
    )
    chance = 1 / math.sqrt(len(score) - 1)
    rows = "".join(
        f'<tr><td>{escape(axis.name)}</td><td><meter min="0" max="1" value="{abs(value):.2f}"></meter></td>'
        f"<td>{f'{value:+.2f}' if axis.numbers is not None else f'{value:.2f}'}</td></tr>"
        for value, axis in found
    )
    return (
        f'<div class="scroll"><table><tr><th>Setting</th><th></th><th>association with the result</th></tr>'
        f"{rows}</table></div>"
        f"<p><small>Rank correlation (for words: the correlation ratio of the ranks) over {len(score)} trials. "
        f"A number without any influence differs from 0 by {chance:.2f} by chance (one standard deviation)."
        "</small></p>"
    )


def strength(numbers: Sequence[float] | None, words: Sequence[str], score: Sequence[float]) -> float:
    """Return Spearman's correlation of numbers with the ranks `score`, in [-1, 1]; for words the correlation ratio."""
    mean = sum(score) / len(score)
    total = sum((value - mean) ** 2 for value in score)
    if total == 0:
        return 0.0
    if numbers is not None:
        ranks = _ranks(numbers)
        own = sum((rank - mean) ** 2 for rank in ranks)
        both = sum((rank - mean) * (value - mean) for rank, value in zip(ranks, score))
        return both / math.sqrt(own * total) if own else 0.0
    groups: dict[str, list[float]] = {}
    for word, value in zip(words, score):
        groups.setdefault(word, []).append(value)
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in groups.values())
    return math.sqrt(between / total)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) + 1) / 2 for value in values]
