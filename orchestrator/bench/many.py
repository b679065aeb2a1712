"""The start of a trial on a stream of 100,000 videos that are all in the store (`make bench ARGS=--shows`)."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.bench.hot import HotPath
from orchestrator.bench.work import Work
from orchestrator.data.frames import FrameSource
from orchestrator.data.prepare import prepare_stream
from orchestrator.data.settings import DataConfig
from orchestrator.digests import digest_of
from orchestrator.store.packs import KIND
from orchestrator.store.store import Store
from orchestrator.streams.load import load_stream
from orchestrator.streams.videos import look

TASKS = 10
SPLITS = ("train", "test")
TOGETHER = 18  # videos of 12 frames of 224 that decoding puts into a pack


def many(root: Path, is_toy: bool) -> HotPath:
    """Manifest to stream, every file looked at, every key known, the store's packs listed and their records read.

    The files and the objects hold nothing: neither is read. The plain way asks for each digest by itself.
    """
    count = 2_000 if is_toy else 100_000
    manifest = _write(root, count)
    store = Store.open(str(root / "store"))
    folder = root / "store" / KIND / "frames"
    folder.mkdir(parents=True)

    def source() -> FrameSource:
        return FrameSource(store, DataConfig(num_frames=12), 224)

    stream = load_stream(str(manifest), root)
    items = [item for index in range(TASKS) for split in SPLITS for item in stream.items(index, split)]
    keys = list(source().keys(items, look(stream))[0].values())
    for first in range(0, count, TOGETHER):
        some = keys[first : first + TOGETHER]
        pack = digest_of(["frames", some])
        (folder / f"{pack}.safetensors").touch()
        store.put_json(KIND, f"frames/{pack}", {"keys": some})

    def start() -> None:
        prepare_stream(load_stream(str(manifest), root), source(), SPLITS, progress=False)

    def one_by_one() -> None:
        stream, asked = load_stream(str(manifest), root), source()
        for index in range(TASKS):
            for split in SPLITS:
                for item in stream.items(index, split):
                    asked.key(item)
        prepare_stream(stream, asked, SPLITS, progress=False)

    title, against = f"a trial on {count:,} videos, to its first task", "each digest asked for by itself"
    ours: Work = start
    return HotPath(title, against, ours, one_by_one, 3, is_gemm=False, has_memory=False)


def _write(root: Path, count: int) -> Path:
    """A manifest of `count` files, nine of ten for training."""
    videos = root / "videos"
    videos.mkdir(parents=True)
    tasks = []
    for index in range(TASKS):
        items = []
        for number in range(index * count // TASKS, (index + 1) * count // TASKS):
            path = f"video{number:06d}.mp4"
            (videos / path).write_text(path)
            captions = [f"somebody does thing {number}"]
            items.append({"video": path[:-4], "path": path, "category": f"c{index}", "captions": captions})
        cut = len(items) * 9 // 10
        task = {"name": f"task_{index}", "categories": [f"c{index}"], "train": items[:cut], "test": items[cut:]}
        tasks.append(task)
    manifest = root / "many.json"
    text = json.dumps({"format": 1, "name": "many", "protocol": "ctvr", "videos": "videos", "tasks": tasks})
    manifest.write_text(text, encoding="utf-8")
    return manifest
