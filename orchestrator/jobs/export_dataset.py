"""`ctvr streams export STREAM FOLDER --hf`: a stream as a folder that Hugging Face's `datasets` reads.

The form is that of its VideoFolder: `train/`, `validation/` and `test/` with a file for each video and one
`metadata.jsonl`, whose lines name the file beside them and say the rest; `README.md` is the card, with the splits.
`stream.json` holds what no line can say (protocol, order of tasks and categories, recommended settings), so that the
folder comes back as the stream that it was (importers/hf_dataset.py).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.output_dir import create_output_dir, require_empty
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import SPLITS, Item, Stream, StreamTask
from ctvr.orchestrator.streams.videos import FOLDERS, METADATA, STREAM, missing_videos


def export_dataset(name: str, execution: ExecutionConfig, out: Path, licence: str = "") -> str:
    """Write a stream into a folder; returns what was written and how it is read again.

    Videos are hard links to those of the stream where the disk allows it, else copies: two items that are segments of
    one video have a file each, since a line of metadata stands for a file.

    Args:
        name: a stream, or a manifest.
        execution: runs folder, videos.
        out: the folder, new.
        licence: of videos and captions, as the hub names it; "" leaves the line `license: other`.

    Raises:
        ConfigError: for a folder that is not empty, a stream of images or features, videos that are missing or are
            folders of frames, or a disk that is full.
    """
    require_empty(out)
    places, manifest = execution.places(), find_manifest(name)
    stream = load_stream(manifest, places.root, places.videos, render=False)
    if stream.domain == "images" or stream.has_features:
        kind = "images" if stream.domain == "images" else "features"
        raise ConfigError(f"--hf: stream {stream.name} has {kind}, and the folder is one of videos. Leave --hf out.")
    create_output_dir(out)
    stream = load_stream(manifest, places.root, places.videos)  # now that nothing is wrong, videos may be rendered
    if missing := missing_videos(stream):
        raise ConfigError(
            f"--hf: {len(missing)} videos of {stream.name} are missing, {missing[0].path} for example. "
            f"`ctvr streams check {stream.name}` lists them."
        )
    lines: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    try:
        for split in SPLITS:
            items = [(task, item) for task in stream.tasks for item in getattr(task, split)]
            lines[split] = list(_files(items, out / FOLDERS[split]))
        for split, rows in lines.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            if rows:
                (out / FOLDERS[split] / METADATA).write_text(text, encoding="utf-8")
        (out / STREAM).write_text(json.dumps(_about(stream), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        (out / "README.md").write_text(_card(stream, lines, licence), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror}). Name a folder with more room.") from error
    counts = ", ".join(f"{FOLDERS[split]} {len(rows)}" for split, rows in lines.items() if rows)
    return (
        f"written: {out} ({counts} videos)\n"
        f"elsewhere: datasets.load_dataset({str(out)!r}); here again: ctvr streams import hf folder={out} --name NAME\n"
        f"upload it by yourself: hf upload OWNER/NAME {out} --repo-type dataset"
    )


def _files(items: list[tuple[StreamTask, Item]], folder: Path) -> Iterator[dict[str, Any]]:
    """Put each item's video into the folder of its split; its line of the metadata."""
    if items:
        folder.mkdir()
    taken: set[str] = set()
    for task, item in items:
        source = Path(item.path)
        if not source.is_file():
            raise ConfigError(f"--hf: {item.path} is a folder of frames, not a video. Leave --hf out.")
        stem = re.sub(r"[^\w.@-]", "_", item.video).lstrip(".") or "video"
        stem = stem.removesuffix(source.suffix)
        file = next(name for name in _names(stem, source.suffix) if name.casefold() not in taken)
        taken.add(file.casefold())
        try:
            os.link(source.resolve(), folder / file)
        except OSError:  # another disk, or one without links
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
        }


def _names(stem: str, ending: str) -> Iterator[str]:
    yield f"{stem}{ending}"
    number = 2
    while True:
        yield f"{stem}-{number}{ending}"
        number += 1


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
    """README.md: what the hub reads at its head, then what a person does."""
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
a model learns the pairs of a task's `train` split, and is asked among the `test` videos of all tasks so far.

| task | categories | {" | ".join(FOLDERS[split] for split in splits)} |
|---|---|{"--:|" * len(splits)}
{counts}

Columns: `video`, `video_id`, `captions` (a list), `category`, `task`, `start` and `end` (seconds within the file; null:
all of it), `twin` (the same scene backwards, if there is one). Digest of the videos' names, captions, categories, tasks
and splits: `{stream.digest}`.
"""
