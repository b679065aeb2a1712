"""Small valid files for every reader; each function writes into a folder and returns the name of the file to damage."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def make_file(name: str, content: Callable[[], bytes]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content())
        return name

    return make


def make_json(name: str, value: Any) -> Callable[[Path], str]:
    return make_file(name, lambda: json.dumps(value, indent=1).encode())


def item(name: str, suffix: str = "mp4", **more: Any) -> dict[str, Any]:
    return {"video": name, "path": f"{name}.{suffix}", "category": "a", **more}


def manifest(protocol: str, suffix: str = "mp4", **more: Any) -> dict[str, Any]:
    tasks = [
        {
            "name": f"t{t}",
            "categories": ["a"],
            "train": [item(f"x{t}", suffix, **more)],
            "test": [item(f"y{t}", suffix, **more)],
        }
        for t in (1, 2)
    ]
    settings = {"data.num_frames": 2, "optim.epochs": 1}
    return {"format": 1, "name": "m", "protocol": protocol, "videos": ".", "settings": settings, "tasks": tasks}


TABLE = "video,caption,category,split,task,start,end\n" + "".join(
    f"v{i},a caption {i},c{i // 4},{('train', 'train', 'test', 'test')[i % 4]},{i // 4 + 1},{i}.0,{i}.5\n"
    for i in range(8)
)


ROWS = "".join(
    json.dumps(
        {
            "file_name": f"v{i}.mp4",
            "captions": ["a dog", "a cat"],
            "task": str(i),
            "category": "c",
            "start": 0,
            "end": i + 1,
        }
    )
    + "\n"
    for i in range(2)
)


ARRAYS = {f"v{i}": np.arange(18, dtype=np.float32).reshape(3, 6) + i for i in range(8)}


SPLIT = {part: {1: {"pets": [f"{part}0"]}, 2: {"cars": [f"{part}1"]}} for part in ("train", "val")}


QUESTIONS = [{"question": "what is it", "answer": "a dog", "video_id": n, "category_id": n} for n in range(20)]


SENTENCES = {"sentences": [{"video_id": f"v{n % 2}", "caption": f"caption {n}"} for n in range(4)]}


VIDEOS = {"videos": [{"video_id": "v0", "split": "train"}, {"video_id": "v1", "split": "test"}]}


NARRATIONS = {"v0": {"timestamps": [[0, 1.5], [2, 3]], "sentences": ["a dog runs", "it stops"], "duration": 3}}


VATEX = [{"videoID": "v0", "enCap": ["a dog", "a cat"]}, {"videoID": "v1", "enCap": ["a bird"]}]


YAML = (
    b"optim:\n  epochs: 8\n  weight_decay: 1.0e-3\nbase: &b {num_frames: 4}\n"
    b"data:\n  <<: *b\n  batch_size: 2\nmethod: zero_shot\nseed: 3\n"
)


PRESET = {
    "title": "A table",
    "protocol": "ctvr",
    "stream": "shapes-5",
    "seeds": 2,
    "settings": {"optim.epochs": 1},
    "search": {"trials": 2},
    "columns": ["memory"],
    "on": {"shapes-*": {"data.num_frames": 2}},
    "rows": [
        {"name": "lwf", "settings": {"method.weight": 1}, "notes": ["n"]},
        "zero_shot",
        {"name": "x y", "method": "lwf", "only": ["a"]},
    ],
}


PLAN = {
    "plan": {
        "sweep": "s",
        "tracking_uri": "x",
        "parent": "x",
        **dict.fromkeys(("root", "store", "storage"), "/x"),
        "presets": ["paper"],
    },
    "request": {
        "stream": "s",
        "name": "s",
        "overrides": {"optim.epochs": 1},
        "space": ["a=1,2"],
        "preset": {"title": "", "protocol": "any", "stream": "s", "rows": [{"name": "lwf", "method": "lwf"}]},
    },
    "where": {"nodes": 1, "address": None},
    "sources": "s",
}


TOLD = (
    {
        "op": "open",
        "stream": "s",
        "name": "n",
        "settings": {"a": "1"},
        "parent": None,
        "tags": {"ctvr.kind": "run", "ctvr.identity": "i"},
    },
    {"op": "is", "run_id": "abc"},
    {"op": "metrics", "values": [[1, "stream/r1", 0.5]], "time": 5},
    {"op": "text", "name": "a/b.txt", "text": "t"},
    {"op": "heatmap", "name": "m", "matrices": {"own": [[1, None]]}},
    {"op": "close", "status": "FINISHED", "time": 6},
)


JOURNAL = [
    {"sources": "s"},
    *({"row": "", "label": f"{n}", "about": {"number": n, "scores": {"1": 0.5}}} for n in range(3)),
]


def make_lines(name: str, values: Any) -> Callable[[Path], str]:
    return make_file(name, lambda: "".join(json.dumps({**each, "at": 1.5}) + "\n" for each in values).encode())


CARD = b"embedder: org/model\nrevision: 1\nlibraries: {numpy: 2.1}\nnormalisation: unit\nwidth: 4\nprompt: 'a {}'\n"


def make_canaries(folder: Path) -> str:
    from ctvr.orchestrator.vectors.canaries import CLIPS

    np.savez(folder / "canaries.npz", video_ids=list(CLIPS), videos=np.ones((len(CLIPS), 4), np.float32))
    return "canaries.npz"


def make_arrays(form: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from ctvr.orchestrator.data.arrays import write_arrays

        if form == "pkl":
            (folder / "a.pkl").write_bytes(pickle.dumps(ARRAYS))
            return "a.pkl"
        write_arrays(folder / f"a.{form}", ARRAYS.items())
        return f"a.{form}"

    return make


def make_npy(shape: tuple[int, ...]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        np.save(folder / "v0.npy", np.arange(int(np.prod(shape))).reshape(shape).astype(np.uint8))
        return "v0.npy"

    return make


def make_hf(damaged: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        for split in ("train", "test"):
            (folder / split).mkdir()
            (folder / split / "metadata.jsonl").write_text(ROWS.replace("v", "x") if split == "test" else ROWS)
        if damaged == "stream.json":
            about = {
                "name": "n",
                "protocol": "ctvr",
                "settings": {},
                "tasks": [{"name": t, "categories": ["c"]} for t in "01"],
            }
            (folder / damaged).write_text(json.dumps(about))
        return damaged

    return make


def make_questions(folder: Path) -> str:
    for number, split in enumerate(("train", "val", "test")):
        rows = [{**row, "video_id": row["video_id"] + 100 * number} for row in QUESTIONS]
        (folder / f"{split}_qa.json").write_text(json.dumps(rows))
    return "train_qa.json"


def make_model(damaged: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from safetensors.numpy import save_file

        save_file({"a": ARRAYS["v0"], "visual.b": ARRAYS["v1"]}, folder / "model.safetensors")
        (folder / "model.json").write_text(json.dumps({"settings": {"method": "zero_shot"}, "tasks": [{"index": 0}]}))
        index = {"weight_map": {"a": "model.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return damaged

    return make


def make_pt(folder: Path) -> str:
    import torch

    torch.save({"model": {"visual.a": torch.ones(3, 4), "b": torch.arange(5)}, "epoch": 3}, folder / "w.pt")
    return "w.pt"


def make_picture(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from PIL import Image

        Image.fromarray(np.arange(48 * 40 * 3).reshape(48, 40, 3).astype(np.uint8)).save(folder / name)
        return name

    return make


def make_video(name: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from tests.orchestrator.video.clips import write_video

        codec = {"avi": "mpeg4", "webm": "libvpx"}.get(name.rpartition(".")[2], "libx264")
        write_video(folder / name, frames=12, codec=codec)
        return name

    return make


def cifar_pickle() -> bytes:
    return pickle.dumps({b"data": bytes(2 * 3072), b"labels": [3, 7]}, protocol=2)


@cache
def small_bundle() -> bytes:
    from ctvr.orchestrator.bundles.bundle import to_bytes
    from tests.orchestrator.bundles.small_bundle import make_bundle

    return to_bytes(make_bundle())


def small_bundle_text() -> bytes:
    with zipfile.ZipFile(io.BytesIO(small_bundle())) as archive:
        return archive.read("bundle.json")
