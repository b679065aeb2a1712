"""Whether each number among a method's settings is read: another value must change what is learned or found.

A number may count under other settings alone (a rate of a reducer that is off), so it is tried under the method's
defaults, then under each of its presets and each other choice of its switches.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from methods.base import Method
from orchestrator.config import under
from orchestrator.conform.subject import Subject, features, learn, remember
from orchestrator.errors import Fault
from orchestrator.learning.resolve import presets_of

Trace = tuple[str, ...]
BY_DATA = ("num_frames",)  # what follows from the data and is refused otherwise


def knobs(subject: Subject) -> str:
    """Every number of `method.*` changes a loss, a weight, a feature or a score; returns their names.

    Raises:
        Fault: with those that change nothing.
    """
    numbers = list(numbers_of(type(subject.experiment.method)))
    plain: dict[str, Trace | None] = {}
    dead = [name for name in numbers if not Knob(subject, name, plain).is_alive()]
    if dead:
        listed = ", ".join(f"method.{name}" for name in dead)
        raise Fault(f"no other value of {listed} changes a loss, a weight, a feature or a score: is it read at all?")
    return ", ".join(numbers) or "it has no number to set"


def numbers_of(config: type) -> Iterator[str]:
    """Names of the settings that are numbers, or tuples of numbers."""
    hints = get_type_hints(config)
    for each in dataclasses.fields(config):
        kinds = _kinds(hints[each.name])
        if each.name not in BY_DATA and kinds & {int, float}:
            yield each.name


def _kinds(hint: Any) -> set[Any]:
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return set().union(*(_kinds(part) for part in get_args(hint)))
    return set() if get_origin(hint) is Literal else {hint}


def other_values(value: Any) -> list[Any]:
    """Values to try in place of one; a method may refuse any of them."""
    if isinstance(value, tuple):
        return [(other, *value[1:]) for other in other_values(value[0])] if value else [(1,), (0.5,)]
    if value is None:
        found: list[Any] = [1, 2, 0, 0.5, 0.1]
    elif isinstance(value, int):
        found = [value + 1, value - 1, 2 * value, 1, 2, 3, 0]
    else:
        found = [3 * value, value / 3, value + 0.5, 0.5, 1.0, 0.9, 0.1, 0.0]
    return [other for other in dict.fromkeys(found) if other != value]


class Knob:
    """One number of a method's settings."""

    def __init__(self, subject: Subject, name: str, plain: dict[str, Trace | None]) -> None:
        """`plain` keeps the traces of settings under which numbers are tried."""
        self.subject, self.name, self.plain = subject, name, plain

    def is_alive(self) -> bool:
        return any(self._counts(context) for context in self._contexts())

    def _contexts(self) -> Iterator[dict[str, Any]]:
        """Settings under which the number is tried: none, then those of presets, then other choices one by one."""
        made = self.subject.experiment
        cls: Any = type(made.method)
        yield {}
        for settings in presets_of(made.run.method).values():
            if own := {name: value for name, value in settings.items() if name.startswith(("method.", "base."))}:
                yield own
        for name, hint in get_type_hints(cls).items():
            choices = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
            for choice in choices:
                if choice != getattr(made.method, name):
                    yield {f"method.{name}": choice}

    def _counts(self, context: Mapping[str, Any]) -> bool:
        if repr(context) not in self.plain:
            self.plain[repr(context)] = self._trace(context)
        if (plain := self.plain[repr(context)]) is None:
            return False
        made = self._made(context)
        assert made is not None  # it has a trace
        for other in other_values(getattr(made.experiment.method, self.name)):
            found = self._trace({**context, f"method.{self.name}": other})
            if found is not None and found != plain:
                return True
        return False

    def _made(self, changes: Mapping[str, Any]) -> Subject | None:
        """The subject with other settings; None where they are refused."""
        own = self.subject.experiment
        settings = {name: value for name, value in own.settings.items() if name.startswith(("method.", "base."))}
        if changes.get("method.base", settings.get("method.base")) != settings.get("method.base"):
            settings = {f"method.{name}": value for name, value in under(settings, "method").items()}
        try:
            return Subject.of(own.run.method, {**settings, **changes})
        except ValueError:
            return None

    def _trace(self, changes: Mapping[str, Any]) -> Trace | None:
        made = self._made(changes)
        try:
            return None if made is None else trace(made.make())
        except (ValueError, RuntimeError, IndexError):  # refused late, or too large for the small backbone
            return None


def trace(method: Method) -> Trace:
    """Digests of all that two tasks make of a method: losses, weights, features, scores, and what it tells the loop."""
    told = [method.trains_on, method.reencodes_gallery, method.prompts_by_task, method.max_frames]
    found = [repr(told)]
    for index in range(2):
        found.append(repr(learn(method, index)))
        groups = method.param_groups()
        found.append(repr([(group["name"], group["lr"], group.get("decay")) for group in groups]))
        stored = remember(method, index)
        with torch.no_grad():
            videos, texts = features(method, index)
            scores = method.score(texts, videos)
            seen = [stored, videos, texts, scores, method.calibrate(scores), method.calibrate_for_videos(scores)]
        found += [_digest(tensor) for tensor in seen]
    found += [f"{name} {_digest(value)}" for name, value in method.state_dict().items()]
    return tuple(found)


def _digest(tensor: torch.Tensor) -> str:
    array = tensor.detach().cpu().contiguous()
    return f"{tuple(array.shape)} {hashlib.sha256(array.flatten().view(torch.uint8).numpy().data).hexdigest()}"
