"""Import of sharded data sets (importers/shard_files.py): rows with captions, and videos as bytes or files.

A column of bytes is `{bytes, path}`, as `datasets` writes its feature Video, or plain binary. The split is in the name
of the file or of its folder (train-00000-of-00002.parquet, test/0000.tar), or in a column `split`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

from ctvr.orchestrator.digests import digest_file
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import VideoFolder
from ctvr.orchestrator.importers.cells import SPLIT_WORDS
from ctvr.orchestrator.importers.shard_files import NAMES, RATIO, READERS, SPARE, read_shard
from ctvr.orchestrator.output_dir import write_in_runs
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.videos import VIDEO_SUFFIXES, video_stem

_WORD = re.compile("|".join(rf"(?<![a-z]){word}(?![a-z])" for word in SPLIT_WORDS))
_NUMBERS = re.compile(r"-\d+-of-\d+.*$|[-_]?\d+$")
_COUNT = re.compile(r"-(\d+)-of-(\d+)(\.\w+)$")
_REVISION = re.compile(r"[0-9a-f]{40}")


def find_shards(folder: Path) -> list[Path]:
    """List the shards below a folder, except hidden ones, caches of `datasets`, and metadata tables of .tar shards.

    If other tables exist, .tar archives count as packed videos and are not listed.
    """
    every = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.suffix in READERS)
    found = [file for file in every if not any(part.startswith(".") for part in file.parts)]
    found = [file for file in found if (folder / file).is_file() and not file.name.startswith("cache-")]
    tars = [file for file in found if file.suffix == ".tar"]
    stems = {file.with_suffix("") for file in tars}  # video2dataset writes a table of metadata for each shard
    return [file for file in found if file.suffix != ".tar" and file.with_suffix("") not in stems] or tars


class Shards:
    """Reader of the rows of shards, in one pass, that writes videos inside shards to files.

    Args:
        folder: the folder of the data set.
        shards: paths of the shards, relative to `folder`.
        store: the folder for videos that are inside shards; if None, nothing is written.
    """

    def __init__(self, folder: Path, shards: list[Path], store: Path | None) -> None:
        self.folder, self.shards, self.store = folder, shards, store
        self.has_bytes = False
        self.left = SPARE + RATIO * sum((folder / shard).stat().st_size for shard in shards)
        self._listed: VideoFolder | None = None
        self._check_sets()
        self._check_order()

    def rows(self) -> Iterator[tuple[str, Path, int, dict[str, Any], File]]:
        """Yield (split, shard, 1-based row number, cells, the video, whose path is below `videos()`)."""
        for shard in self.shards:
            file = self.folder / shard
            for number, row in enumerate(read_shard(file), start=1):
                split = split_of(f"{file}: row {number}", row, shard, row["name"])
                yield split, file, number, row, self._place(file, number, row)

    def videos(self) -> Path:
        """Return the folder to which the paths of videos are relative."""
        return self.store.resolve() if self.has_bytes and self.store else self.folder.resolve()

    def sources(self) -> dict[str, Any]:
        """Return the digests of the shards, and the revision if the Hugging Face hub's client recorded it."""
        revision = _revision(self.folder.resolve(), self.shards[0])
        digests = {shard.as_posix(): digest_file(str(self.folder / shard)) for shard in self.shards}
        return {"sources": digests, **({"about": {"revision": revision}} if revision else {})}

    def notes(self) -> list[str]:
        """Report archives that are not read, and missing shards according to the counts in the shards' names."""
        counts: dict[tuple[str, int], int] = Counter()
        for shard in self.shards:
            if match := _COUNT.search(shard.name):
                counts[_COUNT.sub(r"-*-of-\2\3", shard.as_posix()), int(match[2])] += 1
        notes = [f"{n} of {all_of} shards {name} exist." for (name, all_of), n in counts.items() if n < all_of]
        if self.shards[0].suffix != ".tar" and (tars := [file.name for file in self.folder.rglob("*.tar")]):
            text = f"Archives next to {self.shards[0]} are not read, such as {min(tars)}"
            notes.append(f"{text}. Unpack them if they contain the videos.")
        return notes

    def _check_sets(self) -> None:
        """Reject two sets of one split, such as configurations on the hub, because their rows would be merged."""
        sets: dict[str, dict[tuple[Path, str], Path]] = defaultdict(dict)
        for shard in self.shards:
            sets[_split_in(shard)].setdefault((shard.parent, _NUMBERS.sub("", shard.stem)), shard)
        for split, found in sets.items():
            if len(found) > 1:
                first, second = list(found.values())[:2]
                raise ConfigError(
                    f"folder: {self.folder}: {first} and {second} are two sets of rows (split: {split or 'none'}). "
                    "Pass a folder with one of them."
                )

    def _check_order(self) -> None:
        """Reject a folder of an early version of `datasets`, which stores the order of rows in a separate file."""
        for state in {(self.folder / shard).with_name("state.json") for shard in self.shards}:
            about = read_json(state) if state.is_file() else None
            if isinstance(about, dict) and (about.get("_indices_files") or about.get("_indices_data_files")):
                remedy = "load_from_disk(FOLDER).flatten_indices().save_to_disk(NEW_FOLDER)"
                raise ConfigError(f"{state}: lists row indices, which are not supported. Save it again: {remedy}")

    def _place(self, file: Path, number: int, row: dict[str, Any]) -> File:
        content, name = row.pop("bytes"), row.pop("name")
        if content is None:
            if not isinstance(name, str) or not name:
                names = ", ".join(NAMES)
                raise ConfigError(f"{file}: row {number}: lacks bytes and name of a video. Columns: {names}.")
            path = self._find_named(file, name)
            return File(path, path)
        self.has_bytes = True
        digest = hashlib.sha256(content).hexdigest()
        path = f"{digest}{_ending(content, name or '')}"
        if self.store is not None and not (self.store / path).is_file():
            self._write(self.store / path, content)
        return File(path, name or digest[:16])

    def _find_named(self, file: Path, name: str) -> str:
        """Return the path of a video, relative to the data set's folder.

        `name` is a path relative to the shard, as `datasets` writes it, or the name of any file in the folder.
        """
        below = PurePosixPath(name)
        if not below.is_absolute() and ".." not in below.parts:
            near = file.parent / below
            if near.is_file() or file.stem == "metadata":
                return near.relative_to(self.folder).as_posix()
        self._listed = self._listed or VideoFolder(self.folder)
        return self._listed.find(name)[0]

    def _write(self, file: Path, content: bytes) -> None:
        self.left -= len(content)
        if self.left < 0:
            raise ConfigError(
                f"folder: {self.folder}: its videos have more than {RATIO} times the bytes of its shards. Check them."
            )
        write_in_runs(file, content)


def _split_in(path: PurePath) -> str:
    """Return the split that a file's name or its nearest folder contains; "" if none does."""
    for part in (path.stem, *reversed(path.parts[:-1])):
        if words := _WORD.findall(part.lower()):
            return SPLIT_WORDS[words[0]]
    return ""


def split_of(where: str, row: Mapping[str, Any], metadata: PurePath, video: str | None) -> str:
    """Return the split of a row: its column `split`, or a word in the path of its file or of its video.

    Args:
        metadata: the file of the row, relative to the data set.
        video: path of the video; None if the row contains the video.

    Raises:
        ConfigError: if none of them names a split.
    """
    written = str(row.get("split") or "").lower()
    split = (
        SPLIT_WORDS.get(written, "")
        if written
        else _split_in(metadata) or _split_in(PurePosixPath(video or "").parent / "_")
    )
    if not split:
        said = f"split is {written!r}" if written else "no split"
        raise ConfigError(
            f"{where}: {said}. Add a column split (train, val or test), or put the files into folders train and test."
        )
    return split


def _ending(content: bytes, name: str) -> str:
    suffix = Path(name).suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return suffix
    if content[:4] == b"\x1aE\xdf\xa3":
        return ".mkv"
    return ".avi" if content[:4] == b"RIFF" else ".mp4"


def _revision(folder: Path, shard: Path) -> str:
    """Return the commit of the repository on the Hugging Face hub, from a snapshot's path or download metadata."""
    if folder.parent.name == "snapshots" and _REVISION.fullmatch(folder.name):
        return folder.name
    note = folder / ".cache/huggingface/download" / f"{shard.as_posix()}.metadata"
    try:
        first = note.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip() if note.is_file() else ""
    except OSError:
        return ""
    return first if _REVISION.fullmatch(first) else ""


class File(NamedTuple):
    """A video: `path` below the folder of the videos, and `name` as the data set gives it, perhaps with folders.

    `path` and `name` are equal, unless the video was in a shard: it is then written to a file named by its digest.
    """

    path: str
    name: str


def name_videos(files: Iterable[File], taken: Iterable[str]) -> dict[File, str]:
    """Map each file to the first unused ID of: stem, path without suffix, path, STEM-DIGEST, then longer forms.

    Args:
        taken: the IDs of the videos for which the data set gives one.
    """
    names = {file: PurePosixPath(file.name.replace("\\", "/")) for file in files}
    tops: dict[str, set[str]] = defaultdict(set)
    for name in names.values():
        tops[name.stem].add(name.parts[0])
    used, found = set(taken), dict[File, str]()
    choices = {file: _choices(file, name, len(tops[name.stem]) == 1) for file, name in names.items()}
    for ids in zip(*choices.values()):
        left = {file: each for file, each in zip(choices, ids) if file not in found}
        counts = Counter(left.values())
        found |= {file: each for file, each in left.items() if counts[each] == 1 and each not in used}
        used.update(found.values())
    return found


def _choices(file: File, name: PurePosixPath, has_one_top: bool) -> tuple[str, ...]:
    """Return possible IDs, shortest first, without the top folder (a split) if all videos with this stem share it."""
    below = PurePosixPath(*(name.parts[1:] if has_one_top and len(name.parts) > 1 else name.parts))
    path = str(below).lstrip("/")
    return name.stem, video_stem(path), path, f"{name.stem}-{PurePosixPath(file.path).stem[:8]}", file.path, str(file)
