"""Several batches in one optimizer step, with exactly the gradient of one large batch (GradCache, arXiv:2101.06983).

A contrastive loss compares every pair of a step with every other, so the mean of the batches' own losses is another
loss. Where a loss needs only features, the step is made in two passes:

1. features of every batch, without a graph; the loss over all of them; its gradient with respect to the features;
2. every batch again with the random state it had, its graph kept, and the gradient of its features sent through it.

At most one batch's activations are in memory. It costs one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from methods.base import Batch, Method
from orchestrator.errors import ConfigError

Autocast = Callable[[], AbstractContextManager[object]]


def way_of(method: Method, accumulate: int) -> Literal["features", "pairs"]:
    """How a method's batches make one step; see `Method.accumulates`.

    Raises:
        ConfigError: if `accumulate` batches would not be one large batch to its loss.
    """
    cls = type(method)
    if cls.accumulates is not None:
        return cls.accumulates
    if cls.losses is Method.losses and cls.logits is Method.logits:
        return "features"
    if accumulate == 1:
        return "pairs"  # of one batch every loss is a sum
    raise ConfigError(
        f"optim.accumulate: the loss of {cls.__name__} reads more than features, so {accumulate} batches are not one "
        "large batch to it. Write optim.accumulate=1 and a larger data.batch_size."
    )


def backward(method: Method, batches: Sequence[Batch], autocast: Autocast) -> dict[str, Tensor]:
    """Add the gradient of the loss over all pairs of `batches` to the parameters; returns the loss's terms.

    With several workers the gradients are averaged over them, as data-parallel training does.
    """
    states, made = [], []
    with torch.no_grad(), autocast():
        for batch in batches:
            states.append(_random_state(batch.frames.device))
            made.append((method.encode_video(batch.frames), method.encode_text(batch.tokens)))
    videos, texts = _joined([video for video, _ in made]), _joined([text for _, text in made])
    terms = _backward_of_loss(method, batches, videos, texts, autocast)
    end = _random_state(batches[0].frames.device)
    start = 0
    for batch, state, (video, text) in zip(batches, states, made):
        rows = slice(start, start + len(batch.tokens))
        start = rows.stop
        _set_random_state(state, batch.frames.device)
        with autocast():
            again = method.encode_video(batch.frames), method.encode_text(batch.tokens)
        shares = _part(videos.grad, rows, video), _part(texts.grad, rows, text)
        pairs = [(x, grad) for x, grad in zip(again, shares) if x.requires_grad and grad is not None]
        torch.autograd.backward([x for x, _ in pairs], [grad for _, grad in pairs])
    _set_random_state(end, batches[0].frames.device)
    _average(method)
    return terms


def _backward_of_loss(
    method: Method, batches: Sequence[Batch], videos: Tensor, texts: Tensor, autocast: Autocast
) -> dict[str, Tensor]:
    """The loss over all pairs, and its gradients in `videos`, `texts` and what else it reads (a scale, a head)."""
    whole = Batch(
        frames=batches[0].frames,  # stands for all videos: the features are there already
        tokens=torch.cat([batch.tokens for batch in batches]),
        videos=torch.cat([batch.videos for batch in batches]),
        categories=torch.cat([batch.categories for batch in batches]),
    )
    with autocast(), _answering(method, videos, texts):
        terms = method.losses(whole)
    total = torch.stack(list(terms.values())).sum()
    if bool(torch.isfinite(total)):
        total.backward()
    return terms


@contextmanager
def _answering(method: Method, videos: Tensor, texts: Tensor) -> Iterator[None]:
    """Let a method's encoders give features that were made before."""
    answers: dict[str, Callable[..., Tensor]] = {
        "encode_video": lambda frames: videos,
        "encode_text": lambda tokens, task=None: texts,
    }
    for name, answer in answers.items():
        setattr(method, name, answer)
    try:
        yield
    finally:
        for name in answers:
            delattr(method, name)  # the class's own is back


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Features of all batches as a leaf; word features are padded with zeros to the longest caption."""
    if parts[0].ndim == 3:
        longest = max(part.shape[1] for part in parts)
        parts = [nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    return torch.cat(list(parts)).requires_grad_(True)


def _part(grad: Tensor | None, rows: slice, like: Tensor) -> Tensor | None:
    """The gradient of one batch's features, without the padding."""
    if grad is None:
        return None
    return grad[rows] if like.ndim != 3 else grad[rows, : like.shape[1]]


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def _average(method: Method) -> None:
    """Mean gradients over all workers; a tensor that no worker's loss has reached keeps none."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    for parameter in method.parameters():
        if not parameter.requires_grad:
            continue
        reached = torch.tensor(float(parameter.grad is not None), device=parameter.device)
        dist.all_reduce(reached)
        if not reached.item():
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
