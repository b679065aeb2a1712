"""Charts of a whole search as inline SVG: the order of trials at each halving rung, and trials over all settings."""

from __future__ import annotations

import math
from html import escape

from ctvr.orchestrator.pages.charts import ticks_around
from ctvr.orchestrator.pages.search_space import SearchedSpace, Trial, point, round_number

WIDTH, LEFT, RIGHT = 460, 44, 446  # width of the view box, and x of both ends of the axes
LADDER = 420  # maximum height of the chart of rungs
TOP = 48  # y of the first trial, or of the first axis below its name
AXIS = 48  # distance between two axes of settings
INKS = {  # kind of trial -> SVG attributes of the line
    "stopped": 'stroke="var(--soft)" stroke-width="1" stroke-dasharray="3 3" opacity="0.7"',
    "complete": 'stroke="var(--c0)" stroke-width="1.5"',
    "winner": 'stroke="var(--c1)" stroke-width="3"',
}


def ladder_svg(space: SearchedSpace) -> str:
    """Draw the order of the trials at each halving rung, with the best on top.

    A rung is a task after which a trial ended. Results at different rungs are of different galleries, so that rungs do
    not share a scale. The result is "" if all trials ended after the same task.
    """
    ended = [trial.tasks for trial in space.trials if trial.history]
    rungs = sorted({0, *ended} - {0})
    if len(rungs) < 2:
        return ""
    sign = 1 if space.less_is_better else -1
    orders = [
        sorted(
            [trial for trial in space.trials if math.isfinite(dict(trial.history).get(rung, math.nan))],
            key=lambda trial: sign * dict(trial.history)[rung],
        )
        for rung in rungs
    ]
    most = max(map(len, orders))
    step = min(18.0, LADDER / most)
    parts, said = [], []
    xs = [LEFT + 20 + place * (RIGHT - LEFT - 50) / (len(rungs) - 1) for place in range(len(rungs))]
    for x, rung, order in zip(xs, rungs, orders):
        count = f"{len(order)} trial{'s' * (len(order) != 1)}"
        parts.append(f'<text x="{x:.0f}" y="14" text-anchor="middle">task {rung}</text>')
        parts.append(f'<text x="{x:.0f}" y="29" text-anchor="middle">{count}</text>')
        said.append(f"after task {rung}: {count}, best first: {', '.join(trial.number for trial in order)}")
    for trial in sorted(space.trials, key=lambda trial: list(INKS).index(trial.kind)):
        places = [(x, TOP + order.index(trial) * step) for x, order in zip(xs, orders) if trial in order]
        if not places:
            continue
        line = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{line}" fill="none" {INKS[trial.kind]}/>')
        parts += [point("complete", round(x, 1), round(y, 1)) for x, y in places[:-1]]
        parts.append(point(trial.kind, round(places[-1][0], 1), round(places[-1][1], 1)))
        if step > 9:
            x, y = places[0]
            parts.append(f'<text x="{x - 10:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(trial.number)}</text>')
    return _figure(
        "The numbered trials after each task at which some were stopped, the best on top.",
        f"trials at each rung; {'; '.join(said)}",
        round(TOP + most * step),
        parts,
    )


def parallel_svg(space: SearchedSpace) -> str:
    """Draw parallel coordinates: a line for each trial across the axes of all settings, down to an axis of results.

    The result is "" for fewer than two settings, for fewer than three trials, or without a value on the last axis.
    """
    values = [trial.value for trial in space.trials if space.is_on_scale(trial)]
    if len(space.settings) < 2 or len(space.trials) < 3 or not values:
        return ""
    ticks = ticks_around(values)
    result = TOP + AXIS * len(space.settings)
    parts, texts = list[str](), list[str]()
    for number, setting in enumerate(space.settings):
        y = TOP + AXIS * number
        ends = [(value, setting.place(value)) for value in setting.values]
        ends = ends or [(str(setting.low), 0.0), (str(setting.high), 1.0)]
        texts += _axis(y, setting.name, [(round_number(value), share) for value, share in ends])
    shares = [(f"{tick:g}", (tick - ticks[0]) / (ticks[-1] - ticks[0])) for tick in ticks]
    texts += _axis(result, f"{space.metric}, after task {space.last_task}", shares)
    for trial in sorted(space.trials, key=lambda trial: list(INKS).index(trial.kind)):
        places = [
            (setting.place(trial.settings.get(setting.name, "")), TOP + AXIS * number)
            for number, setting in enumerate(space.settings)
        ]
        if space.is_on_scale(trial):
            places.append(((trial.value - ticks[0]) / (ticks[-1] - ticks[0]), result))
        known = [(_x(share), y) for share, y in places if math.isfinite(share)]
        line = " L".join(f"{x:.1f} {y}" for x, y in known)
        parts.append(f'<path d="M{line}" fill="none" {INKS[trial.kind]}/>' if known else "")
        if space.is_on_scale(trial):
            parts.append(point(trial.kind, round(known[-1][0], 1), result))
    said = "; ".join(f"trial {trial.number} {_described(space, trial)}" for trial in space.trials[:20])
    return _figure(
        "Each line is a trial: its value of every setting, and its result on the last axis. "
        "Dashed lines did not reach the last task and have no result there.",
        f"trials over all settings; {said}",
        result + 24,
        [*parts, *texts],
    )


def _axis(y: int, name: str, ticks: list[tuple[str, float]]) -> list[str]:
    """Return the SVG elements of a horizontal axis with its name above and its ticks (text, position) below."""
    parts = [
        f'<path d="M{LEFT} {y}H{RIGHT}" stroke="var(--line)" stroke-width="2"/>',
        f'<text x="{LEFT}" y="{y - 8}" font-weight="600">{escape(name)}</text>',
    ]
    for text, share in ticks:
        anchor = "start" if share <= 0 else "end" if share >= 1 else "middle"
        parts.append(f'<text x="{_x(share):.1f}" y="{y + 15}" text-anchor="{anchor}">{escape(text)}</text>')
    return parts


def _x(share: float) -> float:
    return LEFT + min(1.0, max(0.0, share)) * (RIGHT - LEFT)


def _described(space: SearchedSpace, trial: Trial) -> str:
    values = [f"{each.name} {round_number(trial.settings.get(each.name, ''))}" for each in space.settings]
    return f"{', '.join(values)}: {trial.result}"


def _figure(caption: str, alt: str, height: int, parts: list[str]) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(alt, quote=True)}">'
        f"{''.join(parts)}</svg><figcaption><small>{escape(caption)}</small></figcaption></figure>"
    )
