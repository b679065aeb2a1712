"""The search on a sweep's page: each setting's range with the values tried, and all trials, stopped ones too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ctvr.orchestrator.pages.charts import ticks_around
from ctvr.orchestrator.tables.table import MISSING

WIDTH, HEIGHT, LEFT, BOTTOM = 240, 148, 34, 24  # sizes of a chart, in units of its view box
STRIP = 18  # height below the scale, for trials without its result
STAR = "M0 -7L1.8 -2.2L7 -2.2L2.9 1L4.3 6L0 3L-4.3 6L-2.9 1L-7 -2.2L-1.8 -2.2z"
CIRCLE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"


@dataclass(frozen=True)
class SearchedSetting:
    """One setting of the searched space: listed values, or a range."""

    name: str
    values: tuple[str, ...] = ()
    low: float = math.nan
    high: float = math.nan
    is_log: bool = False
    is_known: bool = True  # False: the record has no space, so the range covers the values tried

    def place(self, value: str) -> float:
        """Return the position of a value in the space, 0 to 1; NaN for a value outside it."""
        if self.values:
            return (self.values.index(value) + 0.5) / len(self.values) if value in self.values else math.nan
        try:
            number = float(value)
            if self.is_log:
                return math.log(number / self.low) / math.log(self.high / self.low)
            return (number - self.low) / (self.high - self.low)
        except (ValueError, ZeroDivisionError):
            return math.nan

    def __str__(self) -> str:
        if self.values:
            return ", ".join(map(round_number, self.values))
        text = f"{self.low:.3g} to {self.high:.3g}" + (" (log scale)" if self.is_log else "")
        return text if self.is_known else f"{text}, as tried"


@dataclass(frozen=True)
class Trial:
    """One trial: `value` is the search's metric after its last task, the number `tasks`."""

    number: str
    settings: Mapping[str, str]
    value: float
    tasks: int
    state: str  # "complete", "stopped after task 2", ...
    is_complete: bool
    is_winner: bool = False

    @property
    def kind(self) -> str:
        return "winner" if self.is_winner else "complete" if self.is_complete else "stopped"

    @property
    def result(self) -> str:
        """Return the value, after which task if others came later."""
        if not math.isfinite(self.value):
            return MISSING
        return f"{self.value:+.2f}" if self.is_complete else f"after task {self.tasks}: {self.value:+.2f}"


@dataclass(frozen=True)
class SearchedSpace:
    """The searched settings and all trials; `metric` is the name and unit of the trials' values."""

    settings: tuple[SearchedSetting, ...]
    trials: tuple[Trial, ...]
    metric: str
    is_front: bool = False  # the winners are the trials of a Pareto front

    @property
    def last_task(self) -> int:
        """Return the task after which the charts compare trials: values of other tasks are of other galleries."""
        return max([trial.tasks for trial in self.trials if math.isfinite(trial.value)], default=0)

    def is_on_scale(self, trial: Trial) -> bool:
        return trial.tasks == self.last_task and math.isfinite(trial.value)


def round_number(value: str) -> str:
    """Round a number to three digits; return other values unchanged."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def searched_html(space: SearchedSpace) -> str:
    """Return the section: a small chart for each setting, then the trials."""
    kinds = [kind for kind in ("winner", "complete", "stopped") if any(trial.kind == kind for trial in space.trials)]
    winner = "on the Pareto front" if space.is_front else "best trial"
    meanings = {"winner": winner, "complete": "complete", "stopped": "stopped early"}
    key = "".join(
        f'<li><svg viewBox="0 0 40 14" aria-hidden="true">{_point(kind, 20, 7)}</svg>{meanings[kind]}</li>'
        for kind in kinds
    )
    values = [trial.value for trial in space.trials if space.is_on_scale(trial)]
    charts = ""
    if values:
        ticks = ticks_around(values)
        charts = "".join(_chart(each, space, ticks) for each in space.settings)
    return (
        '<h2 id="searched">Searched settings</h2>'
        f'<p class="soft">Each chart spans the searched values of one setting; a mark is a trial. Upwards: '
        f"{escape(space.metric)}, after task {space.last_task}.{_of_others(space)}</p>"
        f'<ul class="key">{key}</ul><div class="grid">{charts}</div>{_trials(space)}'
    )


def _of_others(space: SearchedSpace) -> str:
    """Return the sentence on trials that were measured after fewer tasks; empty without such trials."""
    if all(map(space.is_on_scale, space.trials)):
        return ""
    return " Stopped and failed trials are below the scale: results after fewer tasks are of smaller galleries."


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
            parts.append(_point(trial.kind, round(x, 1), round(y, 1)))
            kind = "on the front" if space.is_front and trial.is_winner else trial.kind
            said.append(f"{round_number(value)} {trial.result} {kind}")
    alt = escape(f"{setting.name}, {setting}; tried: {'; '.join(said) or 'nothing'}", quote=True)
    return (
        f'<figure class="card"><figcaption><b>{escape(setting.name)}</b><br><small>{escape(str(setting))}</small>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{alt}">{"".join(parts)}</svg>'
        "</figure>"
    )


def _point(kind: str, x: float, y: float) -> str:
    """Return a trial's mark: a star, a filled or an open circle, which differ in grey and in print, too."""
    look = {
        "winner": (STAR, 'fill="var(--c1)" stroke="var(--page)"'),
        "complete": (CIRCLE, 'fill="var(--c0)"'),
        "stopped": (CIRCLE, 'fill="none" stroke="var(--soft)" stroke-width="1.5"'),
    }
    shape, ink = look[kind]
    return f'<path d="{shape}" transform="translate({x} {y})" {ink}/>'


def _trials(space: SearchedSpace) -> str:
    """Return all trials as a folded table, the best first, stopped ones by the number of their tasks."""
    ordered = sorted(
        space.trials, key=lambda each: (not each.is_winner, not each.is_complete, -each.tasks, -each.value)
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
        f"<details><summary>all {len(space.trials)} trials</summary>"
        '<div class="table"><label class="all"><input type="checkbox"> all columns</label>'
        '<div class="scroll" tabindex="0" role="region" aria-label="trials of the search"><table class="trials"><thead>'
        f'<tr><th scope="col">Trial</th><th scope="col">State</th><th scope="col">Result</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></div></details>"
    )
