"""Export of a stream to a folder for Hugging Face's `datasets` (`ctvr streams export STREAM FOLDER --hf`).

The folder has the VideoFolder format: `train/`, `validation/` and `test/` with a file for each video and a
`metadata.jsonl` with a line for each file. `README.md` is the dataset card, with the splits. `stream.json` contains the
protocol, the order of tasks and categories, and the recommended settings, so that the folder can be imported as the
same stream (importers/hf_dataset.py).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctvr.orchestrator.addresses import is_allowed
from ctvr.orchestrator.console import count
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.output_dir import new_folder, require_new
from ctvr.orchestrator.streams.load import plain_name
from ctvr.orchestrator.streams.stream import SPLITS, Item, Stream, StreamTask, iter_items
from ctvr.orchestrator.streams.videos import FOLDERS, METADATA, STREAM, drop_videos, missing_videos
from ctvr.orchestrator.video.container import container_of
from ctvr.orchestrator.video.endings import is_video_name


def export_dataset(name: str, execution: ExecutionConfig, out: Path, licence: str = "") -> str:
    """Write a stream to a folder; return the written files and the command that imports them.

    Videos are hard links to the stream's files if the disk allows it, otherwise copies. Two items that are segments of
    one video have a file each, because a line of metadata describes a file.

    Args:
        name: name of a stream, or a manifest file.
        execution: runs folder and videos.
        out: the new folder.
        licence: the Hub's name of the license of videos and captions; "" writes `license: other`.

    Raises:
        ConfigError: for a folder that is not empty, a stream of images, features or chunks, missing videos, videos
            outside the permitted folders, folders of frames, or a full disk.
    """
    require_new(out)
    manifest = find_manifest(name)
    stream = execution.load_stream(manifest, render=False)
    if stream.domain == "images" or stream.has_features:
        kind = "images" if stream.domain == "images" else "features"
        raise ConfigError(f"stream {stream.name} has {kind} instead of videos", "--hf", remedy="Omit --hf.")
    if stream.is_chunked:
        raise ConfigError(
            f"--hf: stream {stream.name} is cut into chunks, which a data set cannot represent. Omit _chunks or _drift."
        )
    stream = execution.load_stream(manifest)  # renders videos, after all checks
    if missing := missing_videos(stream):
        raise ConfigError(
            f"--hf: {count(len(missing), 'video is', 'videos are')} missing in {stream.name}, for example "
            f"{missing[0].path}. `ctvr streams check {stream.name}` lists them."
        )
    stream, notes = without_others(stream, manifest, execution, "--hf")
    lines: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with new_folder(out) as new:
        for split in SPLITS:
            items = [(task, item) for task in stream.tasks for item in getattr(task, split)]
            lines[split] = list(link_files(items, new / FOLDERS[split], "--hf"))
        for split, rows in lines.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            if rows:
                (new / FOLDERS[split] / METADATA).write_text(text, encoding="utf-8")
        (new / STREAM).write_text(json.dumps(_about(stream), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        (new / "README.md").write_text(_card(stream, lines, licence), encoding="utf-8")
    counts = ", ".join(f"{FOLDERS[split]} {len(rows)}" for split, rows in lines.items() if rows)
    notes = [f"written: {out} ({counts} videos)", *notes]
    return (
        "\n".join(notes) + "\n"
        f"load it: datasets.load_dataset({str(out)!r}); import it: ctvr streams import hf folder={out} --name NAME\n"
        f"upload it: hf upload OWNER/NAME {out} --repo-type dataset"
    )


def without_others(stream: Stream, manifest: str, execution: ExecutionConfig, option: str) -> tuple[Stream, list[str]]:
    """Return a stream without the files that must not be exported, and a list with a line about these files, if any.

    An untrusted manifest may name any file. A file is exported only if it is a video (by extension and first bytes) and
    its resolved path is below --videos or the manifest's folder (the runs folder, if `manifest` is a stream's name).

    Raises:
        ConfigError: if a task would keep no video of a split.
    """
    named = Path(plain_name(manifest))
    base = named.resolve().parent if named.is_file() else execution.runs.resolve()
    places = [base, *([execution.videos] if execution.videos else [])]
    others = {item.path: why for _, _, item in iter_items(stream) if (why := _why_not(Path(item.path), places))}
    if not others:
        return stream, []
    first, why = next(iter(others.items()))
    text = f"{count(len(others), 'file is', 'files are')} left out, for example {first} ({why})"
    try:
        kept = drop_videos(stream, [item for _, _, item in iter_items(stream) if item.path in others])
    except ConfigError as error:
        raise ConfigError(
            f"{text}, and a task keeps none", option, remedy="Pass the videos' folder: --videos FOLDER."
        ) from error
    return kept, [text]


def _why_not(file: Path, places: list[Path]) -> str:
    """Return the reason why a file is not exported; "" for a permitted video, or a folder (see `link_files`)."""
    if file.is_dir():
        return ""
    if not is_allowed(str(file), *places):
        return f"outside {' and '.join(map(str, places))}"
    if not is_video_name(file.name):
        return "not the name of a video"
    try:
        return "" if container_of(file) else "not a video"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def link_files(items: list[tuple[StreamTask, Item]], folder: Path, option: str) -> Iterator[dict[str, Any]]:
    """Link or copy each item's video to a folder; yield its metadata, including the file's name.

    Raises:
        ConfigError: for a folder of frames instead of a video; the message says to omit `option`.
    """
    if items:
        folder.mkdir()
    taken: set[str] = set()
    for task, item in items:
        source = Path(item.path)
        if not source.is_file():
            raise ConfigError(f"{item.path} is a folder of frames, not a video", option, remedy=f"Omit {option}.")
        stem = re.sub(r"[^\w.@-]", "_", item.video).lstrip(".") or "video"
        stem = stem.removesuffix(source.suffix)
        file = next(name for name in _names(stem, source.suffix) if name.casefold() not in taken)
        taken.add(file.casefold())
        try:
            os.link(source.resolve(), folder / file)
        except OSError:  # the target is on another disk, or its file system has no links
            shutil.copyfile(source, folder / file)
        start, end = item.segment or (None, None)
        yield {
            "file_name": file,
            "video_id": item.video,
            "captions": list(item.captions),
            "category": item.category,
            "task": task.name,
            "start": start,
            "end": end,
            "twin": item.twin,
            **({"answers": list(item.answers)} if item.answers else {}),
            **({"relevant": list(map(list, item.relevant))} if item.relevant else {}),
        }


def _names(stem: str, ending: str) -> Iterator[str]:
    yield f"{stem}{ending}"
    yield from (f"{stem}-{number}{ending}" for number in itertools.count(2))


def _about(stream: Stream) -> dict[str, Any]:
    return {
        "format": 1,
        "name": stream.name,
        "protocol": stream.protocol,
        "paper": stream.paper,
        "settings": dict(stream.settings),
        "tasks": [{"name": task.name, "categories": list(task.categories)} for task in stream.tasks],
        "digest": stream.digest,
    }


def _card(stream: Stream, lines: dict[str, list[dict[str, Any]]], licence: str) -> str:
    """Return the dataset card: the Hub's metadata, then a description."""
    splits = [split for split, rows in lines.items() if rows]
    files = "\n".join(f"  - split: {FOLDERS[split]}\n    path: {FOLDERS[split]}/**" for split in splits)
    counts = "\n".join(
        f"| {task.name} | {', '.join(task.categories)} | {' | '.join(str(len(getattr(task, s))) for s in splits)} |"
        for task in stream.tasks
    )
    return f"""---
pretty_name: {json.dumps(stream.name)}
license: {licence or "other"}
task_categories:
- text-retrieval
tags:
- continual-learning
- text-to-video-retrieval
configs:
- config_name: default
  drop_labels: true
  data_files:
{files}
---

# {stream.name}

{len(stream.tasks)} tasks of continual text-to-video retrieval (protocol `{stream.protocol}`), one after the other:
a model learns the pairs of a task's `train` split, and searches the `test` videos of all tasks so far.

| task | categories | {" | ".join(FOLDERS[split] for split in splits)} |
|---|---|{"--:|" * len(splits)}
{counts}

Columns: `video`, `video_id`, `captions` (a list), `category`, `task`, `start` and `end` (seconds within the file; null:
all of it), `twin` (the same scene backwards, if there is one). Digest of the videos' names, captions, categories, tasks
and splits: `{stream.digest}`.
"""
