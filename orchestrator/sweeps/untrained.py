"""Control rows `NAME:untrained`, in which a method is not trained and is evaluated by its own score.

Zero-shot CLIP is a method's starting point only if both have the same score. Otherwise tables that contain zero-shot
CLIP as the reference also contain the untrained method.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.method_checks.own_score import is_among, own_scores
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.presets import UNTRAINED, get_method
from ctvr.orchestrator.settings.resolve import resolve_method
from ctvr.orchestrator.tables.presets import TableRow

NOTE = "our control: {names} before any training, evaluated by its own score"


def without_epochs(settings: Settings, presets: Collection[str]) -> Settings:
    """Return the settings that all rows share, without `optim.epochs` for a row with the preset `untrained`."""
    dropped = {"optim.epochs"} if UNTRAINED in presets else set()
    return {name: value for name, value in settings.items() if name not in dropped}


def untrained_rows(rows: Sequence[tuple[TableRow, Experiment]]) -> list[tuple[TableRow, TableRow]]:
    """Return (row, control row) for each row of a table whose untrained score differs from zero-shot CLIP.

    Rows with equal untrained scores share one control row. The list is empty for a table without zero-shot CLIP, and
    lacks rows whose control is already listed.
    """
    if not any(row.method == "zero_shot" for row, _ in rows):
        return []
    found: list[tuple[TableRow, list[str], Tensor, Settings]] = []
    listed = {(row.method, frozenset(row.presets)) for row, _ in rows}
    for row, experiment in rows:
        if not experiment.trains_by_gradients or (row.method, frozenset({*row.presets, UNTRAINED})) in listed:
            continue
        scores = own_scores(experiment)
        if scores is None:
            continue
        seen = {name: value for name, value in experiment.settings.items() if name in _SEEN}
        same = [names for _, names, other, its in found if its == seen and len(other) and is_among(scores, [other])]
        if same:
            same[0].append(row.name)
        else:
            found.append((row, [row.name], scores, seen))
    return [(row, _control(row, names)) for row, names, _, _ in found]


# Settings of `data` and `backbone` on which an untrained model's R@1 depends
_SEEN = {"backbone.name", "backbone.weights", "data.num_frames", "data.sampling", "data.max_tokens"}


def _control(row: TableRow, names: Sequence[str]) -> TableRow:
    separator = "," if row.presets and row.name == f"{row.method}:{','.join(row.presets)}" else ":"
    name = f"{row.name}{separator}{UNTRAINED}" if row.name.startswith(row.method) else f"{row.name}, {UNTRAINED}"
    note = NOTE.format(names=" and ".join(names))
    presets = (*row.presets, UNTRAINED)
    return replace(row, name=name, presets=presets, searched=False, control=True, notes=(note,))


def untrained_baselines(method: str, presets: Sequence[str], baselines: Sequence[str]) -> tuple[str, ...]:
    """Return the baseline `METHOD:untrained` of a search if its score differs from the score of zero-shot CLIP."""
    if "zero_shot" not in baselines or get_method(method).domain != "videos":
        return ()
    experiment = resolve_method(method, {"preset": "paper"}, presets)
    return () if not experiment.trains_by_gradients or own_scores(experiment) is None else (f"{method}:{UNTRAINED}",)
