"""Examples of a search are captions that the model answers with the right video."""

from ctvr.orchestrator.streams.example_queries import example_queries
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask


def stream_of(*items: Item) -> Stream:
    return Stream("s", (StreamTask("t", (), (), (), items),), "ctvr", has_val=False)


def item(video: str, category: str, *captions: str) -> Item:
    return Item(video, f"{video}.mp4", None, category, captions)


ITEMS = (
    item("a", "box", "a long caption of the first box", "a box"),
    item("b", "box", "another box"),
    item("c", "star", "a star that shines"),
    item("d", "star", "a\x1bstar"),
    item("e", "ring", "a ring"),
    item("f", "ring", "a ring"),
    item("g", "cross", "a cross"),
)
RANKS = {
    "a#0": Rank(0, 0),
    "a#1": Rank(0, 0),
    "b#0": Rank(0, 0),
    "c#0": Rank(0, 0),
    "d#0": Rank(0, 0),
    "e#0": Rank(0, 0),
    "f#0": Rank(0, 0),
    "g#0": Rank(1, 0),
}


def test_short_captions_that_find_their_video_first_come_first_each_of_another_category():
    found = example_queries(stream_of(*ITEMS), RANKS, 5)
    assert [(caption, each.video) for caption, each in found] == [
        ("a box", "a"),
        ("a ring", "e"),
        ("a star that shines", "c"),
        ("another box", "b"),
        ("a long caption of the first box", "a"),
    ]
    assert example_queries(stream_of(*ITEMS), RANKS, 2) == found[:2]


def test_ties_and_captions_without_a_rank_are_left_out():
    ranks = {"a#1": Rank(0, 1), "b#0": Rank(0, 0)}
    assert [caption for caption, _ in example_queries(stream_of(*ITEMS), ranks, 5)] == ["another box"]
    assert example_queries(stream_of(*ITEMS), {}, 5) == []
