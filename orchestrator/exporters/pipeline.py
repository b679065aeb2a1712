"""Export of the captions and videos of a table as features, for any embedder: the shared part of all scripts.

A script of `ctvr streams export-script` combines one embedder's modules of this package and ctvr's readers in one file
(script.py). The modules use other packages of ctvr only inside functions, because those follow later in the file.

Shapes: T frames, H x W pixels, d dimensions of a vector.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ctvr.orchestrator.data.array_files import CANARIES
from ctvr.orchestrator.errors import ConfigError, CtvrError, VideoError
from ctvr.orchestrator.exporters.embedder import PRECISIONS, Embedder, embed_captions, embed_clips, load
from ctvr.orchestrator.importers.builder import VideoFolder
from ctvr.orchestrator.importers.csv_table import name_segments, read_segments
from ctvr.orchestrator.vectors.canaries import CLIPS, FPS, FRAMES, TEXTS, clips
from ctvr.orchestrator.vectors.card import CARD, KEYS
from ctvr.orchestrator.video.decode import decode
from ctvr.orchestrator.video.sampling import NATIVE, Sampling, choose_frames

TEXT_FILE, PARTS, PART = "texts.npy", ".texts", 1024  # PART: captions per partial file
NEWS = 30.0  # seconds between lines of progress


@dataclass(frozen=True)
class Video:
    """A video of the table: its ID in ctvr, its file, and the seconds of its segment."""

    name: str
    path: Path
    segment: tuple[float, float] | None


def run(
    make: Callable[[argparse.Namespace], Embedder], parser: argparse.ArgumentParser, packages: str, **defaults: Any
) -> int:
    """Run a script and return its exit status: 0 done, 1 some videos cannot be read, 2 wrong input, 130 stopped.

    Args:
        make: function that loads the model.
        parser: parser with the options of the model.
        packages: the packages that the model needs, as arguments of pip.
        defaults: defaults of options that differ from those of other scripts.
    """
    _add_options(parser)
    parser.set_defaults(**defaults)
    options = parser.parse_args()
    try:
        rows = list(read_segments(options.table))
        names = name_segments(key for key, _, _ in rows)
        _check(options, names)
        videos = _find_videos(options, names) if options.videos is not None else {}
        return _export(load(make, options, packages), rows, videos)
    except torch.OutOfMemoryError:
        fault = f"error: --batch-size: a pass does not fit in the memory of {options.device} (got {options.batch_size})"
        print(f"{fault}. Use a smaller number.", file=sys.stderr)
    except (CtvrError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    return 2


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--table", type=Path, required=True, metavar="FILE", help="table of `ctvr streams import features`")
    add("--videos", type=Path, metavar="FOLDER", help="folder of the videos (default: embed captions only)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder for the features; a killed export continues")
    add("--num-frames", type=_count, default=12, metavar="N", help="frames of each video (default: %(default)s)")
    rules, decoders = ("segments", "linspace"), ("pyav", "decord", "torchcodec", "auto")
    add(
        "--sampling",
        choices=rules,
        default=rules[0],
        help="rule that selects frames, data.sampling of ctvr (default: %(default)s)",
    )
    add(
        "--decoder",
        choices=decoders,
        default=decoders[0],
        help="decoder of videos, data.decoder of ctvr (default: %(default)s)",
    )
    add("--batch-size", type=_count, default=64, metavar="N", help="inputs of one pass (default: %(default)s)")
    add("--workers", type=_count, default=4, metavar="N", help="threads that decode videos (default: %(default)s)")
    add("--precision", choices=PRECISIONS, default="float32", help="number format (default: %(default)s)")
    add("--normalize", choices=("unit", "none"), help="length of stored vectors (default: as in the model's own use)")
    add("--prompt", default="{}", metavar="TEXT", help="text around each caption, such as 'a video of {}'")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, metavar="NAME", help="device of torch (default: cuda, or cpu without a GPU)")
    add("--skip-bad", action="store_true", help="omit videos that cannot be read, and write a table without them")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text!r}")
    return int(text)


def _check(options: argparse.Namespace, names: dict[tuple[str, Any], str]) -> None:
    """Refuse a table or options that would fail after the slow work."""
    if not names:
        raise ConfigError("has a header but no rows", options.table, remedy="Add a row for each caption.")
    if "{}" not in options.prompt:
        raise ConfigError("does not contain {}, where the caption goes", "--prompt", options.prompt, "Add {} to it.")
    for name in names.values():
        parts = Path(name).parts
        is_path = bool(parts) and not any(part.startswith(".") for part in parts)  # the import skips hidden files
        if name == Path(TEXT_FILE).stem or name.startswith("/") or not is_path:
            raise ConfigError("cannot be the name of a file of features", options.table, name, "Rename this video.")


def _find_videos(options: argparse.Namespace, names: dict[tuple[str, Any], str]) -> dict[tuple[str, Any], Video]:
    """Map (name, segment) in the table to the video; a missing file is reported when it is read."""
    folder, found = VideoFolder(options.videos), {}
    for (video, segment), name in names.items():
        path, is_cut = folder.find(video)
        found[video, segment] = Video(name, options.videos / path, None if is_cut else segment)
    return found


def _export(
    embedder: Embedder,
    rows: list[tuple[tuple[str, Any], dict[str, str], list[str]]],
    videos: dict[tuple[str, Any], Video],
) -> int:
    options = embedder.options
    out: Path = options.out
    _write_card(embedder, out)
    captions = list(dict.fromkeys(caption for _, _, found in rows for caption in found))
    vectors = dict(zip(captions, _embed_all_captions(embedder, captions, out / PARTS)))
    bad = _embed_videos(embedder, list(videos.values()))
    kept = [row for row in rows if not options.skip_bad or videos.get(row[0]) not in bad]
    table: Path = options.table
    if not kept:
        raise ConfigError("contains no video that can be read", options.videos, remedy="Correct the folder.")
    if len(kept) < len(rows):
        table = out / "table.csv"
        _publish(table, _to_csv([cells for _, cells, _ in kept]))
    _save(out / TEXT_FILE, np.stack([vectors[caption] for _, _, found in kept for caption in found]))
    if bad and not options.skip_bad:
        fault = f"{len(bad)} of {len(videos)} videos cannot be read. Repair them and repeat the command, or add"
        print(f"error: {fault} --skip-bad.", file=sys.stderr)
        return 1
    shutil.rmtree(out / PARTS, ignore_errors=True)
    features = shlex.quote(str(out)) if videos else "FEATURES_OF_VIDEOS"
    files = f"table={shlex.quote(str(table))} features={features} text={shlex.quote(str(out / TEXT_FILE))}"
    print(f"next: ctvr streams import features {files} --name NAME")
    return 0


def _write_card(embedder: Embedder, out: Path) -> None:
    """Write the card and the vectors of the canaries.

    Raises:
        ConfigError: if the folder contains another card.
    """
    options = embedder.options
    texts = embed_captions(embedder, list(TEXTS.values()))
    sides = {"text_ids": np.array(list(TEXTS)), "texts": texts}
    if embedder.has_videos:
        seconds = np.arange(FRAMES) / FPS
        chosen = choose_frames(seconds, options.num_frames, None, options.sampling)
        given = [embedder.prepare(clips()[name][chosen], seconds[chosen]) for name in CLIPS]
        made = [embed_clips(embedder, [each])[0].mean(axis=0) for each in given]
        sides = {"video_ids": np.array(CLIPS), "videos": np.stack(made), **sides}
    decoders = {"pyav": ("av",), "auto": ("av", "decord")}.get(options.decoder, ("av", options.decoder))
    values: dict[str, Any] = {**embedder.card, "width": texts.shape[1]}
    values["libraries"] = _versions("torch", "numpy", "pillow", *decoders, *embedder.libraries)
    lines = [f"{key}: {json.dumps(values[key], ensure_ascii=False)}\n" for key in KEYS if values.get(key)]
    card, text = out / CARD, "".join(lines)
    if card.exists() and (before := card.read_text(encoding="utf-8")) != text:
        other = next((line for line in before.splitlines() if f"{line}\n" not in lines), "")
        fault = "belongs to an export by another model or other settings"
        raise ConfigError(fault, card, other, "Use another folder as --out, or remove this one.")
    if not card.exists():
        if embedder.has_videos:
            file = io.BytesIO()
            np.savez(file, **sides)  # type: ignore[arg-type]
            _publish(out / CANARIES, file.getvalue())
        _publish(card, text.encode())


def _versions(*names: str) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _embed_all_captions(embedder: Embedder, captions: list[str], folder: Path) -> Iterator[np.ndarray]:
    """Yield the vector (d,) of each caption; finished parts are in files, so that a killed export continues."""
    for start in range(0, len(captions), PART):
        part = captions[start : start + PART]
        file = folder / f"{hashlib.sha256(json.dumps(part).encode()).hexdigest()}.npy"
        if not file.exists():
            _save(file, embed_captions(embedder, part))
        yield from np.load(file)


def _embed_videos(embedder: Embedder, videos: list[Video]) -> dict[Video, str]:
    """Write the features of each video; return the unreadable videos with the reasons.

    Videos that one pass embeds are embedded again together if one is missing, because rounding depends on the batch.
    """
    options, size = embedder.options, embedder.clips_at_once
    files = {video: options.out / f"{video.name}.npy" for video in videos}
    groups = [videos[start : start + size] for start in range(0, len(videos), size)]
    waiting = [group for group in groups if not all(files[video].exists() for video in group)]
    bad: dict[Video, str] = {}
    done, count, start = 0, sum(map(len, waiting)), time.monotonic()
    last = start
    for group, found in _decode_ahead(embedder, waiting):
        for video, clip in zip(group, found):
            if isinstance(clip, VideoError):
                bad[video] = str(clip)
                print(f"bad video {video.name}: {clip}", file=sys.stderr)
        good = [(video, clip) for video, clip in zip(group, found) if video not in bad]
        for (video, _), vectors in zip(good, embed_clips(embedder, [clip for _, clip in good]) if good else ()):
            _save(files[video], vectors)
        done, now = done + len(group), time.monotonic()
        if now - last > NEWS or done == count:
            print(f"{done} of {count} videos, {done / (now - start):.1f} a second", file=sys.stderr)
            last = now
    return bad


def _decode_ahead(embedder: Embedder, groups: list[list[Video]]) -> Iterator[tuple[list[Video], list[Any]]]:
    """Yield each group with its prepared clips, or the errors of unreadable videos; threads decode ahead."""
    options = embedder.options
    sampling = Sampling(options.num_frames, NATIVE, options.sampling)

    def read(video: Video) -> Any:
        try:
            found = decode(video.path, sampling, video.segment, options.decoder)
        except VideoError as error:
            return error
        is_folder = bool(np.isnan(found.timestamps).any())  # its images count as one per second
        seconds = np.arange(len(found.frames), dtype=np.float64) if is_folder else found.timestamps
        return embedder.prepare(found.frames, seconds)

    ahead: deque[tuple[list[Video], list[Future[Any]]]] = deque()
    with ThreadPoolExecutor(options.workers) as pool:
        for group in groups:
            ahead.append((group, [pool.submit(read, video) for video in group]))
            if sum(len(each) for each, _ in ahead) > 2 * options.workers:
                ready, clips = ahead.popleft()
                yield ready, [clip.result() for clip in clips]
        for ready, clips in ahead:
            yield ready, [clip.result() for clip in clips]


def _to_csv(rows: list[dict[str, str]]) -> bytes:
    """Return rows as the text of a .csv file, without empty columns."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _save(path: Path, array: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    _publish(path, file.getvalue())


def _publish(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that a killed export does not leave a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{hashlib.sha256(path.name.encode()).hexdigest()[:16]}.part")
    new.write_bytes(content)
    os.replace(new, path)
