"""Checks of a method's contract with the loop (methods/base.py); each raises a `ContractViolation`.

`ctvr methods check NAME` runs them for any method, tests/methods/test_contract.py for every entry of METHODS.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Method, Position
from ctvr.methods.tiny_models import make_batch, make_small_clip, make_task
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.learning.record.method_state import PretrainedSnapshot, load_state, prepare_task, trained_state
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.gradients import StepGradients
from ctvr.orchestrator.learning.training.optimizer import freeze_except, make_optimizer, set_learning_rates
from ctvr.orchestrator.learning.training.step import complete_gradient, total_of
from ctvr.orchestrator.method_checks.subject import (
    FRAMES,
    OPTIM,
    TASKS,
    Subject,
    batches_of,
    equal,
    features,
    learn,
    store_gallery,
)


def check_losses(subject: Subject) -> None:
    """Check that losses are finite, named scalars, and that a step changes exactly the parameters of `param_groups`."""
    method = subject.make()
    task = make_task(0, TASKS)
    method.begin_task(task)
    prepare_task(method.eval(), task, batches_of(0, 1))
    groups = method.param_groups()
    before = {key: value.detach().clone() for key, value in method.named_parameters()}
    try:
        parameters = freeze_except(method, groups)
    except ValueError as error:
        raise ContractViolation(str(error)) from error
    method.train()
    method.set_position(Position(0, 1, 0, 1))
    batch = batches_of(0, 1)[0]
    given = copy.deepcopy(batch)
    terms = method.losses(batch)
    if not isinstance(terms, dict) or not terms:
        raise ContractViolation("losses() must return a non-empty dictionary of named terms")
    for name, term in terms.items():
        if not isinstance(term, Tensor) or term.ndim or not torch.isfinite(term):
            raise ContractViolation(f"losses() returns {name!r}, which is not a finite scalar tensor")
    if changed := _find_differing(batch, given):
        raise ContractViolation(f"losses() writes into the batch ({changed})")
    if not parameters:
        return
    total = total_of(terms)
    if not total.requires_grad:
        raise ContractViolation("param_groups() returns parameters, but no loss depends on any of them")
    gradients = StepGradients(method, parameters, OPTIM, Workers(), nullcontext)
    optimizer = make_optimizer(groups, OPTIM, method, gradients.recompute)
    gradients.add(batch, 1.0, is_last=True)
    complete_gradient(method, parameters, OPTIM)
    set_learning_rates(optimizer, 1.0)
    optimizer.step()  # without `after_step`, which moves momentum copies
    moved = [key for key, p in method.named_parameters() if not torch.equal(p, before[key])]
    if not moved:
        raise ContractViolation("a step of the optimizer changes none of the parameters that param_groups() returns")
    trained = {id(p) for p in parameters}
    handed = {key for key, p in method.named_parameters() if id(p) in trained}
    if strangers := [key for key in moved if key not in handed]:
        raise ContractViolation(f"a step changes {strangers[0]}, which param_groups() does not return")


def _find_differing(batch: Batch, other: Batch) -> str:
    names = ("frames", "tokens", "video_ids", "categories", "pair_ids")
    return ", ".join(name for name in names if not torch.equal(getattr(batch, name), getattr(other, name)))


@torch.no_grad()
def check_batch_independence(subject: Subject) -> None:
    """Check that features of a video or caption do not depend on the rest of the batch, and that scores are (Q, V)."""
    method = subject.make()
    learn(method, 0, steps=1)
    batch = make_batch(6, FRAMES, seed=9)
    whole = method.encode_video(batch.frames)
    if len(whole) != 6:
        raise ContractViolation(f"encode_video() returns {len(whole)} rows for 6 videos")
    _close(method.encode_video(batch.frames[:2]), whole[:2], "features of a video depend on the others of its batch")
    scores = method.score(method.encode_text(batch.tokens, 0), whole)
    if scores.shape[:2] != (6, 6):
        raise ContractViolation(f"score() of 6 captions and 6 videos has the shape {tuple(scores.shape)}, not (6, 6)")
    alone = method.score(method.encode_text(batch.tokens[:1], 0), whole)
    _close(alone, scores[:1], "scores of a caption depend on the other captions of its batch")


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-5, rtol=1e-4, equal_nan=True):
        raise ContractViolation(what)


@torch.no_grad()
def check_frozen(subject: Subject) -> None:
    """Check that blocks and a text tower declared as frozen keep the pre-trained weights in every task."""
    method = subject.make()
    if not (method.frozen_blocks or method.declared.text_is_frozen or method.declared.videos_are_frozen):
        return
    pretrained, tokens = make_small_clip(subject.layers).vision, make_batch(5, FRAMES, seed=3).tokens
    clips = make_batch(3, FRAMES, seed=3).frames
    first = method.encode_text(tokens, 0) if method.declared.text_is_frozen else None
    stored = method.encode_video(clips) if method.declared.videos_are_frozen else None
    for index in range(2):
        learn(method, index)
        towers = [module.vision for module in method.modules() if isinstance(module, Clip)]  # a task may replace them
        frames = make_batch(3, FRAMES, seed=50 + index).frames
        if method.frozen_blocks and len(towers) == 1:
            towers[0].entry = method.frozen_blocks
            tokens_in = pretrained.prefix(frames, method.frozen_blocks)
            if not torch.equal(method.encode_video(tokens_in), method.encode_video(frames)):
                raise ContractViolation(
                    f"frozen_blocks = {method.frozen_blocks}, but these blocks differ from the pre-trained ones"
                )
        if first is not None and not torch.equal(method.encode_text(tokens, index), first):
            raise ContractViolation(f"text_is_frozen = True, but task {index + 1} changes the features of a caption")
        if stored is not None and not torch.equal(method.encode_video(clips), stored):
            raise ContractViolation(f"videos_are_frozen = True, but task {index + 1} changes the features of a video")


def check_resume(subject: Subject) -> None:
    """Check that resuming from the saved state after every task gives bit-identical results."""
    unbroken = subject.make()
    pretrained = PretrainedSnapshot(unbroken)
    learn(unbroken, 0)
    galleries = [store_gallery(unbroken, 0)]
    saved = copy.deepcopy(trained_state(unbroken, pretrained))
    for index in range(1, TASKS):
        resumed = subject.make()
        pretrained = PretrainedSnapshot(resumed)
        for done in range(index):
            resumed.eval()
            torch.manual_seed(100 + done)
            task = make_task(done, TASKS)
            resumed.begin_task(task)
            resumed.on_gallery_stored(task, galleries[done])
        try:
            load_state(resumed, saved, pretrained)
        except ValueError as error:
            raise ContractViolation(
                f"a replay of begin_task() creates other tensors than the run did: {error}"
            ) from error
        resumed.eval()
        for done in range(index):
            if not equal(features(unbroken, done), features(resumed, done)):
                raise ContractViolation(f"resumed after task {index}, features differ: {_LOST}")
        galleries.append(_same_step(unbroken, resumed, index))
        saved = copy.deepcopy(trained_state(resumed, pretrained))


_LOST = "some state is neither a parameter nor a buffer, nor set by begin_task() or on_gallery_stored()"


def _same_step(unbroken: Method, resumed: Method, index: int) -> Tensor:
    """Train task `index` with both methods and check that they are equal afterwards; return the stored gallery."""
    where = f"resumed after task {index}, task {index + 1}"
    if learn(resumed, index) != learn(unbroken, index):
        raise ContractViolation(f"{where} has different losses: {_LOST}")
    stored = [store_gallery(method, index) for method in (resumed, unbroken)]
    mine, others = resumed.state_dict(), unbroken.state_dict()
    if mine.keys() != others.keys():
        raise ContractViolation(
            f"{where} creates different tensors, for example {sorted(mine.keys() ^ others.keys())[0]}: {_LOST}"
        )
    if differing := [key for key in mine if not torch.equal(mine[key], others[key])]:
        raise ContractViolation(f"{where} ends with different values of {differing[0]}: {_LOST}")
    if not equal([*features(unbroken, index), stored[1]], [*features(resumed, index), stored[0]]):
        raise ContractViolation(f"{where} ends with different features: {_LOST}")
    return stored[0]
