"""Capabilities: properties of a method that follow from its settings, and are known before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Properties of a method, from `Method.capabilities(config)`; the defaults suit a retriever without special needs.

    A run reads them before its first task. They must not depend on a setting that only later tasks read, because trials
    that differ only in such a setting share their first task.
    """

    # Backbone and frames
    backbone_agnostic: bool = False  # its hooks (seams) treat all tokens alike: no class token, no end-of-text token
    # Learns on vectors that another model computed (backbone/vectors.py). None: true for a strategy, and for a
    # retriever that is `backbone_agnostic`
    fits_vectors: bool | None = None
    needs_umt: bool = False  # accepts the towers of UMT, and does not need CLIP
    required_num_frames: int | None = None  # frames that every video must have; None: any number
    masks_missing_frames: bool = False  # leaves out frames of zeros at the end of a short video
    # Training
    trains_on: Literal["task", "seen"] = "task"  # pairs of the current task, or of all tasks so far
    joins_tasks: bool = False  # a retriever with parameters for each task trains them together if `is_joint`
    uses_all_parameters: bool = False  # each step gives every weight of `param_groups` a gradient; false for routing
    uses_in_batch_negatives: bool = True  # the loss `contrastive` compares only the pairs of one batch
    # Learns without gradients in `prepare_task` or `end_task`. None: true for a retriever that overrides one of these
    # and does not override `param_groups`
    learns_in_end_task: bool | None = None
    has_epoch_state: bool = False  # keeps more than `state_dict()` from one epoch of a task to the next
    # How `optim.accumulation_steps` joins batches. features: `losses` reads frames and tokens only through
    # `separable_encoders`; pairs: the loss is a mean over independent pairs. None: features if neither `losses` nor
    # `logits` is overridden, otherwise accumulation is refused
    accumulation: Literal["features", "pairs"] | None = None
    # Captions
    task_conditioned_text: bool = False  # encodes a caption once for each task whose videos it searches
    attends_to_padding: bool = False  # a caption's feature depends on the length to which it is padded
    rewrites_captions: bool = False  # in training, the text tower reads tokens other than those of the captions
    text_is_frozen: bool = False  # `encode_text` depends on the caption only, in every task
    several_text_vectors: bool = False  # a caption's feature is several vectors, such as one for each word
    compensates_age: bool = False  # encodes a caption differently for videos that an older model has stored
    # Videos
    videos_are_frozen: bool = False  # `encode_video` depends on the video only, in every task
    # Evaluation
    reencodes_gallery: bool = False  # encodes videos of earlier tasks again, which the protocol forbids
    is_transductive: bool = False  # the ranks of a query depend on other queries; tables mark it
    normalizes_scores: bool | None = None  # None: true if `normalize_scores` or its `_v2t` is overridden
    score_caveat: str = ""  # why `score` is not a final similarity, and the remedy; empty if it is

    def wrapping(self, base: Capabilities) -> Capabilities:
        """Return the properties of a strategy, combined with those of the retriever `base` that it wraps.

        In joint training, a batch without pairs of a task does not give gradients to the parameters of that task.
        """
        is_joint = self.trains_on == "seen" and base.task_conditioned_text
        return replace(
            self,
            backbone_agnostic=self.backbone_agnostic and base.backbone_agnostic,
            fits_vectors=self.fits_vectors and base.fits_vectors,
            needs_umt=base.needs_umt,
            required_num_frames=base.required_num_frames,
            masks_missing_frames=base.masks_missing_frames,
            trains_on="seen" if "seen" in (self.trains_on, base.trains_on) else "task",
            uses_all_parameters=self.uses_all_parameters and base.uses_all_parameters and not is_joint,
            uses_in_batch_negatives=self.uses_in_batch_negatives and base.uses_in_batch_negatives,
            learns_in_end_task=self.learns_in_end_task or base.learns_in_end_task,
            has_epoch_state=self.has_epoch_state or base.has_epoch_state,
            task_conditioned_text=self.task_conditioned_text or base.task_conditioned_text,
            attends_to_padding=self.attends_to_padding or base.attends_to_padding,
            rewrites_captions=self.rewrites_captions or base.rewrites_captions,
            several_text_vectors=base.several_text_vectors,
            compensates_age=self.compensates_age or base.compensates_age,
            reencodes_gallery=self.reencodes_gallery or base.reencodes_gallery,
            is_transductive=self.is_transductive or base.is_transductive,
            normalizes_scores=self.normalizes_scores or base.normalizes_scores,
            score_caveat=self.score_caveat or base.score_caveat,
        )


def neutral(function: _Function) -> _Function:
    """Mark a hook that does nothing of its own: a default, or a call of the same hook of the wrapped retriever."""
    function.is_neutral = True  # type: ignore[attr-defined]
    return function


def is_overridden(cls: type, *names: str) -> bool:
    """Return whether a class overrides at least one of the named hooks by a function that is not `neutral`."""
    return not all(getattr(getattr(cls, name), "is_neutral", False) for name in names)


def overrides(method: Any, name: str) -> bool:
    """Return whether a method, or the retriever that it wraps, overrides hook `name` by one that is not `neutral`."""
    inner = getattr(method, "base", None) if type(method).wraps else None
    return is_overridden(type(method), name) or (inner is not None and overrides(inner, name))


def capabilities_of(cls: Any, config: Any, base: Capabilities | None = None) -> Capabilities:
    """Return the properties of a method under its settings; a None is replaced by a value that the hooks imply.

    Args:
        cls: subclass of `Method`, a retriever or a strategy.
        config: `cls.Config` with its values.
        base: properties of the retriever that a strategy wraps; None for a retriever.
    """
    own = cls.capabilities(config)
    if own.normalizes_scores is None and is_overridden(cls, "normalize_scores", "normalize_scores_v2t"):
        own = replace(own, normalizes_scores=True)
    if own.accumulation is None and not is_overridden(cls, "losses", "logits"):
        own = replace(own, accumulation="features")
    if own.learns_in_end_task is None and not cls.wraps and not is_overridden(cls, "param_groups"):
        own = replace(own, learns_in_end_task=is_overridden(cls, "prepare_task", "end_task"))
    if own.fits_vectors is None:
        own = replace(own, fits_vectors=cls.wraps or own.backbone_agnostic)
    whole = own if base is None else own.wrapping(base)
    known = {name: bool(getattr(whole, name)) for name in ("normalizes_scores", "learns_in_end_task")}
    return replace(whole, **known)
