"""Check that each numeric setting of a method is used: another value must change the training or the evaluation.

A setting may have an effect only under other settings (the rate of a reducer that is off). It is tried under the
method's defaults, then under its presets and each other choice of its switches, and together with values of numeric
settings that are unset by default. A setting that the defaults refuse must have an effect under every choice that
accepts it, for example `stages` under each of the three reducers that have it. A setting of which no other value is
accepted is not an error; it is listed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from ctvr.methods.base import Method
from ctvr.methods.tiny_models import LAYERS, WIDTH
from ctvr.orchestrator.config import select_prefix
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.method_checks.subject import Subject, features, learn, store_gallery
from ctvr.orchestrator.setting_groups import variants_of
from ctvr.orchestrator.settings.presets import presets_of

Trace = tuple[str, ...]
COUNTS, IDLE, REFUSED = "counts", "idle", "refused"
ABSENT = object()
BY_DATA = ("num_frames",)  # determined by the data, so other values are refused


def check_settings_matter(subject: Subject) -> str:
    """Check that every numeric setting of `method.*` changes a loss, weight, feature or score; return their names.

    Raises:
        ContractViolation: if some have no effect; the message names them.
        Exception: raised by the method itself under its defaults.
    """
    numbers = list(numbers_of(type(subject.experiment.method)))
    seen: dict[str, Trace | None] = {repr(subject.experiment.settings): trace(subject.make())}
    found = {name: SettingProbe(subject, name, seen).probe() for name in numbers}
    if dead := [_named(name, where) for name, (says, where) in found.items() if says == IDLE]:
        listed = ", ".join(dead)
        raise ContractViolation(
            f"no other value of {listed} changes a loss, a weight, a feature or a score. Use the setting or remove it"
        )
    refused = [name for name in numbers if found[name][0] == REFUSED]
    counted = ", ".join(name for name in numbers if name not in refused) or "it has no numeric settings"
    return counted + (f"; no other value was accepted for: {', '.join(refused)}" if refused else "")


def _named(name: str, where: Mapping[str, Any]) -> str:
    under = " ".join(f"{key}={value}" for key, value in where.items())
    return f"method.{name}" + (f" under {under}" if under else "")


def numbers_of(config: type) -> Iterator[str]:
    """Yield the names of the settings that are numbers or tuples of numbers, except those in BY_DATA."""
    hints = get_type_hints(config)
    found: dict[str, None] = {}
    for each in dataclasses.fields(config):
        for variant in variants_of(config, each.name).values():
            found |= {f"{each.name}.{name}": None for name in numbers_of(variant)}
        if each.name not in BY_DATA and _kinds(hints[each.name]) & {int, float}:
            found[each.name] = None
    yield from found


def _kinds(hint: Any) -> set[Any]:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return set().union(*(_kinds(part) for part in get_args(hint)))
    return set() if get_origin(hint) is Literal else {hint}


def other_values(value: Any) -> list[Any]:
    """Return values to try instead of `value`; a method may refuse any of them."""
    if isinstance(value, tuple):
        if not value:  # one number, or one for each block of the small backbone
            return [(1,), (0.5,), (2,), (8,) * LAYERS, (12, *(8,) * (LAYERS - 1))]
        return [(other, *value[1:]) for other in other_values(value[0])]
    if value is None:
        found: list[Any] = [1, 2, 16, 0, 0.5, 0.1]  # 16: more than the small stream's categories, or blocks
    elif isinstance(value, int):
        found = [value + 1, value - 1, 2 * value, 1, 2, 3, 0]
    else:  # 100: larger than any value in the small models
        found = [3 * value, value / 3, value + 0.5, 0.5, 1.0, 0.9, 0.1, 0.0, 100.0]
    return [other for other in dict.fromkeys(found) if other != value]


class SettingProbe:
    """Probe of one numeric setting of a method."""

    def __init__(self, subject: Subject, name: str, seen: dict[str, Trace | None]) -> None:
        """Prepare a probe; `seen` caches the traces of settings."""
        self.subject, self.name, self.seen = subject, name, seen

    def probe(self) -> tuple[str, Mapping[str, Any]]:
        """Return COUNTS, IDLE with the settings under which it is idle, or REFUSED."""
        plain = self._under({})
        if plain == COUNTS:
            return COUNTS, {}
        heard, untaken = [plain], [dict[str, Any]()]
        if plain == IDLE:
            contexts = [*self._presets(), *self._choices(), *self._beside({})]
            if self._under_some(contexts, few=True) == COUNTS:  # true for most settings, at a third of the cost
                return COUNTS, {}
            return self._under_some(contexts + [c for choice in self._choices() for c in self._beside(choice)]), {}
        for choice in self._choices():
            said = self._under(choice)
            if said == IDLE and self._under_some(self._beside(choice)) == COUNTS:
                said = COUNTS
            if said == IDLE and not set(choice.values()) <= {"none", False}:  # it may be idle because a switch is off
                return IDLE, choice
            heard.append(said)
            untaken += [choice] if said == REFUSED else []
        if COUNTS not in heard:
            heard.append(self._under_some(c for choice in untaken for c in self._beside(choice)))
        if COUNTS not in heard:
            heard.append(self._under_some(self._presets()))
        return next(answer for answer in (COUNTS, IDLE, REFUSED) if answer in heard), {}

    def _presets(self) -> Iterator[dict[str, Any]]:
        for settings in presets_of(self.subject.experiment.run.method).values():
            if own := {name: value for name, value in settings.items() if name.startswith(("method.", "base."))}:
                yield own

    def _choices(self) -> Iterator[dict[str, Any]]:
        made = self.subject.experiment.method
        for name, hint in get_type_hints(type(made)).items():
            for choice in variants_of(type(made), name):
                if choice != getattr(made, name).name:
                    yield {f"method.{name}.name": choice}
            choices = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
            for choice in choices:
                if choice != getattr(made, name):
                    yield {f"method.{name}": choice}

    def _beside(self, choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the choice together with a value of another numeric setting that is unset by default."""
        made = self.subject.experiment.method
        for name in numbers_of(type(made)):
            default = self._default(name, choice)
            if name != self.name and default in (None, ()):
                for value in other_values(default):
                    yield {**choice, f"method.{name}": value}

    def _under_some(self, contexts: Iterable[Mapping[str, Any]], few: bool = False) -> str:
        best = REFUSED
        for context in contexts:
            if (says := self._under(context, few)) == COUNTS:
                return COUNTS
            best = IDLE if says == IDLE else best
        return best

    def _under(self, context: Mapping[str, Any], few: bool = False) -> str:
        """Return COUNTS if two values accepted under these settings give different traces, else IDLE or REFUSED."""
        own = f"method.{self.name}"
        value = context.get(own, self._default(self.name, context))
        if value is ABSENT:
            return REFUSED
        taken = [v for v in (value, *self._others(value)) if self._made({**context, own: v})]
        first: Trace | None = None
        several = False
        for other in taken[: 3 if few else None] if len(taken) > 1 else ():
            found = self._trace({**context, own: other})
            if found is not None and first is not None and found != first:
                return COUNTS
            several |= found is not None and first is not None
            first = first or found
        return IDLE if several else REFUSED

    def _others(self, value: Any) -> list[Any]:
        return other_values(value)

    def _default(self, setting: str, context: Mapping[str, Any]) -> Any:
        """Return a setting's default in this context, or ABSENT if the selected variant lacks the setting."""
        own = self.subject.experiment.method
        group, _, name = setting.rpartition(".")
        if not group:
            return getattr(own, name)
        chosen = context.get(f"method.{group}.name", getattr(own, group).name)
        kept = getattr(own, group) if chosen == getattr(own, group).name else variants_of(type(own), group)[chosen]()
        return getattr(kept, name, ABSENT)

    def _made(self, changes: Mapping[str, Any]) -> Subject | None:
        """Return the subject with other settings; None if they are refused."""
        own = self.subject.experiment
        settings = {name: value for name, value in own.settings.items() if name.startswith(("method.", "base."))}
        for name in [name for name in changes if name.endswith(".name") and changes[name] != settings.get(name)]:
            settings = {key: value for key, value in settings.items() if not key.startswith(name[: -len("name")])}
        if changes.get("method.base", settings.get("method.base")) != settings.get("method.base"):
            settings = {f"method.{name}": value for name, value in select_prefix(settings, "method").items()}
        try:
            if all(name.startswith("method.") and name.count(".") == 1 for name in changes):
                replace(own.method, **select_prefix(changes, "method"))  # a fast check: most changes are refused
            return Subject.of(own.run.method, {**settings, **changes})
        except (ValueError, TypeError):
            return None

    def _trace(self, changes: Mapping[str, Any]) -> Trace | None:
        """Return the trace of these settings; if needed, on a backbone whose joint space is as wide as its towers."""
        made = self._made(changes)
        if made is None:
            return None
        key = repr(made.experiment.settings)
        if key not in self.seen:
            self.seen[key] = _traced(made) or _traced(replace(made, embed_dim=WIDTH))
        return self.seen[key]


def _traced(made: Subject) -> Trace | None:
    try:
        return trace(made.make())
    except (ValueError, RuntimeError, IndexError):  # refused only now, or too large for the small backbone
        return None


def trace(method: Method) -> Trace:
    """Return digests of all results of two tasks: losses, weights, features, scores, and the method's declarations."""
    known = method.declared
    facts = [known.trains_on, known.reencodes_gallery, known.task_conditioned_text, method.max_frames]
    found = [repr(facts)]
    for index in range(2):
        found.append(repr(learn(method, index)))
        groups = method.param_groups()
        found.append(repr([(group["name"], group["lr"], group.get("decay")) for group in groups]))
        stored = store_gallery(method, index)
        with torch.no_grad():
            videos, texts = features(method, index)
            scores = method.score(texts, videos)
            seen = [stored, videos, texts, scores, method.normalize_scores(scores), method.normalize_scores_v2t(scores)]
        found += [digest_of_tensor(tensor) for tensor in seen]
    found += [f"{name} {digest_of_tensor(value)}" for name, value in method.state_dict().items()]
    return tuple(found)


def digest_of_tensor(tensor: torch.Tensor) -> str:
    """Return shape and digest of a tensor's bits."""
    array = tensor.detach().cpu().contiguous()
    return f"{tuple(array.shape)} {hashlib.sha256(array.flatten().view(torch.uint8).numpy().data).hexdigest()}"
