"""Check that an untrained model does not forget, in any protocol.

Backward forgetting compares a task's ranks in its own gallery before and after later tasks. If nothing is trained, only
the evaluation can change them: scores that are normalized over other tasks, or captions padded to the length of others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctvr.methods.base import Method
from ctvr.methods.tiny_models import CONTEXT, END, make_batch, make_task
from ctvr.orchestrator.data.batches import Queries
from ctvr.orchestrator.errors import ContractViolation
from ctvr.orchestrator.learning.evaluation.evaluate import compute_ranks
from ctvr.orchestrator.method_checks.subject import FRAMES, TASKS, Subject, batches_of
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig

VIDEOS, CAPTIONS = 8, 12  # per task; four videos have two captions
PROTOCOLS = ("ctvr", "cvlm")


def check_forgetting(subject: Subject) -> str | None:
    """Check that ranks in a task's own gallery do not change while untrained tasks follow, so that BWF is 0."""
    evaluation = subject.experiment.evaluation
    if evaluation.own_gallery == "cut":
        return "skipped: evaluation.own_gallery=cut normalizes scores of a task's own gallery with those of other tasks"
    for protocol in PROTOCOLS:
        if (index := first_moved(subject.make(), evaluation, protocol)) is not None:
            raise ContractViolation(
                f"protocol {protocol}: without any training, task {index + 1} changes ranks of an earlier task in its "
                "own gallery. begin_task(), end_task() and normalize_scores() must not affect earlier tasks"
            )
    return None


@torch.no_grad()
def first_moved(method: Method, config: EvaluationConfig, protocol: str) -> int | None:
    """Return the index of the first task that changes an earlier task's ranks (text or video queries), or None."""
    own, stored = list[tuple[Tensor, Tensor]](), list[Tensor]()
    for index in range(TASKS):
        method.eval()
        torch.manual_seed(100 + index)
        task = make_task(index, TASKS)
        method.begin_task(task)
        if not method.declared.learns_in_end_task:
            method.prepare_task(task, batches_of(index, 2))
            method.end_task(task, batches_of(index, 2))
        again = protocol == "cvlm" or method.declared.reencodes_gallery
        stored = [_gallery(method, i) if again or i == index else stored[i] for i in range(index + 1)]
        method.on_gallery_stored(task, stored[-1])
        queries = [_queries(i) for i in range(index + 1)]
        ranked = compute_ranks(method, queries, stored, config, torch.device("cpu"), protocol)
        assert ranked is not None  # this process has all scores
        found = list(zip(ranked.own.rank.split(CAPTIONS), ranked.own_videos.rank.split(VIDEOS)))
        if any(not torch.equal(a, b) for one, other in zip(own, found) for a, b in zip(one, other)):
            return index
        own = found
    return None


def _gallery(method: Method, index: int) -> Tensor:
    return method.encode_video_for_task(make_batch(VIDEOS, FRAMES, seed=77 + index).frames, index).float()


def _queries(index: int) -> Queries:
    """Return the captions of a task; the last task has the longest captions."""
    tokens = make_batch(CAPTIONS, 1, seed=40 + index).tokens
    last = CONTEXT - 1 - 4 * (TASKS - 1 - index)
    tokens[tokens[:, last] > 0, last] = END
    tokens[:, last + 1 :] = 0
    names = tuple(f"task {index}, {number}" for number in range(CAPTIONS))
    return Queries(tokens, torch.arange(CAPTIONS) % VIDEOS, torch.full((CAPTIONS,), -1), names)
