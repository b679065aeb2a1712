"""The benchmarks' own files -> manifests (the format is in streams.py), for `ctvr streams import`.

CTVR (papers 000 and 002): `import_msrvtt`, `import_actnet` take the released `.pkl` splits together with
the captions. CVLM (paper 003): `import_cvlm` takes five whole data sets as published. `import_csv` takes
a table of one's own. Every importer checks its result as `load_stream` will, writes it to `out` and
returns it with a short report; videos that are not there are counted, not refused. `import_stream` is what
the command line calls: it picks the importer and the manifest's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import suggest
from orchestrator.errors import ConfigError
from orchestrator.importers.builder import (
    BACKBONE,
    MAX_IDS,
    Builder,
    Captions,
    Manifest,
    empty_task,
    read_csv,
    write_manifest,
)
from orchestrator.importers.captions import clean, read_msrvtt_captions, read_narrations
from orchestrator.importers.cvlm import DATASETS, import_cvlm
from orchestrator.importers.pickles import read_pickle
from orchestrator.streams.load import RENDERED, SPLITS

__all__ = ["import_actnet", "import_csv", "import_cvlm", "import_msrvtt", "import_stream", "read_split"]

MSRVTT_SETTINGS = {"data.num_frames": 12, "data.batch_size": 8, "optim.epochs": 20, **BACKBONE}
# The papers print values of their own for ActivityNet; methods keep them in a preset of this name
ACTNET_SETTINGS = {
    "preset": "paper-actnet",
    "data.num_frames": 24,
    "data.batch_size": 16,
    "optim.epochs": 20,
    **BACKBONE,
}
CSV_COLUMNS = ("video", "caption", "category", "split", "task")
CSV_TIMES = ("start", "end")

# What each kind is made of: word -> an example of what to write, and which words may be left out
KINDS: dict[str, dict[str, str]] = {
    "msrvtt": {
        "split": "MSRVTT_10_dataset.pkl",
        "annotations": "MSRVTT_data.json[,MORE.json]",
        "captions": "MSRVTT_CL_validation.csv",
    },
    "actnet": {"split": "ACTNET_10_dataset.pkl", "train": "train_queries.json", "val": "val_queries.json"},
    "cvlm": {"folder": "FOLDER", "datasets": "msvd,didemo"},
    "csv": {"table": "TABLE.csv"},
}
OPTIONAL = {"datasets"}


# ------------------------------------------------------------------------------------ the command line


def import_stream(kind: str, files: Mapping[str, str], videos: Path | None, root: Path, name: str | None = None) -> str:
    """Import a benchmark as `<root>/streams/<name>.json`: `ctvr streams import KIND word=FILE ...`.

    Args:
        kind: one of KINDS.
        files: word -> file, as the kind needs them; several annotation files stand in one word, by comma.
        videos: the folder below which the videos lie. cvlm has them in its own folder.
        root: the runs folder.
        name: of the stream; default is the kind and its number of tasks (`msrvtt-10`), `cvlm` when all five data
            sets are there, and a table's own file name.

    Returns:
        The importer's report, where the manifest is, and what to type next.

    Raises:
        ConfigError: for an unknown kind, a word too few or too many, or what the importer refuses.
    """
    _check_words(kind, files, videos)
    if name is None:
        name = _default_name(kind, files)
    if name in RENDERED or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"--name {name!r}: choose another; letters, digits, '-', '_' and '.', no embedded stream.")
    out = Path(root) / "streams" / f"{name}.json"
    manifest, report = _import_kind(kind, files, videos, out, name)
    if manifest["name"] != name:
        report = report.replace(f"{manifest['name']}: ", f"{name}: ")
        manifest["name"] = name
        write_manifest(manifest, out)
    elsewhere = "" if Path(root) == Path("runs").resolve() else f" --runs {root}"
    return f"{report}\nwritten: {out}\nnext: ctvr cache build --stream {name}{elsewhere}"


def _check_words(kind: str, files: Mapping[str, str], videos: Path | None) -> None:
    if kind not in KINDS:
        raise ConfigError(f"streams import: {kind!r} is no kind.{suggest(kind, KINDS)} Kinds: {', '.join(KINDS)}.")
    words = KINDS[kind]
    usage = " ".join(
        f"[{word}={example}]" if word in OPTIONAL else f"{word}={example}" for word, example in words.items()
    )
    usage = f"Write: ctvr streams import {kind} {usage}" + ("" if kind == "cvlm" else " --videos FOLDER")
    for word in files:
        if word not in words:
            raise ConfigError(f"streams import {kind}: {word}= is unknown.{suggest(word, words)} {usage}")
    for word in words:
        if not files.get(word) and word not in OPTIONAL:
            raise ConfigError(f"streams import {kind}: {word}= is missing. {usage}")
    if kind != "cvlm" and videos is None:
        raise ConfigError(f"streams import {kind}: --videos is missing. {usage}")
    if kind == "cvlm" and videos is not None:
        raise ConfigError(f"streams import cvlm: --videos {videos} is not needed: videos lie in folder=. {usage}")


def _default_name(kind: str, files: Mapping[str, str]) -> str:
    if kind in {"msrvtt", "actnet"}:
        return f"{kind}-{len(read_split(_path(files['split']))['train'])}"
    if kind == "cvlm":
        chosen = _listed(files.get("datasets", "")) or list(DATASETS)
        return "cvlm" if chosen == list(DATASETS) else f"cvlm-{len(chosen)}"
    return Path(files["table"]).stem


def _import_kind(
    kind: str, files: Mapping[str, str], videos: Path | None, out: Path, name: str
) -> tuple[Manifest, str]:
    if kind == "cvlm":
        return import_cvlm(_path(files["folder"]), out, _listed(files.get("datasets", "")) or None)
    assert videos is not None  # _check_words
    if kind == "msrvtt":
        annotations = [_path(word) for word in _listed(files["annotations"])]
        return import_msrvtt(_path(files["split"]), annotations, _path(files["captions"]), videos, out)
    if kind == "actnet":
        return import_actnet(_path(files["split"]), _path(files["train"]), _path(files["val"]), videos, out)
    return import_csv(_path(files["table"]), videos, out, name)


def _path(word: str) -> Path:
    return Path(word).expanduser()


def _listed(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


# ------------------------------------------------------------------------------------ CTVR: the splits


def read_split(path: Path) -> dict[str, list[dict[str, list[str]]]]:
    """Read a CTVR split file: {"train" | "val": per task, in order: {category: [video id]}}.

    Raises:
        ConfigError: if the file is no such pickle (see `read_pickle`), or tasks and categories do not agree.
    """
    data = read_pickle(path)
    if not isinstance(data, dict) or set(data) != {"train", "val"}:
        raise ConfigError(f"{path}: is not a CTVR split: no dictionary with 'train' and 'val'. Give *_dataset.pkl.")
    split = {name: _split_tasks(tasks, f"{path}: {name}") for name, tasks in data.items()}
    if [list(task) for task in split["train"]] != [list(task) for task in split["val"]]:
        for number, (train, val) in enumerate(zip(split["train"], split["val"]), start=1):
            if set(train) != set(val):
                raise ConfigError(f"{path}: task {number}: train and val list other categories. Download it again.")
        if len(split["train"]) != len(split["val"]):
            raise ConfigError(f"{path}: train and val have different numbers of tasks. Download it again.")
    return split


def _split_tasks(tasks: Any, where: str) -> list[dict[str, list[str]]]:
    if not isinstance(tasks, dict) or not tasks or sorted(tasks, key=str) != sorted(range(1, len(tasks) + 1), key=str):
        raise ConfigError(f"{where}: the tasks are not numbered 1..T. Give the benchmark's own *_dataset.pkl.")
    left = MAX_IDS
    found = []
    for number in range(1, len(tasks) + 1):
        task = tasks[number]
        if not isinstance(task, dict) or len(task) > left or not all(isinstance(ids, list) for ids in task.values()):
            raise ConfigError(f"{where}: task {number} is not category -> list of ids. Download the file again.")
        left -= len(task) + sum(map(len, task.values()))
        if left < 0:
            raise ConfigError(f"{where}: more than {MAX_IDS} ids. Give the benchmark's own *_dataset.pkl.")
        if not all(isinstance(video, str) for ids in task.values() for video in ids):
            raise ConfigError(f"{where}: task {number} holds something that is not an id. Download the file again.")
        found.append({str(category): ids for category, ids in task.items()})
    return found


def import_msrvtt(
    split_pkl: Path, annotations: Path | Sequence[Path], test_csv: Path, videos: Path, out: Path | None
) -> tuple[Manifest, str]:
    """CTVR on MSR-VTT: every caption of a train video is a pair, one caption per test video.

    Args:
        split_pkl: `MSRVTT_10_dataset.pkl` or `MSRVTT_20_dataset.pkl`.
        annotations: one or more of `MSRVTT_data.json`, `train_val_videodatainfo.json`, `test_videodatainfo.json`,
            `MSR_VTT.json`; which schema it is, is seen from the content.
        test_csv: `MSRVTT_CL_validation.csv` (columns video_id, sentence).
        videos: the folder below which videos, or folders of their frames, lie.
        out: the manifest to write; None writes nothing.

    Returns:
        The manifest and a report: counts of each task and split, missing videos.

    Raises:
        ConfigError: if a file is not what it should be, or a video of the split has no caption.
    """
    paths = [annotations] if isinstance(annotations, str | Path) else list(annotations)
    train = read_msrvtt_captions(paths)
    rows = read_csv(test_csv, ("video_id", "sentence"))
    test: Captions = {}
    for line, row in rows:
        if row["video_id"] in test:
            raise ConfigError(f"{test_csv}: line {line}: a second caption of {row['video_id']!r}. Keep one per video.")
        test[row["video_id"]] = clean([row["sentence"]])
    split = read_split(split_pkl)
    sources = {"train": " and ".join(map(str, paths)), "val": str(test_csv)}
    builder = Builder(videos, out)
    tasks = _ctvr_tasks(builder, split, {"train": train, "val": test}, sources, segments={})
    published = {"train": 320, "test": 2990}
    files = [split_pkl, *paths, test_csv]
    return builder.finish(f"msrvtt-{len(tasks)}", "ctvr", tasks, MSRVTT_SETTINGS, files, published)


def import_actnet(
    split_pkl: Path, train_queries: Path, val_queries: Path, videos: Path, out: Path | None
) -> tuple[Manifest, str]:
    """CTVR on ActivityNet Captions: one segment and one caption per video, as the benchmark chose them.

    Args:
        split_pkl: `ACTNET_10_dataset.pkl` or `ACTNET_20_dataset.pkl`.
        train_queries, val_queries: the benchmark's `train_queries.json`, `val_queries.json`.
        videos: the folder below which whole videos lie, or the benchmark's `Activity_Clip_Frames`; a folder
            `<id>_1` of frames is cut already, so its item gets no segment.
        out: the manifest to write; None writes nothing.

    Returns and raises as `import_msrvtt`.
    """
    captions: dict[str, Captions] = {}
    segments: dict[str, list[float]] = {}
    for split_name, path in (("train", train_queries), ("val", val_queries)):
        captions[split_name] = {}
        for video, entry in read_narrations(path):
            if len(entry.sentences) != 1:
                raise ConfigError(
                    f"{path}: {video!r} has {len(entry.sentences)} sentences, the benchmark one; its choice of "
                    "segment cannot be derived from ActivityNet Captions. Give the benchmark's train_queries.json / "
                    "val_queries.json."
                )
            captions[split_name][video] = entry.sentences
            segments[video] = entry.segments[0]
    builder = Builder(videos, out)
    sources = {"train": str(train_queries), "val": str(val_queries)}
    tasks = _ctvr_tasks(builder, read_split(split_pkl), captions, sources, segments)
    published = {"train": 3200, "test": 4910}
    files = [split_pkl, train_queries, val_queries]
    return builder.finish(f"actnet-{len(tasks)}", "ctvr", tasks, ACTNET_SETTINGS, files, published)


def _ctvr_tasks(
    builder: Builder,
    split: dict[str, list[dict[str, list[str]]]],
    captions: Mapping[str, Captions],
    sources: Mapping[str, str],
    segments: Mapping[str, Sequence[float]],
) -> list[dict[str, Any]]:
    """The tasks of a CTVR split. Its "val" is what the papers report on: our test; it has no validation split."""
    for part, tasks in split.items():
        ids = [video for task in tasks for videos in task.values() for video in videos]
        lacking = [video for video in ids if not captions[part].get(video)]
        if lacking:
            raise ConfigError(
                f"{sources[part]}: no caption for {len(lacking)} of the split's {len(ids)} {part} videos, first "
                f"{', '.join(map(repr, lacking[:3]))}. Give the file that has them as well."
            )
    made = []
    for train, val in zip(split["train"], split["val"], strict=True):
        task = empty_task() | {"categories": list(train)}
        for part, target, found in (("train", "train", train), ("val", "test", val)):
            task[target] = [
                builder.item(video, category, captions[part][video], segments.get(video))
                for category in train
                for video in found[category]
            ]
        made.append(task)
    return made


def import_csv(table: Path, videos: Path, out: Path | None, name: str | None = None) -> tuple[Manifest, str]:
    """A table of one's own: columns video, caption, category, split (train, val, test), task[, start, end].

    Rows of the same video (and segment) are its captions. Tasks stand in the order of their numbers, or else of
    their first appearance. `video` is an id or a path below `videos`; start and end are seconds.

    Returns and raises as `import_msrvtt`.
    """
    table = Path(table)
    rows = [(line, row, _row_segment(table, line, row)) for line, row in read_csv(table, CSV_COLUMNS, CSV_TIMES)]
    segments_of: dict[str, set[Any]] = {}
    for _, row, segment in rows:
        segments_of.setdefault(row["video"], set()).add(segment)
    builder = Builder(videos, out)
    seen: dict[tuple[str, Any], tuple[tuple[str, ...], dict[str, Any]]] = {}
    tasks: dict[str, dict[str, Any]] = {}
    for line, row, segment in rows:
        if row["split"] not in SPLITS:
            hint = suggest(row["split"], SPLITS)
            raise ConfigError(f"{table}: line {line}: split is {row['split']!r}.{hint} Write train, val or test.")
        place = (row["task"], row["split"], row["category"])
        key = (row["video"], segment)
        if key not in seen:
            item = builder.item(row["video"], row["category"], [], segment)
            if segment is not None and len(segments_of[row["video"]]) > 1:
                item["video"] += f"@{segment[0]:g}-{segment[1]:g}"
            task = tasks.setdefault(row["task"], empty_task())
            if row["category"] not in task["categories"]:
                task["categories"].append(row["category"])
            task[row["split"]].append(item)
            seen[key] = place, item
        if seen[key][0] != place:
            first = " ".join(seen[key][0])
            raise ConfigError(f"{table}: line {line}: {row['video']!r} is also in {first!r}. Keep it in one place.")
        seen[key][1]["captions"].append(row["caption"])
    names = sorted(tasks, key=int) if all(task.isdecimal() for task in tasks) else list(tasks)
    stem = name or (Path(out).stem if out else table.stem)
    return builder.finish(stem, "ctvr", [tasks[task] for task in names], {}, [table])


def _row_segment(table: Path, line: int, row: Mapping[str, str]) -> tuple[float, float] | None:
    start, end = row.get("start", ""), row.get("end", "")
    if not start and not end:
        return None
    try:
        return float(start), float(end)
    except ValueError as error:
        raise ConfigError(
            f"{table}: line {line}: start {start!r} and end {end!r} are not two numbers. Write seconds, or neither."
        ) from error
