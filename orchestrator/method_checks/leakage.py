"""Checks that an evaluation uses only the videos, the captions and the tasks learned so far.

The loop does not pass ids, labels or the order of searched items, or pairs of later tasks, to a method. These checks
detect the use of other information: the order of videos and captions, the index of the task, unseen pairs, and state
outside the instance (variables of its class or module).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method
from ctvr.methods.tiny_models import RegeneratedPairs, make_batch
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.learning.record.method_state import clone_trained_state
from ctvr.orchestrator.method_checks.subject import FRAMES, TASKS, Subject, equal, features, learn, store_gallery


class SeenPairs(RegeneratedPairs):
    """Source of the pairs that have been shown so far."""

    def __init__(self) -> None:
        self._shown: set[int] = set()

    def show(self, batch: Batch) -> None:
        assert batch.pair_ids is not None  # set by `make_batch`
        self._shown.update(batch.pair_ids.tolist())

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        stranger = next((number for number in map(int, numbers) if number not in self._shown), None)
        if stranger is not None:
            raise ContractViolation(f"pair {stranger} is read from the source of pairs before any task has shown it")
        return super().pairs(numbers)


def check_leakage(subject: Subject) -> None:
    """Check that evaluations use only videos, captions and learned tasks, and do not change the method."""
    check_evaluation(subject)
    unlearned(subject)


@torch.no_grad()
def check_evaluation(subject: Subject) -> None:
    """Check that encoding and scoring use only the videos, the captions and the tasks learned so far."""
    method = subject.make()
    shown, stored = SeenPairs(), list[Tensor]()
    before = _learn_and_evaluate(method, 0, shown, stored)
    copies = [stored[0].clone()]
    for index in range(1, TASKS):
        _learn_and_evaluate(method, index, shown, stored)
        if not equal(copies, stored):
            raise ContractViolation(f"task {index + 1} writes into the stored features of an earlier task's videos")
        copies.append(stored[-1].clone())
    if not equal(before, _learn_and_evaluate(subject.make(), 0, SeenPairs(), [])):
        raise ContractViolation(
            "a new method learns the first task differently after another method has learned later tasks: it depends "
            "on a variable of a class or a module, or on a random number that torch's seed does not control"
        )
    _check_idle(method)
    _check_order_independence(method)
    _check_task_independence(method)


def unlearned(subject: Subject) -> None:
    """Check that losses computed without gradients do not change what is learned or logged."""
    plain, looked = subject.make(), subject.make()

    @torch.no_grad()
    def look(batch: Batch) -> None:
        was_training = looked.training
        others = make_batch(3, FRAMES, seed=70, categories=tuple(batch.categories.unique().tolist()))
        looked.eval()
        looked.losses(replace(others, pair_ids=None))
        looked.train(was_training)

    for index in range(2):
        if repr(learn(plain, index)) != repr(learn(looked, index, watch=look)):  # as text, NaN equals NaN
            raise ContractViolation(f"task {index + 1} has different losses {_LOOKED}")
        found = [store_gallery(method, index) for method in (plain, looked)]
        mine, others = plain.state_dict(), looked.state_dict()
        differing = [name for name in mine if not _same_bits(mine[name], others[name])]
        if differing or not _same_bits(*found):
            raise ContractViolation(f"task {index + 1} ends with a different {(differing or ['feature'])[0]} {_LOOKED}")
        if repr(plain.task_metrics()) != repr(looked.task_metrics()):
            raise ContractViolation(f"task {index + 1} has different task_metrics() {_LOOKED}")


_LOOKED = (
    "if losses of other pairs are computed without gradients (evaluation.log_losses=true): update the state of a "
    "method's steps only if torch.is_grad_enabled()"
)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _learn_and_evaluate(method: Method, index: int, shown: SeenPairs, stored: list[Tensor]) -> list[Tensor]:
    """Learn task `index`, add its gallery to `stored`, and return the inputs and scores of an evaluation."""
    learn(method, index, steps=1, source=shown, watch=shown.show)
    stored.append(store_gallery(method, index))
    found = features(method, index)
    return [*found, method.score(found[1], found[0])]


def _check_idle(method: Method) -> None:
    """Check that an evaluation does not change the method, so that a task may be evaluated any number of times."""
    state, first = clone_trained_state(method), features(method, 0)
    method.normalize_scores(method.score(first[1], first[0]))
    if not equal(first, features(method, 0)):
        raise ContractViolation(
            "encoding the same videos and captions again gives different features: an evaluation changes the method"
        )
    after = method.state_dict()
    if state.keys() != after.keys() or any(not torch.equal(after[name], state[name]) for name in state):
        raise ContractViolation("an evaluation changes a parameter or a buffer")


def _check_order_independence(method: Method) -> None:
    """Check that permuted inputs give permuted scores, because caption i often belongs to video i."""
    videos, texts = features(method, 0)
    scores = method.normalize_scores(method.score(texts, videos))
    for what, found in (
        ("videos", method.normalize_scores(method.score(texts, videos.flip(0))).flip(1)),
        ("captions", method.normalize_scores(method.score(texts.flip(0), videos)).flip(0)),
    ):
        if not torch.allclose(found, scores, atol=1e-5, rtol=1e-4, equal_nan=True):
            raise ContractViolation(f"scores depend on the order of the {what}, which reveals the matching pairs")


def _check_task_independence(method: Method) -> None:
    if method.declared.task_conditioned_text:
        return  # every caption is encoded for the task whose videos are searched
    tokens = make_batch(4, FRAMES, seed=13).tokens
    first = method.encode_text(tokens, None)
    if any(not torch.equal(method.encode_text(tokens, task), first) for task in range(TASKS)):
        raise ContractViolation(
            "features of a caption depend on the index of a task, but task_conditioned_text is not set"
        )
