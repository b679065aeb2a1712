"""A tiny backbone, and batches and tasks for it.

Everything is generated from seeds: nothing is read, downloaded or stored. Shapes: B pairs, T frames, L text length.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import open_clip
import torch
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Batch, Task

CONTEXT, VOCABULARY = 16, 100
LAYERS, WIDTH, EMBED_DIM = 4, 32, 16
START, END = 98, 99  # start and end of a text
WORDS = ("man", "plays", "a", "dog", "red", "guitar", "sings", "in", "kitchen", "slowly")


def make_small_clip(layers: int = LAYERS, embed_dim: int = EMBED_DIM) -> Clip:
    """Build an open_clip CLIP of width 32 with random weights: 4 blocks, 17 tokens per frame, 16 joint dimensions."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        source = open_clip.CLIP(
            embed_dim=embed_dim,
            quick_gelu=True,
            vision_cfg={"layers": layers, "width": WIDTH, "head_width": 8, "patch_size": 8, "image_size": 32},
            text_cfg={
                "context_length": CONTEXT,
                "vocab_size": VOCABULARY,
                "width": WIDTH,
                "heads": 4,
                "layers": layers,
            },
        )
        for parameter in source.parameters():  # CLIP's own initialization is too small for tests
            if parameter.ndim > 1:
                parameter.data.normal_(0, 0.15)
    return Clip(source, tokenize, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "small").eval()


def tokenize(texts: list[str]) -> Tensor:
    """Encode words as token ids (N, L) int64, between the ids of start (98) and end (99) of text."""
    rows = torch.zeros(len(texts), CONTEXT, dtype=torch.int64)
    for row, text in zip(rows, texts):
        ids = [START, *(1 + sum(word.encode()) % 90 for word in text.split()[: CONTEXT - 2]), END]
        row[: len(ids)] = torch.tensor(ids)
    return rows


tokenize.decoder = {number: WORDS[number % 10] + "</w>" for number in range(1, 91)}  # type: ignore[attr-defined]


def make_batch(pairs: int = 6, frames: int = 3, seed: int = 0, categories: tuple[int, ...] = (0, 1)) -> Batch:
    """Return pairs of noise that depend only on the arguments; `RegeneratedPairs` rebuilds a pair from its id."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 90, (pairs, CONTEXT), generator=generator)
    lengths = torch.randint(4, CONTEXT, (pairs,), generator=generator)
    position = torch.arange(CONTEXT)
    tokens = torch.where(position < lengths[:, None], words, 0)
    tokens[:, 0] = START
    tokens[torch.arange(pairs), lengths] = END
    return Batch(
        pair_ids=torch.arange(pairs) + 100 * (frames + 10 * (pairs + 100 * seed)),
        frames=torch.randn(pairs, frames, 3, 32, 32, generator=generator),
        tokens=tokens,
        video_ids=torch.arange(pairs),
        categories=torch.tensor([categories[i % len(categories)] for i in range(pairs)]),
    )


class RegeneratedPairs:
    """Source of all pairs of `make_batch`, which rebuilds a pair from its id."""

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = []
        for number in numbers:
            rest, row = divmod(number, 100)
            rest, frames = divmod(rest, 10)
            seed, pairs = divmod(rest, 100)
            batch = _regenerated(pairs, frames, seed)
            rows.append((batch.frames[row], batch.tokens[row]))
        frames_of, tokens_of = zip(*rows)
        return torch.stack(frames_of), torch.stack(tokens_of)


_regenerated = functools.lru_cache(64)(make_batch)  # its rows are copied


def make_task(index: int = 0, num_tasks: int = 3) -> Task:
    """Return task `index` of a stream with two categories per task."""
    return Task(index, f"task_{index + 1:02d}", num_tasks, (2 * index, 2 * index + 1), 2 * num_tasks)
