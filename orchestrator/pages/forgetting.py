"""The forgetting explorer: queries that were found after their task but not at the end, and the videos found instead.

A rank can fall because the gallery has grown or because the model has changed. If the video that is now first was in
the gallery before, the query is *forgotten*. If that video came with a later task, the query is *outnumbered*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.video.thumbnails import Clip, Strip, image, strips, strips_note

ANCHOR = "forgotten"  # id of the explorer's heading
SHOWN = 12  # maximum lost queries with pictures of the unfolded run; half as many for other runs


@dataclass(frozen=True)
class LostQuery:
    """One query that was found first after its own task, but not after the last task."""

    text: str
    item: Item  # video of the query; `path` and `segment` of both items belong to the picture, "" without a picture
    task: int  # 0-based task of the query
    now: float  # mean rank of its video after the last task
    winner: Item  # the video that is first now
    winner_task: int

    @property
    def is_forgotten(self) -> bool:
        """Report whether the video that is now first was in the gallery before, so that the model is the cause."""
        return self.winner_task <= self.task


@dataclass(frozen=True)
class ModelHistory:
    """The found and lost queries of one run."""

    label: str
    found: int  # queries that were found first after their own task, without those of the last task
    lost: tuple[LostQuery, ...]
    reason: str = ""  # reason why the queries are unknown; empty if they are known
    is_open: bool = False  # whether its pictures are unfolded

    @property
    def shown(self) -> tuple[LostQuery, ...]:
        """Return the lost queries with pictures: forgotten queries first, because the model is their cause."""
        most = SHOWN if self.is_open else SHOWN // 2
        return tuple(sorted(self.lost, key=lambda lost: not lost.is_forgotten)[:most])


def lost_names(history: Sequence[Mapping[str, Rank]], task_of: Mapping[str, int]) -> tuple[int, list[str]]:
    """Return the number of queries that were found first after their own task, and the names of queries lost since.

    Queries of the last task are omitted. A query is found first if no video has a higher score than its own. The name
    with the largest mean rank is first.

    Args:
        history: query -> rank after each task.
        task_of: query -> its task, 0-based.
    """
    earlier = [name for name in history[-1] if task_of[name] < len(history) - 1]
    found = [name for name in earlier if (rank := history[task_of[name]].get(name)) and not rank.better]
    lost = [name for name in found if history[-1][name].better]
    return len(found), sorted(lost, key=lambda name: (-history[-1][name].mean, name))


def forgetting_explorer(memories: Sequence[ModelHistory], names: Sequence[str]) -> str:
    """Return the explorer as HTML, with a section for each run. `names` are the names of the tasks."""
    shown = [lost for memory in memories for lost in memory.shown]
    pictures = strips((item.path, item.segment) for lost in shown for item in (lost.item, lost.winner))
    has_none = shown and not any(item.path for lost in shown for item in (lost.item, lost.winner))
    parts = [
        f'<h2 id="{ANCHOR}">Forgotten queries</h2>',
        '<p class="soft">Captions that found their own video first when their task was learned, but not after the '
        "last task. <b>Forgotten</b>: the video that is first now was in the gallery before, so the model has changed. "
        "<b>Outnumbered</b>: it came with a later task.</p>",
        strips_note(not has_none) if shown else "",
    ]
    for memory in sorted(memories, key=lambda memory: not memory.is_open):
        if memory.reason:
            parts.append(f'<p class="soft">{escape(memory.label)}: {escape(memory.reason)}</p>')
            continue
        forgotten = sum(lost.is_forgotten for lost in memory.lost)
        parts.append(
            f"<h3>{escape(memory.label)}</h3><p>{memory.found} were found, {len(memory.lost)} of them are lost: "
            f"{forgotten} forgotten, {len(memory.lost) - forgotten} outnumbered. {_by_category(memory)}</p>"
        )
        cards = "\n".join(_card(lost, names, pictures) for lost in memory.shown)
        if cards:
            is_cut = len(memory.lost) > len(memory.shown)
            more = f": {len(memory.shown)} of {len(memory.lost)}, forgotten ones first" if is_cut else ""
            fold = "<details open>" if memory.is_open else "<details>"
            parts.append(f'{fold}<summary>lost{more}</summary><div class="grid">{cards}</div></details>')
    return "\n".join(parts)


def _by_category(memory: ModelHistory) -> str:
    counts = Counter(lost.item.category for lost in memory.lost).most_common()
    return escape("By category: " + ", ".join(f"{name} {count}" for name, count in counts) + ".") if counts else ""


def _card(lost: LostQuery, names: Sequence[str], pictures: Mapping[Clip, Strip]) -> str:
    word = "forgotten" if lost.is_forgotten else "outnumbered"
    own, other = ((item.path, item.segment) for item in (lost.item, lost.winner))
    said = lost.winner.captions[0] if lost.winner.captions else lost.winner.video
    return (
        f'<figure class="card"><p><b>{escape(lost.text)}</b></p>'
        f"<p><small>{escape(', '.join(dict.fromkeys((names[lost.task], lost.item.category))))}: "
        f"rank 1, now {lost.now:g} ({word})</small></p>"
        f"{_shown(own, lost.item, pictures, lost.text)}<p><small>now first, of {escape(names[lost.winner_task])}: "
        f"{escape(said)}</small></p>{_shown(other, lost.winner, pictures, said)}</figure>"
    )


def _shown(clip: Clip, item: Item, pictures: Mapping[Clip, Strip], said: str) -> str:
    """Return the picture of a video as HTML, or a line with its ID if `pictures` does not contain it."""
    return image(clip, pictures, said) or f'<p class="soft">video {escape(item.video)}</p>'
