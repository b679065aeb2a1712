"""Gradient accumulation with exactly the gradient of one large batch (GradCache, arXiv:2101.06983).

A contrastive loss compares all pairs of a step, so the mean over small batches is a different loss. Where a loss reads
frames and tokens through encoders that compute each row independently (`Method.separable_encoders`), a step has two
passes:

1. Encode parts of one batch each without a graph; compute the loss over all features and its gradient with respect
   to the features.
2. Encode every part again with a graph and the same RNG state and precision, and backpropagate the gradient of its
   features.

At most one batch's activations are in memory; the cost is one more forward pass. The loss is computed once, so teachers
run, replay memories are sampled and queues are filled once per step. Other parameters of the loss (a head, merged
weights) are part of its own graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.methods.backbone.recompute import recomputing
from ctvr.methods.base import Batch, Method, SeparableEncoders
from ctvr.methods.capabilities import overrides
from ctvr.methods.layers.patching import patched
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.training.unique_videos import encode_unique_videos, rng_state, set_rng_state

BUCKET = 25 << 20  # bytes of gradients that one collective sums, as in DistributedDataParallel
Autocast = Callable[[], AbstractContextManager[object]]


def accumulation_mode(method: Method, accumulate: int) -> Literal["features", "pairs"]:
    """Return how a method's batches form one step; see `Capabilities.accumulation`.

    Raises:
        ConfigError: if the loss of `accumulate` batches would differ from the loss of one large batch.
    """
    if method.declared.accumulation == "pairs":
        return "pairs"
    found = method.separable_encoders()
    if accumulate > 1 and overrides(method, "combine_gradients"):
        found = "the gradient of each term is needed"
    if isinstance(found, SeparableEncoders):
        return "features"
    if accumulate == 1:
        return "pairs"  # a step of one batch needs no accumulation
    raise ConfigError(
        f"{found}, so {accumulate} batches are not equivalent to one large batch for {type(method).__name__}",
        "optim.accumulation_steps",
        remedy="Use optim.accumulation_steps=1 and a larger data.batch_size.",
    )


def backward(method: Method, batches: Sequence[Batch], autocast: Autocast) -> dict[str, Tensor]:
    """Add the gradient of the loss over all pairs of `batches` to the parameters; return the terms of the loss.

    With several workers the gradients are averaged over them, as data-parallel training does.
    """
    whole = concat_batches(batches)
    with _split_encoders(method, len(batches[0].tokens)) as passes, encode_unique_videos(method, whole), autocast():
        terms = method.losses(whole)
    total = torch.stack(list(terms.values())).sum()
    total.backward()
    end = rng_state(whole.frames.device)
    for made in passes:
        made.backward_again()
    set_rng_state(end, whole.frames.device)
    _average(method)
    return terms


def concat_batches(batches: Sequence[Batch]) -> Batch:
    """Concatenate the pairs of several batches."""
    columns = {field.name: [getattr(batch, field.name) for batch in batches] for field in fields(Batch)}
    known: dict[str, Any] = {name: parts for name, parts in columns.items() if all(part is not None for part in parts)}
    longest = max(tokens.shape[1] for tokens in known["tokens"])
    known["tokens"] = [nn.functional.pad(tokens, (0, longest - tokens.shape[1])) for tokens in known["tokens"]]
    for name, parts in known.items():
        known[name] = torch.cat(parts) if isinstance(parts[0], Tensor) else tuple(chain.from_iterable(parts))
    return Batch(**known)


@dataclass(frozen=True)
class _Part:
    """Rows of one encoder call: arguments and RNG state before the call."""

    arguments: tuple[Any, ...]
    rng_state: tuple[Tensor, ...]
    length: int  # rows
    width: int  # second dimension of the features


@dataclass(frozen=True)
class _Pass:
    """One call of an encoder: its parts, and the features as a leaf of the loss's graph."""

    encode: Callable[..., Tensor]
    parts: list[_Part]
    features: Tensor
    precision: Autocast

    def backward_again(self) -> None:
        """Backpropagate the gradient of the features through the encoder."""
        grad, start = self.features.grad, 0
        for part in self.parts if grad is not None else ():
            assert grad is not None
            own = grad[start : start + part.length]
            start += part.length
            set_rng_state(part.rng_state, grad.device)
            with self.precision(), recomputing():
                features = self.encode(*part.arguments)
            if features.requires_grad:
                features.backward(own if own.ndim < 3 else own[:, : part.width])  # without the padding


@contextmanager
def _split_encoders(method: Method, rows: int) -> Iterator[list[_Pass]]:
    """Make a method's encoders process at most `rows` rows at once without a graph, and record the calls."""
    through, passes = method.separable_encoders(), list[_Pass]()
    assert isinstance(through, SeparableEncoders)
    plain = {name: getattr(through.owner, name) for name in through.names}
    with patched(through.owner, **{name: partial(_encode, passes, rows, own) for name, own in plain.items()}):
        yield passes


def _encode(passes: list[_Pass], rows: int, encode: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
    """Run `encode` on its arguments, whose tensors are split into parts of `rows` rows."""
    device, count = arguments[0].device, len(arguments[0])
    precision, parts, made = _precision(device), list[_Part](), list[Tensor]()
    # The autocast cache must not keep casts made without a graph, because the loss may read the same weights
    with torch.no_grad(), precision(cache_enabled=False):
        for start in range(0, count, rows):
            own = [x[start : start + rows] if isinstance(x, Tensor) else x for x in arguments]
            state = rng_state(device)
            made.append(encode(*own, **named))
            width = made[-1].shape[1] if made[-1].ndim > 1 else 1
            parts.append(_Part(tuple(own), state, len(made[-1]), width))
    features = _joined(made)
    if torch.is_grad_enabled():
        passes.append(_Pass(partial(encode, **named), parts, features.requires_grad_(True), precision))
    return features


def _precision(device: torch.device) -> Callable[..., AbstractContextManager[object]]:
    """Return the active autocast setting."""
    kind = device.type
    dtype, is_on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    return partial(torch.autocast, kind, dtype=dtype, enabled=is_on)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate features of all parts; word features are padded with zeros to the longest caption."""
    if parts[0].ndim == 3:
        longest = max(part.shape[1] for part in parts)
        parts = [nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    return torch.cat(list(parts))


@torch.no_grad()
def _average(method: Method) -> None:
    """Average gradients over all workers; a tensor that has no gradient on any worker keeps None."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    reached = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32, device="cpu")
    dist.all_reduce(reached)  # on the CPU with gloo: does not wait for a GPU
    gradients = list[Tensor]()
    for parameter, is_reached in zip(trained, reached.tolist()):
        if not is_reached:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([grad.reshape(-1) for grad in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket])):
            grad.copy_(part.view(grad.shape))


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of consecutive gradients of one type, of at most BUCKET bytes or with a single larger gradient."""
    bucket, size = list[Tensor](), 0
    for grad in gradients:
        if bucket and (size + grad.nbytes > BUCKET or grad.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(grad)
        size += grad.nbytes
    if bucket:
        yield bucket
