"""The report of `ctvr streams check`: the highest R@1 that captions allow, compared with a ranking by brute force."""

import random
import re
from itertools import product

import pytest

from ctvr.orchestrator.streams.check import check_stream
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask


def stream(galleries: list[list[list[str]]], protocol: str = "ctvr") -> Stream:
    """A stream whose test videos have these captions, a list of videos for each task."""
    tasks = []
    for number, videos in enumerate(galleries):
        test = tuple(
            Item(f"t{number}v{n}", f"/none/t{number}v{n}.mp4", None, "c", tuple(captions))
            for n, captions in enumerate(videos)
        )
        tasks.append(StreamTask(f"task_{number}", ("c",), test[:1], (), test))
    return Stream("s", tuple(tasks), protocol, False)  # type: ignore[arg-type]


def ceiling(made: Stream) -> float | None:
    """Return the report; None if it is empty."""
    found = re.search(r"R@1 is at most (\d+\.\d+)", check_stream(made))
    return float(found[1]) if found else None


def best(galleries: list[list[str]]) -> float:
    """The highest R@1 of every way to put one video first for each text; one list of captions a video."""
    hits = 0
    texts = sorted({text for captions in galleries for text in captions})
    choices = [[n for n, captions in enumerate(galleries) if text in captions] for text in texts]
    for chosen in product(*choices):
        first = dict(zip(texts, chosen))
        hits = max(hits, sum(first[text] == n for n, captions in enumerate(galleries) for text in captions))
    return round(100 * hits / sum(map(len, galleries)), 2)


def test_captions_of_one_video_each_bound_nothing() -> None:
    assert ceiling(stream([[["a dog", "a dog"], ["a cat"]]])) is None


@pytest.mark.parametrize(
    ("galleries", "wanted"),
    [
        ([[["a dog"], ["a dog"]]], 50.0),
        ([[["a dog"], ["A  DOG "], ["a cat"]]], 66.67),  # as a tokenizer reads them
        ([[["a dog", "a dog"], ["a dog"]]], 66.67),  # the video that has it oftenest comes first
        ([[["a dog"]], [["a dog"]]], 50.0),  # one gallery of all tasks
    ],
)
def test_a_caption_of_several_videos_can_find_one_of_them_first(
    galleries: list[list[list[str]]], wanted: float
) -> None:
    assert ceiling(stream(galleries)) == wanted


def test_galleries_of_single_tasks_are_bounded_apart() -> None:
    assert ceiling(stream([[["a dog"]], [["a dog"]]], "cvlm")) is None
    assert ceiling(stream([[["a dog"], ["a dog"]], [["a dog"], ["a cat"]]], "cvlm")) == 75.0


@pytest.mark.parametrize("seed", range(8))
def test_the_ceiling_is_the_best_of_all_rankings(seed: int) -> None:
    draw = random.Random(seed)
    videos = [[draw.choice("abcd") for _ in range(draw.randint(1, 3))] for _ in range(4)]
    found = ceiling(stream([videos]))
    assert (100.0 if found is None else found) == best(videos)


def test_markers_of_missing_values_are_counted() -> None:
    assert "3 captions mark a missing value, such as 'nan' of t0v0" in check_stream(stream([[["nan"], ["NULL", "b"]]]))
