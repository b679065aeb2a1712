"""The section on the search in the report of a sweep: halving rungs, ranges of settings with tried values, trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ctvr.orchestrator.console import count
from ctvr.orchestrator.pages.charts import ticks_around
from ctvr.orchestrator.pages.search_charts import ladder_svg, parallel_svg
from ctvr.orchestrator.pages.search_space import SearchedSetting, SearchedSpace, point, round_number

WIDTH, HEIGHT, LEFT, BOTTOM = 240, 148, 34, 24  # sizes of a chart, in units of its view box
STRIP = 18  # height below the scale, for trials without a result on that scale


def searched_html(space: SearchedSpace) -> str:
    """Return the section as HTML: charts of the whole search, a small chart for each setting, a table of the trials."""
    kinds = [kind for kind in ("winner", "complete", "stopped") if any(trial.kind == kind for trial in space.trials)]
    winner = "on the Pareto front" if space.is_front else "best trial"
    meanings = {"winner": winner, "complete": "complete", "stopped": "stopped early"}
    key = "".join(
        f'<li><svg viewBox="0 0 40 14" aria-hidden="true">{point(kind, 20, 7)}</svg>{meanings[kind]}</li>'
        for kind in kinds
    )
    values = [trial.value for trial in space.trials if space.is_on_scale(trial)]
    charts = ""
    if values:
        ticks = ticks_around(values)
        drawn = "".join(_chart(each, space, ticks) for each in space.settings)
        fold = "<details><summary>one setting at a time</summary>"
        charts = f'{fold}{_of_others(space)}<div class="grid">{drawn}</div></details>'
    return (
        '<h2 id="searched">Searched settings</h2>'
        f'<p class="soft">A mark or a line is a trial. Results: '
        f"{escape(space.metric)}, after task {space.last_task}.</p>"
        f'<ul class="key">{key}</ul><div class="wide">{ladder_svg(space)}{parallel_svg(space)}</div>'
        f"{charts}{_trials(space)}"
    )


def _of_others(space: SearchedSpace) -> str:
    """Return a sentence (HTML) on trials that lack a result after the last task, or "" without such trials."""
    if all(map(space.is_on_scale, space.trials)):
        return ""
    said = "Stopped and failed trials are below the scale: results after fewer tasks are of smaller galleries."
    return f'<p class="soft">{said}</p>'


def _chart(setting: SearchedSetting, space: SearchedSpace, ticks: Sequence[float]) -> str:
    low, high = ticks[0], ticks[-1]
    right, floor = WIDTH - 10, HEIGHT - BOTTOM - STRIP
    parts = []
    for tick in ticks:
        y = round(8 + (high - tick) / (high - low) * (floor - 8), 1)
        parts.append(f'<path d="M{LEFT} {y}H{right}" stroke="var(--line)"/>')
        if tick in (low, high):
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    ends = [(value, setting.place(value), "middle") for value in setting.values]
    ends = ends or [(str(setting.low), 0.0, "start"), (str(setting.high), 1.0, "end")]
    for value, share, anchor in ends:
        x = round(LEFT + share * (right - LEFT), 1)
        text = escape(round_number(value))
        parts.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{text}</text>')
    said = []
    for trial in sorted(space.trials, key=lambda each: each.is_winner):  # the winner is drawn last
        value, share = trial.settings.get(setting.name, ""), setting.place(trial.settings.get(setting.name, ""))
        if math.isfinite(share):
            x, y = LEFT + min(1.0, max(0.0, share)) * (right - LEFT), floor + STRIP - 7.0
            if space.is_on_scale(trial):
                y = 8 + (high - trial.value) / (high - low) * (floor - 8)
            parts.append(point(trial.kind, round(x, 1), round(y, 1)))
            kind = "on the front" if space.is_front and trial.is_winner else trial.kind
            said.append(f"{round_number(value)} {trial.result} {kind}")
    alt = escape(f"{setting.name}, {setting}; tried: {'; '.join(said) or 'nothing'}", quote=True)
    return (
        f'<figure class="card"><figcaption><b>{escape(setting.name)}</b><br><small>{escape(str(setting))}</small>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">{"".join(parts)}</svg>'
        "</figure>"
    )


def _trials(space: SearchedSpace) -> str:
    """Return all trials as a folded table (HTML): winners, complete trials, then other trials, most tasks first.

    Trials of equal rank are sorted by value, the best first.
    """
    sign = 1 if space.less_is_better else -1
    ordered = sorted(
        space.trials, key=lambda each: (not each.is_winner, not each.is_complete, -each.tasks, sign * each.value)
    )
    names = [setting.name for setting in space.settings]
    heads = "".join(f'<th scope="col" class="more">{escape(name.removeprefix("method."))}</th>' for name in names)
    rows = "".join(
        f"<tr{' class=winner' * trial.is_winner}><td>{escape(trial.number)}{' ★' * trial.is_winner}</td>"
        f"<td>{escape(trial.state)}</td><td>{trial.result}</td>"
        + "".join(f'<td class="more">{escape(round_number(trial.settings.get(name, "")))}</td>' for name in names)
        + "</tr>"
        for trial in ordered
    )
    return (
        f"<details><summary>all {count(len(space.trials), 'trial')}</summary>"
        '<div class="table"><label class="all"><input type="checkbox"> all columns</label>'
        '<div class="scroll" tabindex="0" role="region" aria-label="trials of the search"><table class="trials"><thead>'
        f'<tr><th scope="col">Trial</th><th scope="col">State</th><th scope="col">Result</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></div></details>"
    )
