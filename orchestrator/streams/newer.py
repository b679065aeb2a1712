"""A second set of features of a stream's videos and captions, for an upgrade of the embedder (`upgrade.stream`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import SPLITS, Item, Stream


def with_newer(stream: Stream, name: str, root: Path) -> Stream:
    """Return a stream whose tasks after an upgrade have the features of the stream `name`.

    Args:
        stream: a stream with features of videos and captions.
        name: name or manifest of the second stream; if empty, `stream` is returned unchanged.
        root: the data folder, as in `load_stream`.

    Raises:
        ConfigError: for an unknown stream, a stream without features, or one with other videos, captions or tasks; the
            message names the first difference.
    """
    if not name:
        return stream
    for each, setting in ((stream, "stream"), (newer := _load(name, root), "upgrade.stream")):
        if not (each.domain == "videos" and each.has_features and each.text_features):
            fault = f"{each.name} does not have features of videos and captions, which upgrade.stream={name} replaces"
            raise ConfigError(fault, setting, remedy="Use a stream of `ctvr streams import features` with text=.")
    require_same(stream, newer, name)
    return replace(stream, newer=newer)


def require_same(stream: Stream, newer: Stream, name: str) -> None:
    """Refuse a second stream with different tasks, videos or captions; `name` is the name that the user gave.

    Raises:
        ConfigError: with the first difference.
    """
    if different := find_first_difference(stream, newer):
        remedy = f"Import the new features with the table of {stream.name}, and add the same suffixes to the name."
        raise ConfigError(f"{name} differs from {stream.name}: {different}", "upgrade.stream", remedy=remedy)


def _load(name: str, root: Path) -> Stream:
    try:
        return load_stream(name, root, render=False)
    except ConfigError as error:
        raise error.at("upgrade.stream") from error


def find_first_difference(old: Stream, new: Stream) -> str:
    """Describe the first difference of two streams in tasks, videos or captions; return "" if there is none."""
    for task, other in zip(old.tasks, new.tasks):
        for split in SPLITS:
            items, others = getattr(task, split), getattr(other, split)
            for item, its in zip(items, others):
                if said := _difference(item, its):
                    return f"{task.name}, {split}: {said}"
            if len(items) != len(others):
                return f"{task.name}, {split}: {len(others)} videos, not {len(items)}"
        if task.categories != other.categories:
            return f"{task.name}: categories {', '.join(other.categories)}, not {', '.join(task.categories)}"
    if len(old.tasks) != len(new.tasks):
        return f"{len(new.tasks)} tasks, not {len(old.tasks)}"
    return f"protocol {new.protocol}, not {old.protocol}" if old.protocol != new.protocol else ""


def _difference(item: Item, other: Item) -> str:
    if item.video != other.video:
        return f"video {other.video!r:.60}, not {item.video!r:.60}"
    for caption, its in zip(item.captions, other.captions):
        if caption != its:
            return f"video {item.video!r:.60} has caption {its!r:.60}, not {caption!r:.60}"
    if len(item.captions) != len(other.captions):
        return f"video {item.video!r:.60} has {len(other.captions)} captions, not {len(item.captions)}"
    return f"video {item.video!r:.60} has category {other.category!r:.60}" if item.category != other.category else ""
