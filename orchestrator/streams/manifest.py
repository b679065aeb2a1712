"""Parser of manifests: it checks every field and reports the first error in one line.

A manifest is one JSON file (format 1):

    {"format": 1, "name": "msrvtt-10", "protocol": "ctvr" | "cvlm" | "ucl" | "qa", "paper": "msrvtt-10" | null,
     "settings": {"data.num_frames": 12}, "videos": folder (optional; relative to the manifest),
     "text_features": path below `videos` | null,
     "features": digest of the imported arrays and text features (optional),
     "held_out": number of training videos per category of the published split that are "val" here (optional),
     "tasks": [{"name": "task_01", "categories": [...], "train": [ITEM], "val": [ITEM], "test": [ITEM]}]}
    ITEM = {"video": id, "path": path below `videos`, "segment": [start, end] in seconds | null,
            "category": str, "captions": [str], "twin": id | null}

In the protocol `ucl` an ITEM is {"video": id, "path": array (N, S, S, 3) of uint8 below `videos`, "category": str}: the
images of a class in a split (`data/images.py`). In `qa` the captions are questions, and an ITEM has "answers": [str],
one per question.

`importers/` writes the manifests of the published benchmarks.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import check_name
from ctvr.orchestrator.streams.protocol_names import PROTOCOLS, plugins
from ctvr.orchestrator.streams.stream import SPLITS, Item, Segment, Stream, StreamTask
from ctvr.orchestrator.streams.videos import VideoPlaces
from ctvr.orchestrator.text_files import read_text

FORMAT = 1
# Protocol -> required and optional fields of an item, besides id, path and category
FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ucl": ((), ()),
    "qa": (("captions", "answers"), ("segment",)),
}
_ODD_PARTS = frozenset({"", ".", ".."})


def read_json(path: Path, unique_keys: bool = False) -> Any:
    """Read a JSON file.

    Args:
        unique_keys: whether to reject objects that repeat a key (otherwise the last value is kept), and NaN and
            Infinity, which are not JSON.

    Raises:
        ConfigError: if the file is missing, not a regular file, not text or not JSON; the message gives the line.
    """
    hook = _unique_object if unique_keys else None
    text = read_text(path)
    if not text.strip():
        raise ConfigError("is empty", path, remedy="Use another file.")
    try:
        return json.loads(text, object_pairs_hook=hook, parse_constant=_no_number if unique_keys else None)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}: not JSON ({error.msg})", path, remedy="Correct this line.") from error
    except RecursionError as error:
        raise ConfigError("nested too deeply", path, remedy="Use the original file.") from error
    except ValueError as error:
        raise ConfigError(f"not usable JSON ({str(error).splitlines()[0]})", path, remedy="Correct it.") from error


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    raise ValueError(f"key {repeated[0]!r:.60} occurs twice in one object")


class Reader:
    """Validator of plain values. An error is one line: source, place, problem, remedy."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, where: str, problem: str, remedy: str) -> NoReturn:
        place = f"{_brief(where)}: " if where else ""
        raise ConfigError(f"{place}{_brief(problem)}. {remedy}", self.source)

    def object(self, value: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
        known = [*required, *optional]
        if not isinstance(value, dict):
            self.fail(where, f"is {_kind(value)}, not an object", f"Use an object with {', '.join(known)}.")
        for name in value:
            if name not in known:
                hint = suggest(str(name), known).strip()
                self.fail(where, f"unknown field {name!r}", hint or f"Remove it; known: {', '.join(known)}.")
        for name in required:
            if name not in value:
                self.fail(where, f"field {name!r} is missing", f"Add {name!r}.")
        return value

    def array(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(where, f"is {_kind(value)}, not a list", "Use a list: [...].")
        return value

    def text(self, value: Any, where: str, one_line: bool = True) -> str:
        if not isinstance(value, str):
            self.fail(where, f"is {_kind(value)}, not text", "Use text in double quotes.")
        if not value.strip():
            self.fail(where, "is empty", "Add text, or remove it.")
        if value.isprintable():  # false for half a surrogate pair
            return value
        if one_line:
            self.fail(where, "contains a character that is not printable", "Use printable characters on one line.")
        if any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(where, "contains half a surrogate pair, which is not text", "Use the whole character.")
        return value

    def segment(self, value: Any, where: str) -> Segment | None:
        if value is None:
            return None
        remedy = "Use [start, end] in seconds with 0 <= start < end, or null for the whole video."
        numbers = isinstance(value, list) and all(type(n) in (int, float) for n in value)
        if not numbers or len(value) != 2:
            self.fail(where, "is not a pair of numbers", remedy)
        if not all(abs(n) < 1e9 and math.isfinite(n) for n in value) or not 0 <= value[0] < value[1]:
            self.fail(where, f"is not a time segment (got {str(value)[:60]})", remedy)
        return float(value[0]), float(value[1])

    def path(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        if "\\" not in text and not _ODD_PARTS.intersection(text.split("/")):
            return text  # as `PurePosixPath` would write it
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or "\\" in str(path) or not path.parts:
            self.fail(where, f"{value!r} is outside the videos folder", "Use a path below `videos`, with '/'.")
        return str(path)


def _brief(text: str) -> str:
    """Shorten an overlong ID or name for a message."""
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-60:]}"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


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
    if top["protocol"] not in PROTOCOLS and (others := plugins()).keys().isdisjoint({str(top["protocol"])}):
        installed = f", or one of another package: {', '.join(sorted(others))}" if others else ""
        remedy = f"Use 'ctvr', 'cvlm', 'ucl' or 'qa'{installed}."
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
        reader.fail("settings", f"is {_kind(value)}, not an object", 'Use {"data.num_frames": 12}.')
    for name, setting in value.items():
        if isinstance(setting, dict | list):
            reader.fail(f"settings: {name}", f"is {_kind(setting)}", "Use one value per dotted name.")
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
    has_images, fields = protocol == "ucl", FIELDS.get(protocol, (("captions",), ("segment", "twin")))
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
    )


def _answers(reader: Reader, item: dict[str, Any], where: str, questions: int) -> tuple[str, ...]:
    if "answers" not in item:
        return ()
    answers = reader.array(item["answers"], f"{where}: answers")
    if len(answers) != questions:
        reader.fail(f"{where}: answers", f"has {len(answers)} for {questions} questions", "Use one per question.")
    return tuple(reader.text(answer, f"{where}: answers[{n}]") for n, answer in enumerate(answers))


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
