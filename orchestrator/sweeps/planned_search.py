"""Search of one table row: search space, settings that all trials share, and points that are tried first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctvr.methods.base import Override
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.run.execute import check_streams
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.on_ray.plan import SearchConfig
from ctvr.orchestrator.on_ray.search import choices, override_space, rates_around
from ctvr.orchestrator.on_ray.search_space import Condition, SearchSpace, parse_condition, parse_values, within
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.presets import preset_settings, presets_of
from ctvr.orchestrator.settings.resolve import FEATURES, resolve, with_values
from ctvr.orchestrator.streams.metric_names import COSTS
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.epoch_rungs import epochs_compared
from ctvr.orchestrator.sweeps.preflight import forbid_seed
from ctvr.orchestrator.sweeps.search_spaces import (
    default_presets,
    depth_settings,
    later_task_settings,
    search_conditions,
    search_space,
    upper_bounds,
)
from ctvr.orchestrator.tables.presets import TableRow
from ctvr.orchestrator.tracking.mirror import check_mirror

SpaceOptions = tuple[tuple[str, ...], tuple[str, ...]]  # arguments of --space and of --space-add


@dataclass(frozen=True)
class PlannedSearch:
    """A checked search of one row, with the components of its trials."""

    name: str  # name of the MLflow run of the search
    row: TableRow
    stream: Stream
    experiment: Experiment  # settings of a trial; searched settings have their recommended values
    fixed_settings: Settings  # settings shared by all trials, from the user and the search space
    space: dict[str, Any]
    paper_point: dict[str, Any]  # the paper's values of the searched settings
    listed: tuple[str, ...] = ()  # settings of `space` whose values the user listed
    conditions: dict[str, Condition] = field(default_factory=dict)  # setting -> condition under which it is searched
    epochs: int = 0  # number of epochs of a trial if trials are compared after epochs, otherwise 0

    @property
    def recommended_point(self) -> dict[str, Any]:
        """Return the recommended value of each searched setting; numbers of blocks are limited to the tower's depth."""
        settings = self.experiment.settings
        point = {name: settings[name] for name in self.space if name in settings}  # excludes settings of other variants
        for name in point.keys() & set(depth_settings(self.row.method)):
            point[name] = min(point[name], max(self.space[name].categories))
        return point

    def recommended_experiment(self, workers: int) -> Experiment:
        """Return the experiment with the recommended settings, which is also the search's first trial."""
        return with_values(self.experiment, {**self.recommended_point, "workers": workers})

    @property
    def search_space(self) -> SearchSpace:
        """Return the search space for a searcher: domains, first points, bounds and conditions."""
        later = tuple(name for name in later_task_settings(self.row.method) if name in self.space)
        later = later if len(self.stream.tasks) > 1 else ()  # one task does not read these settings
        points = self.paper_point, self.recommended_point, self.stream.settings
        return SearchSpace(self.space, *points, later, upper_bounds(self.row.method), self.listed, self.conditions)


def plan_search(
    name: str,
    row: TableRow,
    stream: Stream,
    stream_name: str,
    overrides: Settings,
    config: SearchConfig,
    words: SpaceOptions,
    execution: ExecutionConfig,
) -> PlannedSearch:
    """Check the search of a row before anything starts.

    Args:
        name: name of the search's MLflow run.
        row: row of the table.
        stream: stream of the search.
        stream_name: name of the stream as the user typed it.
        overrides: settings of all trials, from the table and the user.
        config: settings of the search.
        words: arguments of --space and of --space-add.
        execution: workers, runs folder and store.

    Raises:
        ConfigError: for a setting, preset or searched value that cannot run.
    """
    asked = (*words[0], *words[1])
    listed = [parse_values(word)[0] for word in asked]
    forbid_seed(overrides)
    presets = default_presets(row.method, stream, row.presets)
    space, paper, given = _select_space(row, stream, stream_name, overrides, words, presets)
    if not space:
        raise ConfigError(f"sweep: all settings of {row.method} are fixed, so none is searched. Use `ctvr run`.")
    full = {**given, "workers": execution.workers}
    if any(metric.startswith(COSTS) for metric in config.metrics) and "evaluation.costs" not in full:
        given["evaluation.costs"] = full["evaluation.costs"] = True
    experiment = resolve(full, stream.settings, presets)
    for each, value in experiment.layers[FEATURES].items():  # the method's own ranges are for CLIP
        if each in space and each not in listed:
            space[each], paper[each] = rates_around(value), value
    epochs = epochs_compared(config, experiment, len(stream.method_tasks), space)
    if epochs and "evaluation.every_epoch" not in full:
        given["evaluation.every_epoch"] = True
        experiment = with_values(experiment, {"evaluation.every_epoch": True})
    check_mirror(experiment.tracking.mirror)
    check_streams(experiment, stream, execution.places())
    if stream.has_val and experiment.evaluation.split == "test":
        raise ConfigError(
            f"a sweep selects settings on the validation videos of {stream.name}",
            "evaluation.split=test",
            remedy="Omit it.",
        )
    space = clip_to_backbone(row.method, space, experiment, asked)
    conditions = {} if words[0] else search_conditions(row.method)
    conditions |= dict(filter(None, map(parse_condition, asked)))
    space, conditions = apply_conditions(space, conditions, experiment.settings, listed)
    given["method"] = experiment.run.method  # for a named configuration the method; its preset is in `presets`
    bounds = upper_bounds(row.method)
    known = space.keys() & experiment.settings.keys()
    bounded = {each: experiment.settings[each] for each in {*bounds, *bounds.values()} & known}
    for each, domain in space.items():
        for value in getattr(domain, "categories", None) or [domain.sample()]:
            with_values(experiment, within({**bounded, **meeting(each, conditions), each: value}, bounds))
    epochs = epochs_compared(config, experiment, len(stream.method_tasks), space)
    epochs = epochs if experiment.evaluation.every_epoch else 0
    tried = tuple(each for each in listed if each in space)
    return PlannedSearch(name, row, stream, experiment, given, space, paper, tried, conditions, epochs)


def _select_space(
    row: TableRow, stream: Stream, stream_name: str, overrides: Settings, words: SpaceOptions, presets: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], Settings]:
    """Return the search space, the paper's values in it, and the settings that all trials share.

    Settings that the user or an ablation fixes are not searched. A recipe overrides the fixed settings of the method's
    search space.
    """
    fixed, own, paper = search_space(row.method)
    space = override_space({} if words[0] else own, (*words[0], *words[1]))
    for name in preset_settings(row.method, presets, overrides, stream.settings):
        fixed.pop(name, None)
    known = presets_of(row.method)
    changes = [known[preset] for preset in presets if isinstance(known.get(preset), Override)]
    changed = {name for settings in changes for name in settings}
    split = "val" if stream.has_val else "test"
    given = {**fixed, "evaluation.split": split, **overrides}
    given.update({"method": row.method, "stream": stream_name})
    return {name: domain for name, domain in space.items() if name not in {*overrides, *changed}}, paper, given


def clip_to_backbone(
    method: str, space: dict[str, Any], experiment: Experiment, listed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a search space whose values are limited to the tower's number of blocks and to fixed upper bounds.

    Args:
        method: the method, some of whose settings count blocks or have upper bounds.
        space: Ray Tune domain of each setting.
        experiment: a trial's experiment, except the searched settings.
        listed: arguments of `--space`, to which upper bounds are not applied, so that invalid values are refused later.
    """
    own = {word.partition("=")[0].strip() for word in listed}
    changed = dict(space)
    counts = [name for name in depth_settings(method) if name in space]
    depth = len(load_clip(experiment.backbone).vision.blocks) if counts else 0
    for name in counts:
        values = sorted({min(value, depth) for value in space[name].categories})
        changed[name] = choices(values if len(values) > 1 or name in own else range(1, depth + 1))
    for name, bound in upper_bounds(method).items():
        if name in space and bound not in space and name not in own and bound in experiment.settings:
            most = experiment.settings[bound]
            changed[name] = choices(value for value in space[name].categories if value <= most)
    return changed


def apply_conditions(
    space: Mapping[str, Any], conditions: Mapping[str, Condition], fixed: Mapping[str, Any], listed: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Condition]]:
    """Return the settings that can be searched, and the conditions that depend on a searched setting.

    Args:
        space: Ray Tune domain of each setting.
        conditions: for a conditional setting, another setting and its values with which the first is searched.
        fixed: settings of a trial, except the searched settings.
        listed: settings of `--space`; if one of them would never be searched, it is an error.

    Raises:
        ConfigError: for a condition of a listed setting that never holds, or conditions in a cycle.
    """
    found, left = dict(space), dict[str, Condition]()
    for name, (other, values) in conditions.items():
        if name not in found:
            continue
        said = f"--space {name} where {other}={','.join(map(str, values))}"
        chain = [name]
        while chain[-1] in conditions:
            chain.append(conditions[chain[-1]][0])
            if chain[-1] in chain[:-1]:
                raise ConfigError(f"{said}: the condition leads back to {chain[-1]}. Remove one of the conditions.")
        if other in space:
            left[name] = (other, [value for value in values if value in getattr(space[other], "categories", ())])
            if left[name][1]:
                continue
            remedy = f"{other} is not searched at such a value. List it in --space {other}=VALUE,VALUE"
        else:
            if str(fixed.get(other)) in map(str, values):
                continue  # the condition always holds
            remedy = (
                f"{other} is {fixed.get(other, 'unknown')} in every trial. Search it too: --space {other}=VALUE,VALUE"
            )
        if name in listed:
            raise ConfigError(f"the condition never holds, since {remedy}.", said)
        del found[name]
        left.pop(name, None)
    return (found, left) if len(found) == len(space) else apply_conditions(found, left, fixed, listed)


def meeting(name: str, conditions: Mapping[str, Condition]) -> dict[str, Any]:
    """Return values of other settings that meet the conditions of a setting."""
    if name not in conditions:
        return {}
    other, values = conditions[name]
    return {**meeting(other, conditions), other: values[0]}
