"""Restriction of a search space to values that can be built and give distinct models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ctvr.orchestrator.learning.experiment import Experiment
from ctvr.orchestrator.learning.factory import load_clip
from ctvr.orchestrator.on_ray.search import choices
from ctvr.orchestrator.sweeps.search_spaces import depth_settings, upper_bounds


def clip_to_backbone(
    method: str, space: dict[str, Any], experiment: Experiment, listed: Sequence[str] = ()
) -> dict[str, Any]:
    """Remove values above the number of blocks, or above a bounding setting that is not searched.

    Args:
        method: the method; its settings count blocks or have upper bounds.
        space: setting -> domain of Ray Tune.
        experiment: a trial's experiment, except the searched settings.
        listed: arguments of `--space`, which are refused if invalid and never dropped.
    """
    own = {word.partition("=")[0].strip() for word in listed}
    changed = dict(space)
    counts = [name for name in depth_settings(method) if name in space]
    depth = len(load_clip(experiment.backbone).vision.blocks) if counts else 0
    for name in counts:
        values = sorted({min(value, depth) for value in space[name].categories})
        changed[name] = choices(values if len(values) > 1 or name in own else range(1, depth + 1))
    for name, bound in upper_bounds(method).items():
        if name in space and bound not in space and name not in own:
            most = experiment.settings[bound]
            changed[name] = choices(value for value in space[name].categories if value <= most)
    return changed
