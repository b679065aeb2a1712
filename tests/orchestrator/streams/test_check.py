"""The report of `ctvr streams check`: the highest R@1 that captions allow, compared with a ranking by brute force."""

import dataclasses
import random
import re
from itertools import product

import pytest

from ctvr.orchestrator.streams.captions import correct_encoding, decode_entities
from ctvr.orchestrator.streams.check import check_stream, describe
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from tests.refusing import missing_from


def stream(galleries: list[list[list[str]]], protocol: str = "ctvr") -> Stream:
    """Return a stream whose test videos have these captions; there is a list of videos for each task."""
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
    """Return the highest R@1 over all choices of one first video for each text; each video has a list of captions."""
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
        ([[["a dog."], ["a dog ."], ["a cat"]]], 66.67),  # equal tokens of unequal texts
        ([[["dog " * 75 + "x"], ["dog " * 75 + "y"]]], 50.0),  # the difference is cut
        ([[["dog " * 74 + "x"], ["dog " * 74 + "y"]]], None),
        ([[["a dog", "a dog"], ["a dog"]]], 66.67),  # the video that has it oftenest comes first
        ([[["a dog"]], [["a dog"]]], 50.0),  # one gallery of all tasks
    ],
)
def test_a_caption_of_several_videos_can_find_one_of_them_first(
    galleries: list[list[list[str]]], wanted: float | None
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


GARBLED = {
    "don\u00e2\u20ac\u2122t": "don\u2019t",
    "don\u00e2\x80\x99t": "don\u2019t",
    "a caf\u00c3\u00a9": "a caf\u00e9",
    "\u00e5\u00b0\x8f\u00e7\u0152\u00ab": "\u5c0f\u732b",
    "a dog &amp; a cat": "a dog & a cat",
    "it&#39;s &lt;b&gt;": "it's <b>",
    "it&amp;#x27;s": "it's",
    "caf&eacute; don\u00e2\u20ac\u2122t": "caf\u00e9 don\u2019t",
}


@pytest.mark.parametrize("caption", GARBLED)
def test_garbled_captions_are_corrected(caption: str) -> None:
    assert correct_encoding(decode_entities(caption)) == GARBLED[caption]


@pytest.mark.parametrize(
    "caption",
    [
        "R&D; AT&T",
        "a &copy sign",
        "\u00abCAF\u00c9\u00bb",
        "\u201ccaf\u00e9\u201d\u2014he",
        "\u5c0f\u732b",
        "&nosuch;",
        "5 \u20ac",
    ],
)
def test_other_captions_keep_their_characters(caption: str) -> None:
    assert correct_encoding(decode_entities(caption)) == caption


def test_garbled_captions_are_counted() -> None:
    made = stream([[["a dog &amp; a cat", "x"], ["don\u00e2\u20ac\u2122t"], ["it&#39;s"], ["a \ufffd"]]])
    _, *lines = check_stream(made).splitlines()
    found = [line for line in lines if "captions" in line or "caption " in line]
    assert len(found) == 3
    assert found[0].startswith("3 captions contain HTML entities, such as 'a dog &amp; a cat' of t0v0.")
    assert found[1].startswith("1 caption contains text in a wrong encoding, such as 'don\u00e2\u20ac\u2122t' of t0v1.")
    assert found[2].startswith("1 video has captions with lost characters (U+FFFD), first t0v3.")
    assert all("ctvr streams import ... --correct-captions" in line for line in found[:2])
    assert "HTML" not in check_stream(stream([[["R&D"], ["caf\u00e9"]]]))


def of_items(*items: tuple[str, str, tuple[float, float] | None]) -> Stream:
    """Return a stream of one task with these ids, files and segments: the first item is for training, the others are
    searched.
    """
    made = tuple(Item(video, f"/none/{file}", segment, "c", (f"a {video}",)) for video, file, segment in items)
    return Stream("s", (StreamTask("task_1", ("c",), made[:1], (), made[1:]),), "ctvr", False)  # type: ignore[arg-type]


def test_two_ids_of_one_file_are_named() -> None:
    report = check_stream(of_items(("v0", "v0.mp4", None), ("v0.mp4", "v0.mp4", None), ("v1", "v1.mp4", None)))
    assert "1 file has more than one id (v0 and v0.mp4). Each id counts as a separate video. Keep one id." in report
    assert "more than one id" not in check_stream(of_items(("v0", "v0.mp4", (0, 1)), ("v1", "v0.mp4", (1, 2))))


def test_a_video_with_segments_in_train_and_test_is_named() -> None:
    report = check_stream(of_items(("v0@0-1", "v0.mp4", (0, 1)), ("v0@1-2", "v0.mp4", (1, 2)), ("v1", "v1.mp4", None)))
    assert "1 video has segments in train and in other splits (v0@0-1 in train, v0@1-2 in test)" in report
    apart = check_stream(of_items(("v0", "v0.mp4", None), ("v1@0-1", "v1.mp4", (0, 1)), ("v1@1-2", "v1.mp4", (1, 2))))
    assert "segments in train" not in apart


def test_control_characters_are_counted_and_line_breaks_are_not() -> None:
    report = check_stream(stream([[["a\0b", "x"], ["a\x07b"], ["a\nb"], ["a\u2028b"]]]))
    assert "3 captions contain control characters, such as one of t0v0." in report  # t0v0 trains, too


def test_bounds_of_more_ranks_are_those_below_100() -> None:
    report = check_stream(stream([[["a dog"]] * 12]))
    assert re.findall(r"R@(\d+) is at most (\d+\.\d+)", report) == [("1", "8.33"), ("5", "41.67"), ("10", "83.33")]
    assert "R@5" not in check_stream(stream([[["a dog"]] * 5]))


def test_cut_captions_and_those_that_become_equal_are_counted() -> None:
    long = "dog " * 75
    made = stream([[["short"], [long + "x", "short"], [long + "y"], [long + "y z"], ["cat " * 99]]])
    line = next(line for line in check_stream(made).splitlines() if "77 tokens" in line)
    assert missing_from(line, "4 of 7", "t0v1", 3) == []  # t0v0 trains, too
    assert "77" not in check_stream(stream([[["dog " * 75]]]))
    assert "77" not in check_stream(dataclasses.replace(made, text_features="features.npz"))


def test_the_description_counts_videos_and_captions() -> None:
    found = describe(stream([[["a", "b"], ["c"]], [["d"]]]))
    assert found.splitlines()[0] == "task_0: 1 category; train 1 video, 2 captions; test 2 videos, 3 captions"
    assert len(found.splitlines()) == 2
