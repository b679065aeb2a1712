"""A stream of two tasks in memory: 12 pairs per step, and a last batch that no number of workers divides."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ctvr.methods.backbone.clip import Clip
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.questions import QuestionData
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask

TASKS, FRAMES, SIZE = 2, 4, 32
BATCH, DEALT = 12, 6  # 19 pairs are 12 and 7, of which one, two and three workers take 6
WORDS = ["a", "man", "plays", "red", "guitar", "in", "the", "dark", "kitchen", "while", "dogs", "sing"]


class Frames:
    """Frames of a video, computed from its name."""

    def load(self, item: Item) -> np.ndarray:
        seed = [*item.video.encode()]
        return np.random.default_rng(seed).integers(0, 256, (FRAMES, SIZE, SIZE, 3), dtype=np.uint8)


def _items(task: int, split: str, videos: int, captions: int) -> tuple[Item, ...]:
    """Return videos of two categories, with captions of two to ten words."""
    found = []
    for video in range(videos):
        name = f"{split}-{task}-{video}"
        rng = np.random.default_rng([*name.encode()])
        texts = [" ".join(rng.choice(WORDS, size=rng.integers(2, 11))) for _ in range(captions)]
        found.append(Item(name, "", None, f"c{2 * task + video % 2}", tuple(texts)))
    return tuple(found)


def make_stream() -> Stream:
    """Return 19 and 18 training pairs, and 7 searched videos per task; neither 19 nor 37 nor 7 divides evenly."""
    tasks = []
    for task in range(TASKS):
        train = (*_items(task, "train", 9, 2), *_items(task, "alone", 1 - task, 1))
        names = (f"c{2 * task}", f"c{2 * task + 1}")
        tasks.append(StreamTask(f"task_{task + 1:02d}", names, train, (), _items(task, "test", 7, 1)))
    return Stream("workers", tuple(tasks), "ctvr", has_val=False)


class Dealt(StreamData):
    """Gives one worker the batches of several, which are cut as for six."""

    def _batches(self, pairs: list[int], seed: int, size: int, workers: int) -> list[list[int]]:
        return super()._batches(pairs, seed, size, DEALT if workers == 1 else workers)


class DealtQuestions(Dealt, QuestionData):
    """Gives one worker the batches of questions of several, which are cut as for six."""


def make_questions() -> Stream:
    """Return the same stream with questions as captions, which their last word answers."""
    stream = make_stream()

    def asked(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(replace(item, answers=tuple(text.split()[-1] for text in item.captions)) for item in items)

    tasks = tuple(replace(task, train=asked(task.train), test=asked(task.test)) for task in stream.tasks)
    return replace(stream, tasks=tasks, protocol="qa")


def make_data(clip: Clip, device: torch.device, domain: str = "videos", **settings: object) -> StreamData:
    config = DataConfig(**{"num_frames": FRAMES, "batch_size": BATCH, **settings})  # type: ignore[arg-type]
    mean: Sequence[float] = clip.mean
    of, stream = (DealtQuestions, make_questions()) if domain == "questions" else (Dealt, make_stream())
    return of(stream, Frames(), clip.tokenize, mean, clip.std, config, device)  # type: ignore[arg-type]
