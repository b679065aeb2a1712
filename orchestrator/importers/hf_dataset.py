"""Importer of folders in Hugging Face's VideoFolder layout, such as those of `ctvr streams export --hf`.

The layout has a folder for each split (a word of SPLIT_WORDS) with the videos and `metadata.jsonl` or `metadata.csv`:
`file_name`, captions (`captions`, a list, or one in `caption` or `text`), `task`, and optionally `video_id`,
`category`, `start`, `end`, `twin`. Several lines of one file are captions of one video. There may instead be one
metadata file for all splits. A row's split is then its column `split`, or the folder of its video. An optional
`stream.json` gives the protocol and the order of the tasks. Without metadata the folder may contain shards: parquet,
Arrow of `datasets.save_to_disk`, WebDataset (importers/shards.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.array_folder import new_arrays
from ctvr.orchestrator.importers.builder import Manifest, check_and_write, empty_task
from ctvr.orchestrator.importers.cells import (
    SPLIT_WORDS,
    captions_in,
    in_order,
    open_table,
    read_json_lines,
    segment_of,
)
from ctvr.orchestrator.importers.folder_files import FolderFiles, describe_unread
from ctvr.orchestrator.importers.shards import File, Shards, find_shards, name_videos, split_of
from ctvr.orchestrator.streams.json_reader import Reader, read_json
from ctvr.orchestrator.streams.manifest import FORMAT
from ctvr.orchestrator.streams.stream import SPLITS
from ctvr.orchestrator.streams.videos import METADATA, STREAM
from ctvr.orchestrator.video.endings import find_videos

OF_DATASETS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")  # by `datasets`
CAPTIONS = ("captions", "caption", "text")
Row = dict[str, Any]


def import_dataset(folder: Path, out: Path | None, name: str | None = None) -> tuple[Manifest, str]:
    """Import a folder in the VideoFolder layout. The return value and errors are those of `import_msrvtt`.

    Tasks are in the order of `stream.json`. Without it they are ordered by number, or by first appearance. A folder
    without column `task` is one task; without `category` each task has one category. Videos inside shards are
    written once, each into a file named by its digest. The files are in a numbered subfolder of the folder that is
    next to the manifest and has its name without `.json`.
    """
    with ExitStack() as stack:
        return _import(Path(folder), out, name, stack)


def _import(folder: Path, out: Path | None, name: str | None, stack: ExitStack) -> tuple[Manifest, str]:
    """Do the work of `import_dataset`; `stack` finally removes the previous videos, or the new ones after an error."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", "folder", remedy="Pass the folder with train/ and test/.")
    about = _about(folder)
    collected = _Collected({each["name"]: list(each["categories"]) for each in about.get("tasks", [])})
    more: Row = {}
    notes: list[str] = []
    videos = folder.resolve()
    shards = find_shards(folder)
    if _is_described(folder) or not shards:
        for split, file, line, row in _rows(folder):
            path = _path(file, line, row, folder)
            collected.add(split, file, line, row, File(path, path))
        _refuse_equal_files(collected, folder)
    else:
        place = None if out is None else stack.enter_context(new_arrays(out.with_suffix(""), folder))
        read = Shards(folder, shards, place)
        for split, file, line, row, video in read.rows():
            collected.add(split, file, line, row, video)
        if not read.has_bytes:
            _refuse_equal_files(collected, folder)
        videos, more, notes = read.videos(), read.sources(), read.notes()
    if not collected.items:
        raise ConfigError(
            f"folder: {folder} lacks {METADATA} or train/{METADATA} with a row. Pass a folder in the layout of "
            "VideoFolder."
        )
    notes = notes if more else _report_left_out(folder, {video.path for video, _, _ in collected.items})
    manifest: Manifest = {
        "format": FORMAT,
        "name": name or about.get("name") or folder.resolve().name,
        "protocol": about.get("protocol", "ctvr"),
        "paper": about.get("paper"),
        "settings": about.get("settings", {}),
        "videos": str(videos),
        **more,
        "tasks": collected.tasks_in_order(),
    }
    text = check_and_write(manifest, str(folder), videos, out, about.get("digest"))
    known = {STREAM, METADATA, "metadata.csv", *OF_DATASETS}
    unread = [name for name in FolderFiles(folder).unread() if name not in known]
    return manifest, "\n".join([text, *notes, *describe_unread(unread)])


def _report_left_out(folder: Path, read: set[str]) -> list[str]:
    """Report videos in the folder that no row of the metadata names."""
    videos = [file.relative_to(folder).as_posix() for file in find_videos(folder).videos]
    left = [video for video in videos if video not in read]
    return (
        [f"{len(left)} of {len(videos)} videos have no row in the metadata and are left out, first {left[0]}."]
        if left
        else []
    )


def _about(folder: Path) -> Row:
    """Return the fields of `stream.json`, whose types are checked; {} without the file."""
    file = folder / STREAM
    if not file.is_file():
        return {}
    reader, about = Reader(str(file)), read_json(file)
    if not isinstance(about, dict):
        reader.fail("", "is not an object", "Remove the file, or export the stream again.")
    for name in ("name", "protocol", "digest"):
        if name in about:
            reader.text(about[name], name)
    names = Counter[str]()
    for number, task in enumerate(reader.array(about.get("tasks", []), "tasks"), start=1):
        place = f"task no. {number}"
        reader.object(task, place, ("name", "categories"))
        names[reader.text(task["name"], f"{place}: name")] += 1
        for category in reader.array(task["categories"], f"{place}: categories"):
            reader.text(category, f"{place}: categories")
    if twice := [name for name, count in names.items() if count > 1]:
        reader.fail("tasks", f"{twice[0]!r} occurs twice", "Use a unique name for each task.")
    return about


def _metadata(folder: Path) -> Path | None:
    """Return the metadata file of a folder, or None.

    Raises:
        ConfigError: if there is more than one metadata file.
    """
    found = [file for end in (METADATA, "metadata.csv") if (file := folder / end).is_file()]
    if len(found) > 1:
        raise ConfigError(f"{found[0]} and {found[1]} both describe the videos", "folder", remedy="Keep one of them.")
    return found[0] if found else None


def _split_folders(folder: Path) -> dict[str, list[Path]]:
    """Map each split to its folders.

    Raises:
        ConfigError: if another folder has metadata.
    """
    found: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for place in sorted(each for each in folder.iterdir() if each.is_dir()):
        split = SPLIT_WORDS.get(place.name.lower())
        if split:
            found[split].append(place)
        elif file := _metadata(place):
            raise ConfigError("its folder does not name a split", file, remedy="Rename it train, validation or test.")
    return found


def _is_described(folder: Path) -> bool:
    return any(
        _metadata(place) for place in (folder, *(each for some in _split_folders(folder).values() for each in some))
    )


def _rows(folder: Path) -> Iterator[tuple[str, Path, int, Row]]:
    """Yield (split, file, 1-based line, row) of the metadata of a folder or of the folders of its splits."""
    whole = _metadata(folder)
    for split, places in _split_folders(folder).items():
        files = [file for place in places if (file := _metadata(place))]
        if len(files) > 1 or (files and whole):
            raise ConfigError(f"folder: {whole or files[1]} and {files[0]} both describe the videos. Keep one of them.")
        if places and not files and not whole:
            raise ConfigError(f"has no {METADATA} with the captions of its videos", places[0], remedy="Add one.")
        for file in files:
            yield from ((split, file, line, row) for line, row in _lines(file))
    if whole:
        for line, row in _lines(whole):
            yield split_of(f"{whole}: line {line}", row, PurePath(), _file_name(row)), whole, line, row


def _lines(file: Path) -> Iterator[tuple[int, Row]]:
    if file.suffix == ".jsonl":
        return read_json_lines(file)
    return open_table(file, ("file_name", "task", "split", *CAPTIONS)).rows


def _file_name(row: Row) -> str | None:
    """Return the cell of `file_name`, or of the only column whose name ends in `file_name`, as `datasets` allows."""
    others = [name for name in row if name.endswith("_file_name")]
    value = _cell(row, others[0] if "file_name" not in row and len(others) == 1 else "file_name")
    return value if isinstance(value, str) else None


def _path(file: Path, line: int, row: Row, folder: Path) -> str:
    """Return the path of a row's video below the folder."""
    name = _file_name(row)
    if name is None:
        raise ConfigError(f"{file}: line {line}: file_name is missing. Add the video's path, relative to this file.")
    if PurePosixPath(name).is_absolute():
        raise ConfigError(f"{file}: line {line}: file_name {name!r} is absolute. Use a path relative to this folder.")
    return (file.parent / name.removeprefix("./")).relative_to(folder).as_posix()


def _cell(row: Row, name: str) -> Any:
    value = row.get(name)
    return None if value == "" else value


def _text(row: Row, name: str, otherwise: str) -> str:
    """Return a cell as text, even if it is the number 0; return `otherwise` if it is empty."""
    value = _cell(row, name)
    return otherwise if value is None or value is False else str(value)


def _captions(where: str, row: Row) -> list[Any]:
    found = next((row[key] for key in CAPTIONS if _cell(row, key) is not None), None)
    if found is None:
        raise ConfigError("no caption", where, remedy="Add a column called captions, caption or text.")
    if isinstance(found, list):
        return list(found)
    if isinstance(found, dict):
        raise ConfigError("captions are an object", where, remedy="Use one text, or a list of texts.")
    text = str(found)
    listed = captions_in(where, text)
    return [text] if listed == [text.strip()] else listed  # a plain caption is kept unchanged


def _answers(where: str, row: Row) -> list[Any]:
    found = row.get("answers") or []
    if not isinstance(found, list):
        raise ConfigError(
            "column answers is not a list", where, str(found)[:40], "Use a list, one answer per question."
        )
    return found


@dataclass
class _Collected:
    """Items collected from the rows so far. Rows of one file and segment are captions of one video.

    An item's ID is its `video_id` if the row has one, otherwise the ID that `name_videos` returns.
    """

    about: dict[str, list[str]]  # name of a task -> its categories, from stream.json
    items: dict[tuple[File, Any, str], Row] = field(default_factory=dict)  # file, segment, written id -> item
    tasks: dict[str, Row] = field(default_factory=dict)
    places: dict[tuple[File, Any, str], tuple[str, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, categories in self.about.items():
            self.tasks[name] = empty_task() | {"name": name, "categories": categories}

    def add(self, split: str, file: Path, line: int, row: Row, video: File) -> None:
        where = f"{file}: line {line}"
        if odd := [name for name in ("task", "category", "video_id") if isinstance(row.get(name), dict | list)]:
            raise ConfigError(
                f"{odd[0]} is neither a string nor a number", where, str(row[odd[0]])[:40], "Use a string."
            )
        label = _text(row, "task", "task_01")
        if self.about and label not in self.tasks:
            raise ConfigError(f"task is {label!r}, which {STREAM} does not list", where, remedy="Make them agree.")
        category, segment = _text(row, "category", label), segment_of(where, _cell(row, "start"), _cell(row, "end"))
        written = _text(row, "video_id", "")
        key = File(video.path, "") if written else video, segment, written
        captions, answers = _captions(where, row), _answers(where, row)
        place = label, split, category
        if key in self.items:
            if self.places[key] != place:
                first = " ".join(self.places[key])
                raise ConfigError(f"{video.name} is also in {first!r}", where, remedy="Keep one of them.")
            if ("relevant" in self.items[key]) != bool(row.get("relevant")):
                fault = f"some rows of {video.name} have `relevant`, and others do not"
                raise ConfigError(fault, where, remedy="List the relevant videos of every caption.")
            self.items[key]["captions"] += captions
            self.items[key].get("answers", []).extend(answers)
            self.items[key].get("relevant", []).extend(row.get("relevant") or [])
            return
        item = {
            "video": written,
            "path": video.path,
            "segment": segment and list(segment),
            "category": category,
            "captions": captions,
        }
        item |= {"answers": answers} if answers else {"twin": _cell(row, "twin")}
        item |= {"relevant": row["relevant"]} if row.get("relevant") else {}
        task = self.tasks.setdefault(label, empty_task() | {"name": label})
        if category not in task["categories"]:
            task["categories"].append(category)
        task[split].append(item)
        self.items[key], self.places[key] = item, place

    def tasks_in_order(self) -> list[Row]:
        """Return the tasks in order, after setting the ids of items without `video_id`."""
        ids = name_videos([video for video, _, written in self.items if not written], {key[2] for key in self.items})
        segments = Counter(video for video, _, written in self.items if not written)
        for (video, segment, written), item in self.items.items():
            if not written:
                item["video"] = ids[video]
                if segments[video] > 1 and segment is not None:
                    item["video"] += f"@{segment[0]:g}-{segment[1]:g}"
        names = list(self.tasks) if self.about else in_order(self.tasks)
        return [self.tasks[name] for name in names]


def _refuse_equal_files(collected: _Collected, folder: Path) -> None:
    """Refuse two files with one name and equal bytes in two splits, because the model would train on a test video."""
    alike: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)  # stem and size -> file -> split
    for (video, _, _), (_, split, _) in collected.places.items():
        file = folder / video.path
        if file.is_file() and (size := file.stat().st_size):  # `check_stream` reports missing files
            alike[file.stem, size][video.path] = split
    for files in alike.values():
        seen: dict[str, str] = {}  # digest -> file
        for path in files if len(set(files.values())) > 1 else ():
            first = seen.setdefault(digest_file(str(folder / path)), path)
            if files[first] != files[path]:
                raise ConfigError(f"{first} and {path} are one video in two splits", folder, remedy="Keep one.")
