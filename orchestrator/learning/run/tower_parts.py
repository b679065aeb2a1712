"""Parts of a backbone that a method uses, and the parts that a backbone offers.

Whether a method accepts a backbone of another kind than CLIP is computed, not listed: the method runs on a tiny CLIP
for two tasks, and each part of its towers that the method reads is recorded. A part is the name of a member of the
tower (`ln_pre`), or one of `PARTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ctvr.methods import find_method
from ctvr.methods.backbone.blocks import BlockSeams, Seams
from ctvr.methods.backbone.clip import Clip, VisionTower
from ctvr.methods.base import Batch, Method, Position
from ctvr.methods.capabilities import capabilities_of
from ctvr.methods.tiny_models import make_batch, make_small_clip, make_task
from ctvr.methods.user_code import place_in_user_code
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.record.method_state import finish_task, prepare_task
from ctvr.orchestrator.settings.experiment import Experiment

HOOKS, MLP, CLASS = "hook points", "CLIP's MLP", "a class token"
PARTS = (HOOKS, MLP, CLASS)
TOWERS = {"vision": "image tower", "text": "text tower"}
# Sizes and facts that every tower has
_EVERYWHERE = {"blocks", "width", "heads", "classes", "num_tokens", "embed_dim", "context_length", "causal", "reducers"}
_EVERYWHERE |= {"entry", "takes_features", "is_plain", "lacks"}
_ENTRIES = ("forward", "embed", "read", "prefix", "hidden", "project")  # functions of a tower that use its other parts
_PAIRS, _MOST_FRAMES = 4, 16


@dataclass
class _Log:
    used: set[tuple[str, str]] = field(default_factory=set)  # tower, part
    depth: int = 0  # calls of a tower's own functions that are in progress


_LOG: ContextVar[_Log | None] = ContextVar("log", default=None)


def _watched(cls: type[nn.Module], tower: str, known: set[str]) -> type[nn.Module]:
    """Return a subclass of a tower that records the members that other code reads."""

    class Watched(cls):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            log = _LOG.get()
            if log is not None and not log.depth and name in known:
                log.used.add((tower, name))
            return super().__getattribute__(name)

    def entry(name: str) -> Any:
        def run(self: Any, *given: Any, **named: Any) -> Any:
            with _inside(tower, name, given, named):
                return getattr(cls, name)(self, *given, **named)

        return run

    for name in _ENTRIES:
        if hasattr(cls, name):
            setattr(Watched, name, entry(name))
    return Watched


@contextmanager
def _inside(tower: str, name: str, given: Sequence[Any], named: dict[str, Any]) -> Iterator[None]:
    """Record the call of a tower's function `name`, with its hooks (seams), if other code calls it."""
    log = _LOG.get()
    if log is None:
        yield
        return
    if not log.depth and name != "forward":
        log.used.add((tower, name))
    log.used |= {(tower, part) for part in _parts_of_seams(named.get("seams", given[1] if len(given) > 1 else None))}
    log.depth += 1
    try:
        yield
    finally:
        log.depth -= 1


def _parts_of_seams(seams: Seams | Any) -> set[str]:
    acting = [each for each in seams if each not in (None, BlockSeams())] if isinstance(seams, Sequence) else []
    is_in_mlp = any(each.fc is not None or each.proj is not None for each in acting)
    return {HOOKS, *([MLP] if is_in_mlp else [])} if acting else set()


class _Rows:
    """Source of training pairs that returns rows of one batch for every request."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([number % _PAIRS for number in numbers], dtype=torch.int64)
        return self.batch.frames[rows], self.batch.tokens[rows]


def _watched_clip() -> Clip:
    clip = make_small_clip()
    parts: dict[str, nn.Module] = {"vision": clip.vision, "text": clip.text}
    for tower, part in parts.items():
        known = {*dir(part)} - {*dir(nn.Module())} - _EVERYWHERE - {"forward"}
        part.__class__ = _watched(type(part), tower, known)
    return clip


def parts_used(experiment: Experiment) -> set[tuple[str, str]]:
    """Return the parts that a method uses under its settings, as pairs of `vision` or `text` and the part.

    Raises:
        ConfigError: if the method fails on the tiny CLIP and is not `backbone_agnostic`, so its parts are not known.
    """
    log, cls = _Log(), find_method(experiment.run.method)
    token = _LOG.set(log)
    try:
        with torch.random.fork_rng(devices=[]):
            clip = _watched_clip()
            base = find_method(experiment.method.base)(experiment.base, clip) if cls.wraps else clip
            _use(cls(experiment.method, base), min(experiment.data.num_frames, _MOST_FRAMES))
    except Exception as error:  # of any method, on sizes that are not its own
        if not experiment.capabilities.backbone_agnostic:
            place = place_in_user_code(error)
            said = f"{type(error).__name__}: {' '.join(str(error).split()):.200}{place and f', {place}'}"
            raise ConfigError(
                f"{experiment.name} fails on the tiny CLIP ({said}), so it is known to fit CLIP only",
                "method",
                remedy="Use a backbone of CLIP, or correct the method, or declare it backbone_agnostic.",
            ) from error
    finally:
        _LOG.reset(token)
    return log.used | _positions(experiment, log.used)


def _positions(experiment: Experiment, used: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the class token in a set if hooks of the retriever may assume its position, otherwise an empty set.

    The end of a caption has a known position in every tower (`TokenState.eot`).
    """
    name, config = experiment.run.method, experiment.method
    if experiment.base is not None:
        name, config = experiment.method.base, experiment.base
    if capabilities_of(find_method(name), config).backbone_agnostic:
        return set()
    return {("vision", CLASS)} if ("vision", HOOKS) in used else set()


def _use(method: Method, frames: int) -> None:
    """Train and evaluate a method on noise for two tasks, one batch each."""
    for index in range(2):
        task = make_task(index, 2)
        batch = make_batch(_PAIRS, frames, seed=index, categories=task.categories)
        method.set_pair_source(_Rows(batch))
        method.eval().begin_task(task)
        prepare_task(method, task, [batch])
        method.param_groups()
        method.train().set_position(Position(0, 1, 0, 1))
        with torch.enable_grad():
            method.losses(batch)
        finish_task(method.eval(), task, [batch])
        with torch.no_grad():
            videos, texts = method.encode_video(batch.frames), method.encode_text(batch.tokens, index)
            method.on_gallery_stored(task, videos.float())
            method.score(texts, videos)


def offers(clip: Clip, tower: str, part: str) -> bool:
    """Return whether a backbone offers a part of `vision` or `text`."""
    there: Any = getattr(clip, tower)
    if part in there.lacks or (part == CLASS and not there.classes):
        return False
    if part in (HOOKS, MLP):
        return bool(len(there.blocks)) and (part == HOOKS or hasattr(there.blocks[0].mlp, "c_fc"))
    return part in PARTS or hasattr(there, part)


def missing_parts(experiment: Experiment, clip: Clip) -> list[str]:
    """Return the parts that a method uses and a backbone lacks, as text; empty if the method fits it.

    Raises:
        ConfigError: see `parts_used`.
    """
    if is_of_clip(clip):
        return []
    lacking = sorted(pair for pair in parts_used(experiment) if not offers(clip, *pair))
    return [f"{part if part in PARTS else f'`{part}`'} of the {TOWERS[tower]}" for tower, part in lacking]


def is_of_clip(clip: Clip) -> bool:
    """Return whether both towers have all parts of CLIP's, so that every method for CLIP fits."""
    return clip.vision.is_plain and type(clip.vision) is VisionTower and not clip.text.lacks


def refuse_misfit(experiment: Experiment, clip: Clip) -> None:
    """Refuse a backbone that lacks parts that the method uses, in one line that names them.

    Raises:
        ConfigError: if it lacks a part, or if the parts are not known (`parts_used`).
    """
    if missing := missing_parts(experiment, clip):
        raise ConfigError(
            f"{experiment.name} uses {', '.join(missing)}, which {clip.name} does not offer",
            "method",
            remedy="Use another backbone, such as ViT-B-16, or a method that "
            f"`ctvr methods --backbone {clip.name}` lists.",
        )


def describe_offer(clip: Clip) -> str:
    """Return a text with the parts that a backbone offers in addition to its features."""
    found = []
    for tower, words in TOWERS.items():
        there: Any = getattr(clip, tower)
        count = len(there.blocks)
        found.append(f"{words}: hook points in {count} blocks" if count else f"{words}: no hook points")
        if tower == "vision" and not there.classes:
            found.append("no class token")
    return ", ".join(found) if not is_of_clip(clip) else "all parts of CLIP"
