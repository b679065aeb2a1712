"""Chunks of a stream end where the words of its captions change."""

import random

import pytest

from ctvr.orchestrator.streams.drift import DELTA, LEAST, THRESHOLD, PageHinkley, changes, chunk_ends
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses


def drawn(words: str, count: int, seed: int) -> list[tuple[str, ...]]:
    """Return captions of `count` videos, two each, of five words that are drawn from a list."""
    random_words = random.Random(seed)
    return [tuple(" ".join(random_words.choices(words.split(), k=5)) for _ in "ab") for _ in range(count)]


def test_the_test_adds_what_exceeds_the_mean_and_delta():
    """Every step is computed by hand: m falls by delta, then rises; the alarm is its distance from its minimum."""
    test = PageHinkley(delta=0.5, threshold=2.0)
    numbers = [1.0, 1.0, 4.0, 4.0]
    m, least, expected = 0.0, 0.0, []
    for count in range(1, 5):
        m += numbers[count - 1] - sum(numbers[:count]) / count - 0.5
        least = min(least, m)
        expected.append(m - least > 2.0)
    assert [test.add(x) for x in numbers] == expected == [False, False, False, True]


def test_numbers_that_fall_or_stay_raise_no_alarm():
    for numbers in ([3.0] * 1000, [1000 / n for n in range(1, 1000)], [n % 2 * DELTA for n in range(1000)]):
        test = PageHinkley()
        assert not any(test.add(x) for x in numbers)
    assert any(PageHinkley().add(x) for x in (0.0, 2 * THRESHOLD + 3 * DELTA)) is False  # the mean follows at first


def test_a_change_is_found_soon_after_it_and_no_other():
    one, two = drawn("red green blue circle square", 60, 0), drawn("red green tall small wide", 60, 1)
    (found,) = changes([*one, *two])
    assert 60 <= found < 70
    assert changes([*one, *drawn("red green blue circle square", 60, 2)]) == []
    assert changes([*one[: LEAST - 1], *two]) == [], "the first videos are only counted"
    assert changes([("",)] * 40) == changes([]) == []


def test_a_chunk_ends_at_a_change_or_when_it_is_full():
    texts = [*drawn("a b c d e", 60, 0), *drawn("f g h i j", 60, 1)]
    (change,) = changes(texts)
    assert chunk_ends(texts, 200) == [change, 120]
    assert chunk_ends(texts, 40) == [40, change, change + 40, 120]
    assert chunk_ends(texts, change - 3) == [change - 3, 2 * (change - 3), 120], "a change in a new chunk cuts none off"
    assert chunk_ends(texts[:5], 40) == [5]


@pytest.mark.parametrize(("name", "longest"), [("shapes-5", 48), ("shapes-5@3", 64), ("shapes-5_blurry10", 64)])
def test_every_video_is_learned_in_the_task_in_which_its_chunk_is_complete(tmp_path, name, longest):
    written, _, order = name.partition("@")
    whole = f"{written}_drift{longest}" + (f"@{order}" if order else "")
    plain, hidden, again = (load_stream(each, tmp_path, render=False) for each in (name, whole, whole))
    assert hidden == again
    assert hidden.name == f"{plain.name}_drift{longest}"
    assert hidden.settings == plain.settings
    assert hidden.digest != plain.digest
    arrives = {item.video: place for place, task in enumerate(plain.tasks) for item in task.train}
    chunks = [[item.video for item in chunk.train] for chunk in hidden.method_tasks]
    assert sorted(video for chunk in chunks for video in chunk) == sorted(arrives)
    assert max(map(len, chunks)) <= longest
    for place in range(len(plain.tasks)):
        for number in hidden.learned_in(place):
            assert max(arrives[video] for video in chunks[number]) == place
    assert len(hidden.learned_in(0)) > 0
    assert [task.test for task in hidden.tasks] == [task.test for task in plain.tasks]


def test_boundaries_of_an_embedded_stream_are_found_within_two_videos(tmp_path):
    """docs/protocol.md states this."""
    hidden = load_stream("shapes-5_drift48", tmp_path, render=False)
    ends, total = [], 0
    for chunk in hidden.method_tasks:
        total += len(chunk.train)
        ends.append(total)
    assert ends == [48, 65, 113, 130, 178, 193, 241, 258, 306, 320]


def test_a_length_that_the_first_task_does_not_reach_is_refused(small_stream):
    with refuses("small_drift10", "4", "_drift10"):
        small_stream.cut_at_drift(10)
