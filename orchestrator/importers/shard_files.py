"""Rows of one shard of a data set: .parquet, Arrow as `datasets.save_to_disk` writes it, or a WebDataset .tar."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ctvr.orchestrator.data.array_files import check_tar_end, declared_bytes, open_tar
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers import arrow_size
from ctvr.orchestrator.text_files import open_regular
from ctvr.orchestrator.video.endings import is_video_name

MEDIA = ("video", "mp4", "file", "bytes")  # columns of bytes, most likely first
NAMES = ("file_name", "video_file_name", "video_path", "path", "filename", "video", "video_id")
TAKEN = ("captions", "caption", "text", "sentence", "task", "category", "start", "end", "video_id", "split", "twin")
SPARE, RATIO = 64 << 20, 20  # bytes that are always allowed; maximum ratio of unpacked to packed bytes
MOST_ROWS, BATCH = 1024, 128 << 20  # rows and bytes read at a time
_FILE, _END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"  # at both ends of an Arrow file, at the end of a stream
VIDEO, _TEXTS = "of a video", (".txt", ".json")  # kinds of members of a .tar


def read_shard(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard as dictionaries: the columns listed in TAKEN, and `bytes` and `name` of the video.

    Raises:
        ConfigError: if the file is of another kind, is damaged, or does not have exactly one column or member with the
            video.
    """
    try:
        yield from READERS[file.suffix](file)
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: a .txt or .json in it is not UTF-8 ({error.reason}). Save it as UTF-8.") from error
    except Exception as error:  # Arrow, OSError, ValueError, tarfile and what they raise for damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise ConfigError(f"cannot be read as {file.suffix} ({reason})", file, remedy="Download it again.") from error


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(file) as opened:
        columns = _Columns(file, opened.schema_arrow)
        sizes = declared_bytes(opened.metadata, columns.wanted)
        _require_size(file, sum(sizes))
        # A value is never larger than its row group, even if repeated values are stored once
        rows = max(1, min(MOST_ROWS, BATCH // max([1, *sizes])))
        for batch in opened.iter_batches(batch_size=rows, columns=columns.wanted):
            yield from columns.rows(batch)


def _arrow(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as arrow

    with arrow.memory_map(str(file)) as source:
        is_file = source.read(len(_FILE)) == _FILE  # pandas and polars write this format, a stream with an index
        end = _FILE if is_file else _END
        source.seek(source.size() - len(end))
        if source.read() != end:
            raise ValueError("it is truncated")
        start = 8 if is_file else 0
        source.seek(start)
        _require_size(file, arrow_size.declared_bytes(source))
        source.seek(start)
        opened: Any = arrow.ipc.open_stream(source)
        columns = _Columns(file, opened.schema)
        for whole in opened:
            batch = whole.select(columns.wanted)
            batch.validate(full=True)  # a damaged file would be read beyond its end
            yield from columns.rows(batch)


def _require_size(file: Path, declared: int) -> None:
    """Refuse a file that declares too many bytes (a decompression bomb), before it is unpacked."""
    size = file.stat().st_size
    if declared > SPARE + RATIO * size:
        fault = f"declares {declared >> 20} MB in {size / (1 << 20):.3g} MB, more than {RATIO} times as much"
        raise ConfigError(fault, file, remedy="Check where it comes from.")


class _Columns:
    """The columns of a table to read, including the columns of the video and of its name."""

    def __init__(self, file: Path, schema: Any) -> None:
        self.media, self.name = _media(file, schema), next((n for n in NAMES if _is_name(schema, n)), None)
        names = [*TAKEN, *(each for each in (self.media, self.name) if each)]
        self.wanted = [each for each in dict.fromkeys(names) if each in schema.names]

    def rows(self, batch: Any) -> Iterator[dict[str, Any]]:
        for place in range(len(batch)):
            (row,) = batch.slice(place, 1).to_pylist()  # all values as Python objects may not fit in memory
            value = row.get(self.media) if self.media else None
            path = row.get(self.name) if self.name and self.name != self.media else None
            if isinstance(value, Mapping):
                path, value = value.get("path") or path, value.get("bytes")
            found = _taken({key: cell for key, cell in row.items() if key != self.media})
            yield {**found, "bytes": value, "name": path if path is None else str(path)}


def _taken(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: row[key] for key in TAKEN if row.get(key) is not None}
    found.setdefault("caption", found.pop("sentence", None))
    return found


def _media(file: Path, schema: Any) -> str | None:
    """Return the column that contains videos as bytes."""
    import pyarrow.types as types

    found = []
    for column in schema:
        kind = column.type
        inner = kind.field("bytes").type if types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
        if types.is_binary(inner) or types.is_large_binary(inner) or types.is_binary_view(inner):
            found.append(column.name)
    chosen = next((name for name in MEDIA if name in found), found[0] if len(found) == 1 else None)
    if found and chosen is None:
        raise ConfigError(f"{file}: {' and '.join(found[:3])} contain bytes. Rename the videos' column to 'video'.")
    return chosen


def _is_name(schema: Any, name: str) -> bool:
    import pyarrow.types as types

    kinds = [schema.field(index).type for index in schema.get_all_field_indices(name)]
    kinds = [kind.value_type if types.is_dictionary(kind) else kind for kind in kinds]
    names = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer)
    return len(kinds) == 1 and any(is_kind(kinds[0]) for is_kind in names)


def _tar(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a WebDataset shard: KEY.mp4 (or another video), KEY.txt (its caption), KEY.json (cells)."""
    with open_regular(file) as regular, open_tar(regular) as archive:
        size = regular.seek(0, io.SEEK_END)
        regular.seek(0)
        members = [each for each in archive if _kind(each.name)]
        check_tar_end(archive, regular)
        if not members:
            raise ConfigError(f"{file}: has no video. Put KEY.mp4 next to KEY.txt; for features see `import features`.")
        for key, parts in _samples([each.name for each in members]).items():
            found: dict[str, list[bytes]] = defaultdict(list)
            name = ""
            for member in (members[place] for place in parts):
                stream = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if stream is None or member.size > size:
                    raise ValueError(f"{member.name[:60]!r} is not a whole file within it")
                kind = _kind(member.name)
                found[kind].append(stream.read())
                name = key + PurePosixPath(member.name).suffix if kind == VIDEO else name
            if not name:
                raise ConfigError(f"{key!r:.80} has no video", file, remedy="Put KEY.mp4 next to KEY.txt or KEY.json.")
            if many := [kind for kind in (VIDEO, ".txt") if len(found[kind]) > 1]:
                raise ConfigError(f"{key!r:.80} has two files {many[0]}", file, remedy="Keep one file of each kind.")
            row = _cells(f"{file}: {key!r:.80}", found[".json"])
            if found[".txt"]:
                row["caption"] = found[".txt"][0].decode("utf-8-sig").strip()
            yield {**_taken(row), "bytes": found[VIDEO][0], "name": name}


def _cells(where: str, texts: list[bytes]) -> dict[str, Any]:
    """Return the cells of the .json files of a sample, such as KEY.json and KEY.info.json."""
    cells: dict[str, Any] = {}
    for row in map(json.loads, texts):
        if not isinstance(row, dict):
            raise ConfigError("its .json is not an object", where, remedy='Use {"caption": ...}.')
        if different := [name for name in TAKEN if name in row and cells.get(name, row[name]) != row[name]]:
            raise ConfigError(f"its .json files have two values for {different[0]}", where, remedy="Keep one of them.")
        cells |= row
    return cells


def _kind(member: str) -> str:
    """Return VIDEO, an extension in _TEXTS, or "" for a member that is skipped."""
    name = member.rpartition("/")[2]
    if name.startswith("."):
        return ""
    return VIDEO if is_video_name(name) else next((end for end in _TEXTS if name.lower().endswith(end)), "")


def _samples(names: list[str]) -> dict[str, list[int]]:
    """Return the positions of each key's members. A key ends at the first dot of a name, as in WebDataset.

    It ends at the last dot if two videos would share a key: their names contain dots (a.1.mp4, a.2.mp4).
    """
    for at_first in (True, False):
        found: dict[str, list[int]] = defaultdict(list)
        for place, name in enumerate(names):
            folder, slash, last = name.removeprefix("./").rpartition("/")
            found[folder + slash + last.split(".")[0] if at_first else name.rpartition(".")[0]].append(place)
        if all(sum(_kind(names[place]) == VIDEO for place in places) < 2 for places in found.values()):
            break
    return found


READERS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {".parquet": _parquet, ".arrow": _arrow, ".tar": _tar}
