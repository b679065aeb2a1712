"""Captions that a trained model answers with the right video, offered as examples of a search."""

from __future__ import annotations

from collections.abc import Mapping

from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Item, Stream, iter_items

FIRST = Rank(0, 0)  # no other video has a higher or equal score


def example_queries(stream: Stream, ranks: Mapping[str, Rank], count: int = 1) -> list[tuple[str, Item]]:
    """Return distinct captions that find their own video first, each with its video, the shortest first.

    Args:
        ranks: query (`VIDEO#NUMBER`) -> its rank after the model's last task.
        count: maximum number of captions; they have different categories if the stream has enough categories.
    """
    found = [
        (len(caption), caption, item)
        for _, _, item in iter_items(stream)
        for number, caption in enumerate(item.captions)
        if ranks.get(f"{item.video}#{number}") == FIRST and caption.isprintable()
    ]
    found.sort(key=lambda entry: entry[:2])
    once = list({caption: (caption, item) for _, caption, item in reversed(found)}.values())[::-1]
    first = {item.category: caption for caption, item in reversed(once)}.values()  # of each category
    return sorted(once, key=lambda entry: entry[0] not in first)[:count]
