"""Parser of manifests: it checks every field and reports the first error in one line.

A manifest is one JSON file (format 1):

    {"format": 1, "name": "msrvtt-10", "protocol": "ctvr" | "cvlm" | "ucl" | "qa", "paper": "msrvtt-10" | null,
     "settings": {"data.num_frames": 12}, "videos": folder (optional; relative to the manifest),
     "text_features": path below `videos` | null,
     "features": digest of the imported arrays and text features (optional),
     "held_out": number of training videos per category of the published split that are "val" here (optional),
     "tasks": [{"name": "task_01", "categories": [...], "train": [ITEM], "val": [ITEM], "test": [ITEM]}]}
    ITEM = {"video": id, "path": path below `videos`, "segment": [start, end] in seconds | null,
            "category": str, "captions": [str], "twin": id | null,
            "relevant": for each caption, [id] of all relevant videos of the split, its own included (optional)}

In the protocol `ucl` an ITEM is {"video": id, "path": array (N, S, S, 3) of uint8 below `videos`, "category": str}: the
images of a class in a split (`data/images.py`). In `qa` the captions are questions, and an ITEM has "answers": [str],
one per question.

`importers/` writes the manifests of the published benchmarks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from ctvr.methods.plug_ins import installed
from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.output_dir import check_name
from ctvr.orchestrator.streams.json_reader import Reader, kind_of
from ctvr.orchestrator.streams.stream import PROTOCOLS, SPLITS, Item, Segment, Stream, StreamTask
from ctvr.orchestrator.streams.videos import VideoPlaces

FORMAT = 1
# Protocol -> required and optional fields of an item, besides id, path and category
FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ucl": ((), ()),
    "qa": (("captions", "answers"), ("segment",)),
}


def parse_manifest(data: Any, source: str, base: Path, videos: Path | None = None) -> Stream:
    """Check a manifest and return it as a Stream; the `path` of each item becomes the location of its file.

    Args:
        data: the manifest as plain values.
        source: the name of the manifest in messages, usually its path.
        base: the folder that a relative `videos` refers to.
        videos: folder that replaces the manifest's `videos`; ignored for a stream of features.

    Raises:
        ConfigError: at the first error; the message gives source, task, item, field and remedy.
    """
    reader = Reader(source)
    top = reader.object(
        data,
        "",
        ("format", "name", "protocol", "tasks"),
        ("paper", "settings", "videos", "about", "sources", "text_features", "features", "held_out"),
    )
    if top["format"] != FORMAT:
        reader.fail("format", f"must be {FORMAT}, the only format that this version reads", "Import the stream again.")
    if top["protocol"] not in PROTOCOLS and str(top["protocol"]) not in (others := installed("protocols", PROTOCOLS)):
        named = f", or one of another package: {', '.join(sorted(others))}" if others else ""
        remedy = f"Use 'ctvr', 'cvlm', 'ucl' or 'qa'{named}."
        reader.fail("protocol", f"is {str(top['protocol'])[:40]!r}", remedy)
    paper = None if top.get("paper") is None else reader.text(top["paper"], "paper")
    if videos is None or "features" in top:
        videos = Path(base) / Path(reader.text(top.get("videos", "."), "videos")).expanduser()
    held_out = top.get("held_out", 0)
    if type(held_out) is not int or held_out < 0:
        reader.fail("held_out", f"is {str(held_out)[:40]!r}", "Use the number of videos per category, such as 2.")
    place = VideoPlaces(Path(videos)).find
    tasks = tuple(
        _parse_task(reader, task, number, place, top["protocol"])
        for number, task in enumerate(reader.array(top["tasks"], "tasks"), start=1)
    )
    if not tasks:
        reader.fail("tasks", "is empty", "Add at least one task.")
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            reader.fail(f"tasks: {name}", f"{count} tasks have this name", "Use a unique name for each task.")
    _check_unique(reader, tasks)
    _check_relevant(reader, tasks)
    _check_kinds(reader, tasks, top["protocol"] == "ucl")
    return Stream(
        name=_stream_name(reader, top["name"]),
        tasks=tasks,
        protocol=top["protocol"],
        has_val=_has_val(reader, top["protocol"], tasks),
        settings=_parse_settings(reader, top.get("settings", {})),
        paper=paper,
        text_features=_text_features(reader, top.get("text_features"), Path(videos)),
        features=reader.text(top["features"], "features") if "features" in top else "",
        held_out=held_out,
    )


def _stream_name(reader: Reader, value: Any) -> str:
    """Return the stream's name, which must be usable as a folder's name."""
    check_name(reader.text(value, "name"), f"{reader.source}: name")
    return str(value)


def _text_features(reader: Reader, value: Any, videos: Path) -> str | None:
    if value is None:
        return None
    file = videos / reader.path(value, "text_features")
    if not file.is_file():
        reader.fail(
            "text_features", f"{value!r} does not exist", "Put the file below `videos`, or import the stream again."
        )
    return str(file)


def _parse_settings(reader: Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        reader.fail("settings", f"is {kind_of(value)}, not an object", 'Use {"data.num_frames": 12}.')
    for name, setting in value.items():
        if isinstance(setting, dict | list):
            reader.fail(f"settings: {name}", f"is {kind_of(setting)}", "Use one value per dotted name.")
        if isinstance(setting, int | float) and not abs(setting) < 2**63:  # also true for NaN
            reader.fail(f"settings: {name}", f"is {str(setting)[:30]}", "Use a finite number of at most 18 digits.")
    return dict(value)


def _parse_task(reader: Reader, value: Any, number: int, place: Callable[[str], str], protocol: str) -> StreamTask:
    task = reader.object(value, f"task no. {number}", ("name", "categories", "train", "test"), ("val",))
    name = reader.text(task["name"], f"task no. {number}: name")
    listed = reader.array(task["categories"], f"{name}: categories")
    categories = tuple(reader.text(category, f"{name}: categories") for category in listed)
    if not categories or len(set(categories)) < len(categories):
        reader.fail(f"{name}: categories", "is empty or repeats a name", "List every category of the task once.")
    splits = {}
    for split in SPLITS:
        items = reader.array(task.get(split, []), f"{name}: {split}")
        if not items and split != "val":
            reader.fail(f"{name}: {split}", "has no videos", f"Add {split} videos, or remove the task.")
        splits[split] = tuple(
            _parse_item(reader, item, f"{name}: {split}", n, set(categories), place, protocol)
            for n, item in enumerate(items, start=1)
        )
    return StreamTask(name, categories, **splits)


def _parse_item(
    reader: Reader,
    value: Any,
    where: str,
    number: int,
    categories: Collection[str],
    place: Callable[[str], str],
    protocol: str,
) -> Item:
    has_id = isinstance(value, dict) and isinstance(value.get("video"), str)
    where = f"{where}: video {value['video']!r}" if has_id else f"{where}: item no. {number}"
    has_images, fields = protocol == "ucl", FIELDS.get(protocol, (("captions",), ("segment", "twin", "relevant")))
    item = reader.object(value, where, ("video", "path", "category", *fields[0]), fields[1])
    category = reader.text(item["category"], f"{where}: category")
    if category not in categories:
        hint = suggest(category, categories).strip()
        reader.fail(f"{where}: category", f"{category!r} is not a category of its task", hint or "List it there.")
    captions = reader.array(item.get("captions", []), f"{where}: captions")
    if not captions and not has_images:
        reader.fail(f"{where}: captions", "is empty", "Add at least one caption, or remove the video.")
    return Item(
        video=reader.text(item["video"], f"{where}: video"),
        path=place(reader.path(item["path"], f"{where}: path")),
        segment=reader.segment(item.get("segment"), f"{where}: segment"),
        category=category,
        captions=tuple(
            reader.text(caption, f"{where}: captions[{n}]", one_line=False) for n, caption in enumerate(captions)
        ),
        twin=None if item.get("twin") is None else reader.text(item["twin"], f"{where}: twin"),
        answers=_answers(reader, item, where, len(captions)),
        relevant=_relevant(reader, item, where, len(captions)),
    )


def _answers(reader: Reader, item: dict[str, Any], where: str, questions: int) -> tuple[str, ...]:
    if "answers" not in item:
        return ()
    answers = reader.array(item["answers"], f"{where}: answers")
    if len(answers) != questions:
        reader.fail(f"{where}: answers", f"has {len(answers)} for {questions} questions", "Use one per question.")
    return tuple(reader.text(answer, f"{where}: answers[{n}]") for n, answer in enumerate(answers))


def _relevant(reader: Reader, item: dict[str, Any], where: str, captions: int) -> tuple[tuple[str, ...], ...]:
    """Return the ids of the videos that are relevant to each caption; () if they are not listed."""
    if "relevant" not in item:
        return ()
    lists = reader.array(item["relevant"], f"{where}: relevant")
    if len(lists) != captions:
        reader.fail(f"{where}: relevant", f"has {len(lists)} lists for {captions} captions", "Use one per caption.")
    found = []
    for number, listed in enumerate(lists):
        place = f"{where}: relevant[{number}]"
        ids = tuple(reader.text(video, place) for video in reader.array(listed, place))
        if item["video"] not in ids:
            reader.fail(place, f"lacks {item['video']!r}, the caption's own video", "Add it.")
        if repeated := [video for video, count in Counter(ids).items() if count > 1]:
            reader.fail(place, f"{repeated[0]!r} occurs twice", "Keep one of them.")
        found.append(ids)
    return tuple(found)


def _check_relevant(reader: Reader, tasks: tuple[StreamTask, ...]) -> None:
    """Require that relevant videos are in the split of their caption, because a caption searches only its split."""
    for split in SPLITS:
        items = [(task, item) for task in tasks for item in getattr(task, split)]
        ids = {item.video for _, item in items}
        for task, item in items:
            for number, video in ((n, each) for n, listed in enumerate(item.relevant) for each in listed):
                if video not in ids:
                    where = f"{task.name}: {split}: video {item.video!r}: relevant[{number}]"
                    remedy = f"Use ids of {split} videos."
                    reader.fail(where, f"video {video!r} does not exist in the split {split}", remedy)


def _check_unique(reader: Reader, tasks: tuple[StreamTask, ...]) -> None:
    """Require that every ID is unique in the stream, and that no segment of a file is in two splits."""
    ids: dict[str, tuple[str, str, str]] = {}
    files: dict[tuple[str, Segment | None], tuple[str, str]] = {}
    for task in tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                if item.video in ids:
                    where = f"{task.name}: {split}: video {item.video!r}"
                    first, first_split, path = ids[item.video]
                    problem = f"this id is also in {first}: {first_split}"
                    if path != item.path:
                        reader.fail(where, f"{problem}, of another file", "Use a unique id for each video.")
                    kind = "a leak between splits" if first_split != split else "a duplicate"
                    reader.fail(where, f"{problem} ({kind})", "Keep one of them.")
                ids[item.video] = task.name, split, item.path
                key = item.path, item.segment
                first, first_split = files.setdefault(key, (task.name, split))
                if first_split != split:
                    where = f"{task.name}: {split}: video {item.video!r}"
                    problem = f"its file and segment are also in {first}: {first_split} (a leak between splits)"
                    reader.fail(where, problem, "Keep one of them.")
    for task in tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                if item.twin is not None and item.twin not in ids:
                    where = f"{task.name}: {split}: video {item.video!r}: twin"
                    reader.fail(where, f"video {item.twin!r} does not exist", "Use the id of a video, or null.")


def _check_kinds(reader: Reader, tasks: tuple[StreamTask, ...], has_images: bool) -> None:
    """Require that all items are of one kind: videos and folders of frames, or arrays (features, images)."""
    items = [item for task in tasks for split in SPLITS for item in getattr(task, split)]
    counted = sum(item.path.endswith(".npy") for item in items)
    if has_images and counted < len(items):
        odd = next(item for item in items if not item.path.endswith(".npy"))
        reader.fail(odd.video, "is not an array of images (.npy)", "Save the images of a class as one array.")
    if 0 < counted < len(items):
        every = ((task, split, item) for task in tasks for split in SPLITS for item in getattr(task, split))
        task, split, item = next(each for each in every if not each[2].path.endswith(".npy"))
        where = f"{task.name}: {split}: video {item.video!r}"
        reader.fail(where, "is a video file, but other videos are features (.npy)", "Put them into separate streams.")


def _has_val(reader: Reader, protocol: str, tasks: tuple[StreamTask, ...]) -> bool:
    """Return whether every task has validation videos. Some data sets of the CVLM protocol publish none."""
    without_val = [task.name for task in tasks if not task.val]
    if without_val and len(without_val) < len(tasks) and protocol not in {"cvlm", "ucl", "qa"}:
        reader.fail(f"{without_val[0]}: val", "is empty, but other tasks have videos in it", "Fill it, or empty all.")
    return not without_val
