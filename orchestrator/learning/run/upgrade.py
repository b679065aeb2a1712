"""Upgrade of the model within a stream: `upgrade.task=3 upgrade.backbone=NAME`, or `upgrade.stream=NAME` for features.

Tasks before `upgrade.task` run as they do without an upgrade, so their commits may come from such a run. Then a new
method on the new backbone, with the same settings, learns the other tasks as a separate stream, and the index keeps the
old method's features (methods/families/upgrade.py). The commits of later tasks hold the weights of both, so that a run
resumes from its last commit alone. Features of a new embedder come from a second stream (`Stream.newer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method, Task
from ctvr.methods.families.strategy import Strategy
from ctvr.methods.families.upgrade import Upgraded
from ctvr.orchestrator.data.batches import StreamData, cut_tokens
from ctvr.orchestrator.data.imported_features import CaptionLookup
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.streams.stream import Stream

if TYPE_CHECKING:
    from ctvr.orchestrator.settings.experiment import Experiment


def check_upgrade(experiment: Experiment, stream: Stream) -> None:
    """Refuse an upgrade that the stream, the method or another setting does not permit, before anything is decoded.

    Raises:
        ConfigError: if it is not permitted; the message names the setting to change.
    """
    task, tasks, evaluation = experiment.upgrade.task, len(stream.tasks), experiment.evaluation
    if not task:
        return
    if task > tasks:
        raise ConfigError(f"must be 2 to {tasks}, the last task of {stream.name}, got {task}.", "upgrade.task")
    declared = experiment.capabilities
    names = [experiment.run.method, *([experiment.method.base] if experiment.base is not None else [])]
    owns_score = any(find_method(name).score not in (Method.score, Strategy.score) for name in names)
    reason = ""
    if protocol_of(stream).kind != "ctvr" or protocol_of(stream).reencodes_gallery or declared.reencodes_gallery:
        reason = f"needs an index that is never encoded again, which {experiment.name} on {stream.name} does not keep"
    elif declared.needs_umt or declared.several_text_vectors or declared.normalizes_scores or owns_score:
        reason = f"needs captions and videos of one vector, compared by their dot product, unlike {experiment.name}"
    if reason:
        raise ConfigError(
            f"{task} {reason}", "upgrade.task", remedy="Use upgrade.task=0, or a method such as clip4clip."
        )
    if (stream.has_features or stream.text_features) and stream.newer is None:
        fault = f"{task} needs features of the new embedder, but {stream.name} has features of one embedder only"
        raise ConfigError(
            fault,
            "upgrade.task",
            remedy="Use upgrade.stream=NAME instead of upgrade.backbone, and import both streams with text=.",
        )
    mid_task = "scores are comparable at the end of a task only"
    unseen = "other streams have features of one embedder only"
    refused = {
        "select": (evaluation.select == "best", mid_task),
        "every_epoch": (evaluation.every_epoch, mid_task),
        "oracle_task": (evaluation.oracle_task, mid_task),
        "also": (evaluation.also and stream.newer, unseen),
        "distractors": (evaluation.distractors and stream.newer, unseen),
    }
    for name, (is_set, why) in refused.items():
        if is_set:
            fault = f"cannot be used with upgrade.task={task}, because {why}"
            raise ConfigError(fault, f"evaluation.{name}", remedy="Omit it.")
    for part in stream.method_tasks:
        if len(part.train) < 3:
            raise ConfigError(
                f"{part.name} has {len(part.train)} training videos, too few to measure the scale of similarities",
                "upgrade.task",
                remedy="Use a stream with 3 or more training videos in each task.",
            )


def check_widths(experiment: Experiment, old: Clip, new: Clip) -> None:
    """Refuse to search old videos with unmapped captions of the new model, if the models differ in width.

    Raises:
        ConfigError: if `upgrade.queries` is new and the widths differ.
    """
    if experiment.upgrade.queries == "new" and old.embed_dim != new.embed_dim:
        fault = f"new needs models of equal width, but the old has width {old.embed_dim} and the new {new.embed_dim}"
        raise ConfigError(fault, "upgrade.queries", remedy="Use upgrade.queries=both or map.")


def new_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment with the new backbone, or with towers over the new features."""
    tower = experiment.upgrade.tower
    named = {f"backbone.{each.name}": getattr(tower, each.name) for each in fields(tower)}
    return replace(experiment, backbone=tower, settings={**experiment.settings, **named})


class TwoTokenizers:
    """Tokenizer of the new backbone, which also keeps the old backbone's tokens of its captions.

    Args:
        new, old: captions -> tokens (N, L) int64.
        longest: `data.max_tokens`.
        most: if more captions than this are kept, the next call discards them first; if None, all are kept.
    """

    def __init__(
        self,
        new: Callable[[list[str]], Tensor],
        old: Callable[[list[str]], Tensor],
        longest: int | None,
        most: int | None = None,
    ) -> None:
        self.new, self.old, self.longest, self.most = new, old, longest, most
        self._known: dict[bytes, Tensor] = {}

    def __call__(self, texts: list[str]) -> Tensor:
        if self.most is not None and len(self._known) > self.most:
            self._known.clear()
        tokens, old = (cut_tokens(each(texts), self.longest) for each in (self.new, self.old))
        for row, other in zip(tokens.numpy(), old):
            self._known[_key(row)] = other
        return tokens

    def translate(self, tokens: Tensor) -> Tensor:
        """Convert captions from new tokens (B, L) to tokens of the old tokenizer (B, L'), on the same device."""
        found = torch.stack([self._known[_key(row)] for row in tokens.cpu().numpy()])
        return found[:, : int((found != 0).any(dim=0).cumsum(0).argmax()) + 1].to(tokens.device)


def _key(row: np.ndarray[Any, Any]) -> bytes:
    return np.trim_zeros(row, "b").tobytes()


def make_upgraded(
    experiment: Experiment,
    new: Method,
    old: Method,
    tasks: Sequence[Task],
    tokens: TwoTokenizers,
    device: torch.device | None = None,
) -> Upgraded:
    """Return the untrained method that is used from task `upgrade.task` on.

    Args:
        experiment: a configuration with `upgrade.*`.
        new, old: untrained methods on the new and on the old backbone, on the device.
        tasks: tasks of the old method, for which `begin_task` is repeated.
        tokens: tokens of the captions that the method will encode.
        device: device of the method; if None, the CPU.
    """
    for task in tasks:
        old.begin_task(task)
    old.to(device)
    about = experiment.upgrade.queries, experiment.upgrade.map
    probe = _caption(tokens.new).to(device), _caption(tokens.old).to(device)
    return Upgraded(new, old, len(tasks), tokens.translate, *about, probe).to(device)


def _caption(tokenize: Callable[[list[str]], Tensor]) -> Tensor:
    """Return tokens (1, L) of some caption; only the width of its feature is read."""
    is_table = isinstance(tokenize, CaptionLookup)
    return torch.zeros(1, 1, dtype=torch.int64) if is_table else tokenize(["a"])


def make_learner(
    experiment: Experiment, new: Method, old: Method, data: StreamData, tokens: TwoTokenizers, pairs: StreamData
) -> Upgraded:
    """Return the method of `make_upgraded`, with access to pairs of the old stream, to measure the old scale.

    Args:
        data: stream for the new method (`Stream.after`).
        pairs: stream for the old method.
    """
    learned = data.stream.learned
    method = make_upgraded(experiment, new, old, [pairs.task(index) for index in range(learned)], tokens, data.device)
    method.old_pairs = lambda: pairs.ordered_batches([learned - 1])
    return method
