"""Report on captions that the text tower of a run truncates, counted with the run's tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ctvr.orchestrator.data.batches import StreamData, cut_tokens
from ctvr.orchestrator.streams.check import report_cuts

CHUNK = 512  # captions tokenized at once


def describe_cuts(data: StreamData) -> list[str]:
    """Return a list with one line on captions that are truncated at `data.max_tokens` or the text length.

    The list is empty if no caption is truncated, for streams of images or text features, and if the tokenizer's length
    is unknown.
    """
    if data.stream.domain == "images" or data.stream.text_features:
        return []
    tokenize = getattr(data.tokenizer, "new", data.tokenizer)  # a model that is upgraded has two tokenizers
    roomy, places = with_room(tokenize)
    if roomy is None:
        return []
    longest = data.config.max_tokens
    is_own = longest is not None and longest < places

    def read(texts: list[str]) -> list[tuple[Hashable, bool]]:
        found: list[tuple[Hashable, bool]] = []
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            is_cut = roomy(chunk)[:, longest if is_own else -1] != 0  # only padding follows the end of a caption
            rows = cut_tokens(tokenize(chunk), longest).to(torch.int32).numpy()
            found += [(row.tobytes(), bool(cut)) for row, cut in zip(rows, is_cut)]
        return found

    return list(report_cuts(data.stream, read, longest if is_own and longest is not None else places))


def with_room(tokenize: Any) -> tuple[Callable[[list[str]], Tensor] | None, int]:
    """Return a copy of a tokenizer that keeps one more token, and the length of the original; (None, 0) if unknown.

    A tokenizer of open_clip has `context_length`, and our `WordPieces` has `length`. `EndMarked` wraps a tokenizer,
    which is its attribute `tokenize`.
    """
    wider = copy.copy(tokenize)
    for name in ("context_length", "length"):
        if isinstance(places := getattr(wider, name, None), int):
            setattr(wider, name, places + 1)
            return wider, places
    if (inner := getattr(wider, "tokenize", None)) is None:
        return None, 0
    more, places = with_room(inner)
    wider.tokenize = more
    return (wider, places) if more is not None else (None, 0)
