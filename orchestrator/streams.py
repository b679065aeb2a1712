"""Streams: which captions and which videos belong to which task, read from a manifest.

A manifest is one JSON file (format 1):

    {"format": 1, "name": "msrvtt-10", "protocol": "ctvr" | "cvlm", "paper": "msrvtt-10" | null,
     "settings": {"data.num_frames": 12}, "videos": folder (optional; relative to the manifest),
     "tasks": [{"name": "task_01", "categories": [...], "train": [ITEM], "val": [ITEM], "test": [ITEM]}]}
    ITEM = {"video": id, "path": path below `videos`, "segment": [start, end] in seconds | null,
            "category": str, "captions": [str], "twin": id | null}

The embedded streams (`shapes-10`, ...) are rendered on first use; `orchestrator/importers.py` writes
the manifests of the published benchmarks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn

from orchestrator.config import ConfigError, canonical, suggest

Protocol = Literal["ctvr", "cvlm"]
Segment = tuple[float, float]

FORMAT = 1
SPLITS = ("train", "val", "test")
VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
RENDERED = {"shapes-5": 5, "shapes-10": 10, "shapes-20": 20, "shapes-cvlm": None}
BENCHMARKS = ("msrvtt-10", "msrvtt-20", "actnet-10", "actnet-20", "cvlm")


@dataclass(frozen=True)
class Item:
    """One video of one split of one task. `segment` is in seconds; `path` is a file or a folder of frames."""

    video: str
    path: str
    segment: Segment | None
    category: str
    captions: tuple[str, ...]
    twin: str | None = None  # the same scene filmed backwards, if the stream has one


@dataclass(frozen=True)
class StreamTask:
    """One step of the stream."""

    name: str
    categories: tuple[str, ...]
    train: tuple[Item, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]


@dataclass(frozen=True)
class Stream:
    """The whole sequence of tasks."""

    name: str
    tasks: tuple[StreamTask, ...]
    protocol: Protocol
    has_val: bool  # every task has a validation split; without one, choices are made on test videos
    settings: dict[str, Any] = field(default_factory=dict)  # recommended dotted settings
    paper: str | None = None  # the published table this stream stands beside
    dropped: int = 0  # videos left out by `without`

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """All categories, in the order of their first appearance over the tasks."""
        return tuple(dict.fromkeys(category for task in self.tasks for category in task.categories))

    @cached_property
    def _category_indices(self) -> dict[str, int]:
        return {category: index for index, category in enumerate(self.categories)}

    def category_index(self, name: str) -> int:
        """The global index of a category.

        Raises:
            KeyError: if no task lists the category.
        """
        return self._category_indices[name]

    def items(self, task_index: int, split: str) -> tuple[Item, ...]:
        """The items of one split ("train", "val" or "test") of one task (0-based)."""
        if split not in SPLITS:
            raise ConfigError(f"split: {split!r} is none of {', '.join(SPLITS)}.{suggest(split, SPLITS)}")
        found: tuple[Item, ...] = getattr(self.tasks[task_index], split)
        return found

    def pairs(self, task_index: int, split: str) -> list[tuple[int, int]]:
        """Every (index of the item in its split, index of the caption in its item): the text-video pairs."""
        items = self.items(task_index, split)
        return [(i, c) for i, item in enumerate(items) for c in range(len(item.captions))]

    @cached_property
    def digest(self) -> str:
        """sha256 over all that decides results; where the files lie, names and recommended settings do not."""
        tasks = [
            [list(task.categories), *([_identity(item) for item in getattr(task, split)] for split in SPLITS)]
            for task in self.tasks
        ]
        return hashlib.sha256(canonical({"protocol": self.protocol, "tasks": tasks}).encode()).hexdigest()

    @property
    def settings_mark(self) -> str:
        """What a table must say about numbers from this stream; empty if there is nothing to say."""
        marks = [] if self.has_val else ["no validation split: settings were chosen on test videos"]
        if self.dropped:
            marks.append(f"{self.dropped} missing videos left out: not comparable with the paper")
        return "; ".join(marks)


def _identity(item: Item) -> list[Any]:
    return [item.video, item.segment, item.category, list(item.captions), item.twin]


# ---------------------------------------------------------------------------------------------- loading


def load_stream(name_or_path: str | Path, root: Path, videos: Path | None = None) -> Stream:
    """Load an embedded stream, a stream of `<root>/streams/`, or any manifest.

    Args:
        name_or_path: "shapes-10"; or "msrvtt-10" for `<root>/streams/msrvtt-10.json`; or a path to a .json file.
        root: the folder of data: rendered streams and `streams/` lie below it.
        videos: the folder the manifest's paths start from; default is the manifest's own `videos`.

    Raises:
        ConfigError: for an unknown name or a manifest that breaks the format.
    """
    name, root = str(name_or_path), Path(root)
    if name in RENDERED:
        return _load_rendered(name, root)
    path = Path(name).expanduser()
    if path.suffix != ".json" and len(path.parts) == 1:
        path = root / "streams" / f"{name}.json"
        if not path.is_file():
            raise ConfigError(_unknown_stream(name, root))
    data = read_json(path, unique_keys=True)
    return parse_manifest(data, source=str(path), base=path.parent, videos=videos)


def available_streams(root: Path) -> list[str]:
    """Names that `load_stream` accepts: the embedded streams, then the manifests of `<root>/streams`."""
    found = sorted(path.stem for path in (Path(root) / "streams").glob("*.json"))
    return [*RENDERED, *(name for name in found if name not in RENDERED)]


def embedded_settings(name: str) -> dict[str, Any] | None:
    """What an embedded stream recommends, known without rendering it; None for other streams."""
    if name not in RENDERED:
        return None
    from orchestrator import shapes, shapes_cvlm

    return dict(shapes_cvlm.SETTINGS if RENDERED[name] is None else shapes.SETTINGS)


def _load_rendered(name: str, root: Path) -> Stream:
    from orchestrator import shapes

    num_tasks = RENDERED[name]
    manifest: Any = shapes.render_cvlm(root) if num_tasks is None else shapes.render_stream(root, num_tasks)
    base = root
    if isinstance(manifest, str | Path):
        base = Path(manifest).parent
        manifest = read_json(Path(manifest))
    return parse_manifest(manifest, source=name, base=base)


def _unknown_stream(name: str, root: Path) -> str:
    known = available_streams(root)
    if name in BENCHMARKS:
        remedy = " Import the benchmark's files first: `ctvr streams import --help`."
    else:
        remedy = suggest(name, [*known, *BENCHMARKS])
    return f"stream: no stream called {name!r} in {root / 'streams'}.{remedy} All: {', '.join(known)}."


def read_json(path: Path, unique_keys: bool = False) -> Any:
    """Read a JSON file.

    Args:
        unique_keys: refuse an object that repeats a key, instead of keeping the last value.

    Raises:
        ConfigError: if the file is absent, not text or not JSON; the message names the line.
    """
    hook = _unique_object if unique_keys else None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}: not JSON ({error.msg}). Correct this line.") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply. Write a manifest as `ctvr streams import` does.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8 text. Save the file as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a JSON file.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not usable JSON ({str(error).splitlines()[0]}). Correct it.") from error


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"key {repeated[0]!r} is given twice in one object")
    return dict(pairs)


# ------------------------------------------------------------------------------------------- validation


class _Reader:
    """Takes plain values apart; every refusal is one line: source, place, problem, remedy."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, where: str, problem: str, remedy: str) -> NoReturn:
        place = f"{where}: " if where else ""
        raise ConfigError(f"{self.source}: {place}{problem}. {remedy}")

    def object(self, value: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
        known = [*required, *optional]
        if not isinstance(value, dict):
            self.fail(where, f"is {_kind(value)}, not an object", f"Write an object with {', '.join(known)}.")
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
            self.fail(where, f"is {_kind(value)}, not a list", "Write a list: [...].")
        return value

    def text(self, value: Any, where: str, one_line: bool = True) -> str:
        if not isinstance(value, str):
            self.fail(where, f"is {_kind(value)}, not text", "Write text in double quotes.")
        if not value.strip():
            self.fail(where, "is empty", "Write some text, or remove it.")
        if one_line and not value.isprintable():
            self.fail(where, "has a character that cannot be printed", "Use printable characters on one line.")
        if any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(where, "has half a surrogate pair, which is not text", "Write the whole character.")
        return value

    def segment(self, value: Any, where: str) -> Segment | None:
        if value is None:
            return None
        remedy = "Write [start, end] in seconds with 0 <= start < end, or null for the whole video."
        numbers = isinstance(value, list) and all(type(n) in (int, float) for n in value)
        if not numbers or len(value) != 2:
            self.fail(where, "is not a pair of numbers", remedy)
        if not all(abs(n) < 1e9 and math.isfinite(n) for n in value) or not 0 <= value[0] < value[1]:
            self.fail(where, f"{str(value)[:60]} is no stretch of time", remedy)
        return float(value[0]), float(value[1])

    def path(self, value: Any, where: str) -> str:
        path = PurePosixPath(self.text(value, where))
        if path.is_absolute() or ".." in path.parts or "\\" in str(path) or not path.parts:
            self.fail(where, f"{value!r} leads out of the videos folder", "Write a path below `videos`, with '/'.")
        return str(path)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def parse_manifest(data: Any, source: str, base: Path, videos: Path | None = None) -> Stream:
    """Check a manifest and make it a Stream; `path` of each item becomes the place of its file on this machine.

    Args:
        data: the manifest as plain values.
        source: what to call it in messages, usually its path.
        base: the folder that a relative `videos` starts from.
        videos: takes the place of the manifest's `videos`.

    Raises:
        ConfigError: at the first thing wrong: source, task, item and field, and what to do.
    """
    reader = _Reader(source)
    top = reader.object(
        data, "", ("format", "name", "protocol", "tasks"), ("paper", "settings", "videos", "about", "sources")
    )
    if top["format"] != FORMAT:
        reader.fail("format", f"is not {FORMAT}, the one this version reads", "Import the stream again.")
    if top["protocol"] not in ("ctvr", "cvlm"):
        reader.fail("protocol", f"is {str(top['protocol'])[:40]!r}", "Write 'ctvr' or 'cvlm'.")
    paper = None if top.get("paper") is None else reader.text(top["paper"], "paper")
    if videos is None:
        videos = Path(base) / Path(reader.text(top.get("videos", "."), "videos")).expanduser()
    place = _Places(Path(videos)).find
    tasks = tuple(
        _parse_task(reader, task, number, place)
        for number, task in enumerate(reader.array(top["tasks"], "tasks"), start=1)
    )
    if not tasks:
        reader.fail("tasks", "is empty", "Write at least one task.")
    _check_names(reader, tasks)
    _check_unique(reader, tasks)
    return Stream(
        name=reader.text(top["name"], "name"),
        tasks=tasks,
        protocol=top["protocol"],
        has_val=_has_val(reader, top["protocol"], tasks),
        settings=_parse_settings(reader, top.get("settings", {})),
        paper=paper,
    )


def _parse_settings(reader: _Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        reader.fail("settings", f"is {_kind(value)}, not an object", 'Write {"data.num_frames": 12}.')
    for name, setting in value.items():
        if isinstance(setting, dict | list):
            reader.fail(f"settings: {name}", f"is {_kind(setting)}", "Write one value per dotted name.")
    return dict(value)


def _parse_task(reader: _Reader, value: Any, number: int, place: Callable[[str], str]) -> StreamTask:
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
            _parse_item(reader, item, f"{name}: {split}", n, set(categories), place)
            for n, item in enumerate(items, start=1)
        )
    return StreamTask(name, categories, **splits)


def _parse_item(
    reader: _Reader, value: Any, where: str, number: int, categories: Collection[str], place: Callable[[str], str]
) -> Item:
    has_id = isinstance(value, dict) and isinstance(value.get("video"), str)
    where = f"{where}: video {value['video']!r}" if has_id else f"{where}: item no. {number}"
    item = reader.object(value, where, ("video", "path", "category", "captions"), ("segment", "twin"))
    category = reader.text(item["category"], f"{where}: category")
    if category not in categories:
        hint = suggest(category, categories).strip()
        reader.fail(f"{where}: category", f"{category!r} is not a category of its task", hint or "List it there.")
    captions = reader.array(item["captions"], f"{where}: captions")
    if not captions:
        reader.fail(f"{where}: captions", "is empty", "Write at least one caption, or remove the video.")
    return Item(
        video=reader.text(item["video"], f"{where}: video"),
        path=place(reader.path(item["path"], f"{where}: path")),
        segment=reader.segment(item.get("segment"), f"{where}: segment"),
        category=category,
        captions=tuple(
            reader.text(caption, f"{where}: captions[{n}]", one_line=False) for n, caption in enumerate(captions)
        ),
        twin=None if item.get("twin") is None else reader.text(item["twin"], f"{where}: twin"),
    )


def _check_names(reader: _Reader, tasks: tuple[StreamTask, ...]) -> None:
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            reader.fail(f"tasks: {name}", f"{count} tasks have this name", "Give each task its own.")


def _check_unique(reader: _Reader, tasks: tuple[StreamTask, ...]) -> None:
    """An id names one video of one split of one task; no stretch of a file is in two splits."""
    ids: dict[str, tuple[str, str]] = {}
    files: dict[tuple[str, Segment | None], tuple[str, str]] = {}
    for task in tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                where = f"{task.name}: {split}: video {item.video!r}"
                if item.video in ids:
                    first, first_split = ids[item.video]
                    kind = "a leak between splits" if first_split != split else "a duplicate"
                    reader.fail(where, f"this id is also in {first}: {first_split} ({kind})", "Keep one of them.")
                ids[item.video] = task.name, split
                key = item.path, item.segment
                first, first_split = files.setdefault(key, (task.name, split))
                if first_split != split:
                    problem = f"its file and segment are also in {first}: {first_split} (a leak between splits)"
                    reader.fail(where, problem, "Keep one of them.")
    for task in tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                if item.twin is not None and item.twin not in ids:
                    where = f"{task.name}: {split}: video {item.video!r}: twin"
                    reader.fail(where, f"no video is called {item.twin!r}", "Write the id of a video, or null.")


def _has_val(reader: _Reader, protocol: str, tasks: tuple[StreamTask, ...]) -> bool:
    """True if every task has validation videos. In the CVLM protocol some data sets publish none."""
    without_val = [task.name for task in tasks if not task.val]
    if without_val and len(without_val) < len(tasks) and protocol == "ctvr":
        reader.fail(f"{without_val[0]}: val", "is empty while other tasks have one", "Fill it, or empty all of them.")
    return not without_val


# --------------------------------------------------------------------------------------- files on disk


class _Places:
    """Finds a video as named, with another extension, or as a folder of frames; lists each folder once."""

    def __init__(self, base: Path) -> None:
        self.base = os.path.abspath(base)
        self.listed: dict[str, frozenset[str]] = {}

    def find(self, path: str) -> str:
        """The place of `path`; where nothing is there, the place where it was expected."""
        full = os.path.join(self.base, path)
        folder, name = os.path.split(full)
        names = self.listed.get(folder)
        if names is None:
            names = self.listed[folder] = frozenset(os.listdir(folder)) if os.path.isdir(folder) else frozenset()
        if name in names:
            return full
        stem = video_stem(name)
        for other in (*(stem + suffix for suffix in VIDEO_SUFFIXES), stem):
            if other in names:
                return os.path.join(folder, other)
        return full


def video_stem(name: str) -> str:
    """A file name without its extension, if that is one of a video; ids may hold dots."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in VIDEO_SUFFIXES else name


def _is_there(path: str) -> bool:
    if os.path.isdir(path):
        return any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in os.scandir(path))
    return os.path.isfile(path)


def _walk(stream: Stream) -> Iterator[tuple[StreamTask, str, Item]]:
    for task in stream.tasks:
        for split in SPLITS:
            for item in getattr(task, split):
                yield task, split, item


def missing_videos(stream: Stream) -> list[Item]:
    """All items whose file is not there (nor under another extension, nor as a folder with frames)."""
    find = _Places(Path("/")).find  # the items' paths are absolute
    return [item for _, _, item in _walk(stream) if not _is_there(find(item.path))]


def check_videos(stream: Stream) -> str:
    """Say which videos are missing and what a smaller gallery would do to the numbers."""
    missing = {item.video for item in missing_videos(stream)}
    total = Counter(split for _, split, _ in _walk(stream))
    if not missing:
        return f"{stream.name}: all {total.total()} videos are in place."
    places = [(task.name, split, item) for task, split, item in _walk(stream) if item.video in missing]
    lost = Counter(split for _, split, _ in places)
    lines = [
        f"{stream.name}: {len(places)} of {total.total()} videos are missing ("
        + ", ".join(f"{split} {lost[split]} of {total[split]}" for split in SPLITS if total[split])
        + ").",
        "First: " + ", ".join(f"{item.video} ({task} {split})" for task, split, item in places[:5]) + ".",
        f"Looked for {places[0][2].path} and {'/'.join(VIDEO_SUFFIXES)} or a folder of frames in its place.",
    ]
    if 0 < lost["test"] < total["test"]:
        left = total["test"] - lost["test"]
        lines.append(
            f"Without them the test gallery shrinks from {total['test']} to {left} videos: R@k rises as the gallery "
            "shrinks, so the numbers are not comparable with the paper."
        )
    lines.append("Put the files in place, or leave these videos out with data.skip_missing=true; tables are marked.")
    return "\n".join(lines)


def without(stream: Stream, missing: Iterable[Item]) -> Stream:
    """The stream less some items, when the user asked for it (`data.skip_missing=true`).

    The result has another digest, says how many videos it lost, and stands beside no paper.

    Raises:
        ConfigError: if a task would keep no train, test or (where it had some) validation video.
    """
    gone = {item.video for item in missing}
    if not gone:
        return stream
    tasks = []
    for task in stream.tasks:
        kept: dict[str, tuple[Item, ...]] = {}
        for split in SPLITS:
            items = getattr(task, split)
            kept[split] = tuple(
                dataclasses.replace(item, twin=None) if item.twin in gone else item
                for item in items
                if item.video not in gone
            )
            if items and not kept[split]:
                raise ConfigError(
                    f"data.skip_missing: all {len(items)} {split} videos of {task.name} in {stream.name} are missing, "
                    f"the first as {items[0].path}. Correct the videos folder."
                )
        tasks.append(StreamTask(task.name, task.categories, **kept))
    dropped = sum(item.video in gone for _, _, item in _walk(stream))
    return dataclasses.replace(stream, tasks=tuple(tasks), paper=None, dropped=stream.dropped + dropped)


def describe(stream: Stream) -> str:
    """Categories, videos and pairs of each task, one line each."""
    lines = []
    for task in stream.tasks:
        counts = [
            f"{split} {len(items)} videos, {sum(len(item.captions) for item in items)} captions"
            for split in SPLITS
            if (items := getattr(task, split))
        ]
        lines.append(f"{task.name}: {len(task.categories)} categories; " + "; ".join(counts))
    return "\n".join(lines)
