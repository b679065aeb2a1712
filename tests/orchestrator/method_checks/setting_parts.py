"""Probe of the part of a method that a setting changes: its forward pass, its loss, or only its recipe.

A method is built with seeded weights and shown one batch of each of two tasks; no optimizer step is made. Between the
tasks its weights move by seeded noise, so that a teacher differs from its student. A setting belongs to the forward
pass if another value changes features or scores, to the loss if it changes only the terms of the loss, and otherwise to
the recipe: learning rates, moving averages, what happens after a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from ctvr.methods.base import Method
from ctvr.methods.tiny_models import RegeneratedPairs, make_task
from ctvr.orchestrator.method_checks.setting_sensitivity import SettingProbe, Trace, digest_of_tensor
from ctvr.orchestrator.method_checks.subject import Subject, batches_of, features, store_gallery
from ctvr.orchestrator.setting_groups import variants_of

NOISE = 0.02  # standard deviation of the change of weights between tasks


def changes(
    subject: Subject, name: str, part: Literal["forward", "loss"], seen: dict[str, tuple[Trace, Trace] | None]
) -> str:
    """Return whether another value of a setting changes a part under the method's other defaults.

    Args:
        subject: the method.
        name: setting without `method.`.
        part: features and scores, or the terms of the loss.
        seen: cache, settings -> digests of both parts.

    Returns:
        COUNTS, IDLE or REFUSED of setting_sensitivity.py.
    """
    return _PartProbe(subject, name, part, seen)._under({}, few=True)


class _PartProbe(SettingProbe):
    """A probe of one setting that compares only features and scores, or only losses."""

    def __init__(
        self, subject: Subject, name: str, part: Literal["forward", "loss"], seen: dict[str, tuple[Trace, Trace] | None]
    ) -> None:
        super().__init__(subject, name, {})
        self.place, self.traces = ("forward", "loss").index(part), seen

    def _trace(self, changes: Mapping[str, Any]) -> Trace | None:
        made = self._made(changes)
        if made is None:
            return None
        key = repr(made.experiment.settings)
        if key not in self.traces:
            self.traces[key] = _outputs(made)
        found = self.traces[key]
        return None if found is None else found[self.place]

    def _others(self, value: Any) -> list[Any]:
        group, _, name = self.name.rpartition(".")
        own: Any = type(self.subject.experiment.method)
        if name == "name" and group:
            return [each for each in variants_of(own, group) if each != value]
        hint = get_type_hints(own).get(self.name)
        if get_origin(hint) is Literal:
            return [each for each in get_args(hint) if each != value]
        return [not value] if isinstance(value, bool) else super()._others(value)


def _outputs(subject: Subject) -> tuple[Trace, Trace] | None:
    try:
        return outputs(subject.make())
    except (ValueError, RuntimeError, IndexError):  # refused only now, or too large for the small backbone
        return None


def outputs(method: Method) -> tuple[Trace, Trace]:
    """Return digests of features and scores, and of the terms of the loss, of two tasks without a training step."""
    shown: list[str] = []
    terms: list[str] = []
    method.set_pair_source(RegeneratedPairs())
    for index in range(2):
        task, (batch, *_) = make_task(index), batches_of(index, 1)
        torch.manual_seed(100 + index)
        method.eval()
        method.begin_task(task)
        generator = torch.Generator().manual_seed(index)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=generator))
        for is_training in (False, True):
            method.train(is_training)
            torch.manual_seed(300 + index)
            with torch.no_grad():
                videos, texts = features(method, index)
                scores = method.score(texts, videos)
                final = [videos, texts, scores]
                final += [] if is_training else [method.normalize_scores(scores), method.normalize_scores_v2t(scores)]
            shown += map(digest_of_tensor, final)
        if method.param_groups():
            torch.manual_seed(400 + index)
            terms += [f"{name} {digest_of_tensor(term)}" for name, term in method.losses(batch).items()]
        method.eval()
        torch.manual_seed(200 + index)
        method.end_task(task, batches_of(index, 2))
        shown.append(digest_of_tensor(store_gallery(method, index)))
    return tuple(shown), tuple(terms)
