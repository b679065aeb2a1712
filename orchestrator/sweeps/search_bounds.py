"""Restriction of a search space to values that can be built and give distinct models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.run.factory import load_clip
from ctvr.orchestrator.on_ray.search import choices
from ctvr.orchestrator.on_ray.search_space import Condition
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.sweeps.search_spaces import depth_settings, upper_bounds


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
