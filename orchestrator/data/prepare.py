"""Decoding of every video of a stream before training, on this machine or on a cluster (`DecodeMissing`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ctvr.orchestrator import console
from ctvr.orchestrator.console import count
from ctvr.orchestrator.data.frames import Broken, FrameSource
from ctvr.orchestrator.digests import Identity
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import gc_disabled
from ctvr.orchestrator.processes import count_processors
from ctvr.orchestrator.store.gc import note_use
from ctvr.orchestrator.streams.stream import Item, Stream
from ctvr.orchestrator.streams.videos import drop_videos, missing_videos, scan_videos

HERE = max(2, min(8, count_processors()))  # concurrent decoding processes on this machine


class DecodeMissing(Protocol):
    """Function that decodes items into the store; see `FrameSource.decode_missing`."""

    def __call__(
        self, items: Sequence[Item], workers: int = 2, progress: Callable[[int], object] | None = None
    ) -> tuple[int, Broken]: ...


@dataclass(frozen=True)
class Prepared:
    """Result of `decode_stream`."""

    decoded: int  # videos that were not in the store
    known: int  # videos that were in the store
    missing: list[Item]  # items without a file
    broken: Broken  # items whose file cannot be decoded


def decode_stream(
    stream: Stream,
    source: FrameSource,
    splits: Sequence[str],
    workers: int = HERE,
    progress: bool = True,
    decode: DecodeMissing | None = None,
    seen: dict[str, Identity] | None = None,
) -> Prepared:
    """Decode every video of the splits that is not in the store, and record in the store that the stream uses them.

    Args:
        stream: stream of the videos.
        source: source of the frames, which has the store.
        splits: names of splits.
        workers: number of concurrent decoding processes.
        progress: whether to show a progress bar.
        decode: function that decodes the items; default `source.decode_missing`, on this machine.
        seen: result of `scan_videos`, if the caller has already called it.
    """
    with gc_disabled():
        seen = scan_videos(stream) if seen is None else seen
        missing = missing_videos(stream, seen)
        gone = {id(item) for item in missing}
        items = [
            item
            for index in range(len(stream.tasks))
            for split in splits
            for item in stream.items(index, split)
            if id(item) not in gone
        ]
        keys, unreadable = source.keys(items, seen)
        if keys:
            note_use(source.store, stream.name, list(keys.values()))
        present = source.store.filter_existing("frames", list(keys.values()))
        new = [item for item, key in keys.items() if key not in present]
    with console.progress(len(new), "decoding", is_shown=progress and bool(new)) as bar:
        decoded, broken = (decode or source.decode_missing)(new, workers, bar.update)
    return Prepared(decoded, len(keys) - len(new), missing, [*broken, *unreadable])


def passes(source: FrameSource, splits: Sequence[str]) -> list[tuple[FrameSource, tuple[str, ...]]]:
    """Return each frame source with the splits that it must decode; random sampling adds a source of candidates."""
    drawn = [(source.candidates, ("train",))] if source.candidates is not None and "train" in splits else []
    return [(source, tuple(splits)), *drawn]


def prepare_stream(
    stream: Stream,
    source: FrameSource,
    splits: Sequence[str],
    skip_missing: bool = False,
    workers: int = HERE,
    progress: bool = True,
    decode: DecodeMissing | None = None,
) -> tuple[Stream, int]:
    """Decode all frames of the splits into the store; other arguments as in `decode_stream`.

    Returns the stream, without missing and broken videos if `skip_missing`, and the number of decoded videos.

    Args:
        skip_missing: whether to continue without missing and broken videos.

    Raises:
        ConfigError: if videos are missing or broken and `skip_missing` is false. Broken videos do not prevent the
            decoding of other videos.
    """
    seen = scan_videos(stream)
    missing = missing_videos(stream, seen)
    if missing and not skip_missing:
        raise ConfigError(_describe_lost(stream, [(item, "no such file") for item in missing], "missing"))
    done = decode_stream(stream, source, splits, workers, progress, decode, seen)
    if done.broken and not skip_missing:
        raise ConfigError(_describe_lost(stream, [(item, error.reason) for item, error in done.broken], "broken"))
    lost = [*done.missing, *(item for item, _ in done.broken)]
    return (drop_videos(stream, lost) if lost else stream), done.decoded


def _describe_lost(stream: Stream, lost: list[tuple[Item, str]], what: str) -> str:
    names = ", ".join(f"{item.path} ({reason})" for item, reason in lost[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return (
        f"stream {stream.name}: {count(len(lost), 'video is', 'videos are')} {what}: {names}{more}. Repair them, "
        "or use data.skip_missing=true to continue without them (a smaller gallery raises R@k: not comparable with the "
        "paper)."
    )
