"""Confusion of categories: the category of the video that is ranked first for the captions of each category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

MAX_CATEGORIES = 24  # maximum categories; the cells of more would be too small to read
LEFT, TOP, SIDE, LARGEST = 118, 22, 460, 28  # x and y of the cells, width of the view box, largest cell


def confusion_html(label: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Return a heat map (HTML) of the categories ranked first, in percent of the captions of each category.

    The result is "" for fewer than two categories, for more than `MAX_CATEGORIES`, or if a category is unknown.

    Args:
        label: name of the table row whose model ranked the videos.
        pairs: for each caption, its category and the category of the video ranked first.
    """
    names = list(dict.fromkeys([*(asked for asked, _ in pairs), *(found for _, found in pairs)]))
    if not 2 <= len(names) <= MAX_CATEGORIES or "" in names:
        return ""
    counts, asked = Counter(pairs), Counter(name for name, _ in pairs)
    side = min(LARGEST, (SIDE - LEFT) / len(names))
    parts, said = [], []
    for row, name in enumerate(names):
        y = TOP + row * side
        text = f'<text x="{LEFT - 6}" y="{y + side / 2 + 4:.1f}" text-anchor="end">{escape(name[:14])} {row + 1}</text>'
        parts.append(text)
        x = LEFT + (row + 0.5) * side
        if len(names) <= 12 or row % 2 == 0:  # otherwise the numbers touch on a phone
            parts.append(f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{row + 1}</text>')
        for column, other in enumerate(names):
            percent = 100 * counts[name, other] / max(1, asked[name])
            if percent:
                place = f'x="{LEFT + column * side:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
                title = f"{escape(name)}: {percent:.0f} % find {escape(other)} first"
                parts.append(
                    f'<rect {place} fill="var(--c0)" fill-opacity="{percent / 100:.2f}"><title>{title}</title></rect>'
                )
        if asked[name]:
            said.append(f"{name}: {100 * counts[name, name] / asked[name]:.0f} % right")
    height = round(TOP + side * len(names))
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{side * len(names):.1f}" height="{side * len(names):.1f}"'
    parts.append(f'{frame} fill="none" stroke="var(--line)"/>')
    alt = escape(f"confusion of categories of {label}; {'; '.join(said)}", quote=True)
    return (
        f'<figure><svg viewBox="0 0 {SIDE} {height}" role="img" aria-label="{alt}">{"".join(parts)}</svg>'
        f"<figcaption><small>Confusion of categories, {escape(label)}. Row: category of the captions. Column, in the "
        "same order: category of the video that is ranked first. Stronger color: a larger share of the row, 0 to 100 %."
        "</small></figcaption></figure>"
    )
