"""The control `NAME:untrained`: a method that trains nothing, by its own score.

The row of zero-shot CLIP is where a method begins only if both score alike. Where they do not, tables that show
zero-shot CLIP as the reference show the method's own beginning, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.resolve import UNTRAINED, get_method, resolve, with_recipe
from ctvr.orchestrator.learning.run import has_training
from ctvr.orchestrator.method_checks.own_score import is_among, own_scores
from ctvr.orchestrator.tables.presets import TableRow

NOTE = "a control of ours: {names} before any training, by its own score"


def without_epochs(settings: Settings, presets: Collection[str]) -> Settings:
    """Return settings of all rows as they are for one: the control `untrained` keeps its 0 epochs."""
    dropped = {"optim.epochs"} if UNTRAINED in presets else set()
    return {name: value for name, value in settings.items() if name not in dropped}


def untrained_rows(rows: Sequence[tuple[TableRow, Experiment]]) -> list[tuple[TableRow, TableRow]]:
    """Return (row, its control) for each row of a table that begins at another score than zero-shot CLIP.

    Rows that begin alike share the control of the first. A table without zero-shot CLIP, and one that lists a control
    itself, gets none for it.
    """
    if not any(row.method == "zero_shot" for row, _ in rows):
        return []
    found: list[tuple[TableRow, list[str], Tensor, Settings]] = []
    listed = {(row.method, frozenset(row.presets)) for row, _ in rows}
    for row, experiment in rows:
        if not has_training(experiment) or (row.method, frozenset({*row.presets, UNTRAINED})) in listed:
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


# Of `data`, `backbone` and `evaluation`, what an untrained model's R@1 depends on
_SEEN = {"backbone.name", "backbone.weights", "data.num_frames", "data.sampling", "data.max_tokens"}


def _control(row: TableRow, names: Sequence[str]) -> TableRow:
    separator = "," if row.presets and row.name == f"{row.method}:{','.join(row.presets)}" else ":"
    name = f"{row.name}{separator}{UNTRAINED}" if row.name.startswith(row.method) else f"{row.name}, {UNTRAINED}"
    note = NOTE.format(names=" and ".join(names))
    presets = (*row.presets, UNTRAINED)
    return replace(row, name=name, presets=presets, searched=False, control=True, notes=(note,))


def untrained_baselines(method: str, presets: Sequence[str], baselines: Sequence[str]) -> tuple[str, ...]:
    """Return the baseline `METHOD:untrained` of a search beside zero-shot CLIP, if its method begins elsewhere."""
    if "zero_shot" not in baselines or get_method(method).domain != "videos":
        return ()
    recommended = {"preset": "paper"}
    experiment = resolve({"method": method, "stream": ""}, recommended, with_recipe(method, presets, recommended))
    return () if not has_training(experiment) or own_scores(experiment) is None else (f"{method}:{UNTRAINED}",)
