"""Importers of CTVR (also used by StructAlign): released splits of MSR-VTT and ActivityNet Captions -> manifests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctvr.orchestrator.data.pickles import read_pickle
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import BACKBONE, MAX_IDS, Builder, Captions, Manifest, empty_task
from ctvr.orchestrator.importers.captions import msrvtt_id, read_msrvtt_captions, read_narrations
from ctvr.orchestrator.importers.cells import captions_in, read_csv

MSRVTT_SETTINGS = {"preset": "paper", "data.num_frames": 12, "data.batch_size": 8, "optim.epochs": 20, **BACKBONE}


# The papers give separate values for ActivityNet; each method has them in a preset of this name
ACTNET_SETTINGS = {
    "preset": "paper-actnet",
    "data.num_frames": 24,
    "data.batch_size": 16,
    "optim.epochs": 20,
    **BACKBONE,
}


Split = dict[str, list[dict[str, list[str]]]]  # part -> a dictionary for each task, category -> ids of videos


def read_split(path: Path) -> Split:
    """Read a CTVR split file: {"train" | "val": {task number: {category: [video id]}}}.

    Raises:
        ConfigError: if the file is not such a pickle (see `read_pickle`), or tasks and categories do not agree.
    """
    data = read_pickle(path)
    if not isinstance(data, dict) or set(data) != {"train", "val"}:
        raise ConfigError(f"{path}: is not a CTVR split, a dictionary with 'train' and 'val'. Use *_dataset.pkl.")
    split = {name: _split_tasks(tasks, f"{path}: {name}") for name, tasks in data.items()}
    if [list(task) for task in split["train"]] != [list(task) for task in split["val"]]:
        for number, (train, val) in enumerate(zip(split["train"], split["val"]), start=1):
            if set(train) != set(val):
                raise ConfigError(f"{path}: task {number}: train and val list different categories. Download it again.")
        if len(split["train"]) != len(split["val"]):
            raise ConfigError("train and val have different numbers of tasks", path, remedy="Download it again.")
    return split


def _split_tasks(tasks: Any, where: str) -> list[dict[str, list[str]]]:
    if not isinstance(tasks, dict) or not tasks or sorted(tasks, key=str) != sorted(range(1, len(tasks) + 1), key=str):
        raise ConfigError("the tasks are not numbered 1..T", where, remedy="Use the benchmark's own *_dataset.pkl.")
    left = MAX_IDS
    found = []
    for number in range(1, len(tasks) + 1):
        task = tasks[number]
        if not isinstance(task, dict) or len(task) > left or not all(isinstance(ids, list) for ids in task.values()):
            raise ConfigError(
                f"task {number} does not map categories to lists of ids", where, remedy="Download it again."
            )
        left -= len(task) + sum(map(len, task.values()))
        if left < 0:
            raise ConfigError(f"more than {MAX_IDS} ids", where, remedy="Use the benchmark's own *_dataset.pkl.")
        if not all(isinstance(video, str) for ids in task.values() for video in ids):
            raise ConfigError(f"{where}: task {number} contains a value that is not an id. Download the file again.")
        found.append({str(category): ids for category, ids in task.items()})
    return found


def hold_out(split: Split, number: int, source: Path) -> Split:
    """Move `number` training videos of every category into a part "held", which becomes the validation split.

    The benchmark's own "val" stays the test split. A digest of the id selects the videos, so that the order of the file
    and the number of tasks have no effect.

    Raises:
        ConfigError: if a category would have no training video left; the message names it.
    """
    left: list[dict[str, list[str]]] = []
    held: list[dict[str, list[str]]] = []
    for place, task in enumerate(split["train"], start=1):
        for category, ids in task.items():
            if len(ids) <= number:
                raise ConfigError(
                    f"held_out={number}: category {category} of task {place} in {source} has {len(ids)} training "
                    f"videos, and at least one must remain. Use held_out={len(ids) - 1} or less."
                )
        chosen = {name: set(sorted(ids, key=_draw)[:number]) for name, ids in task.items()}
        left.append({name: [video for video in ids if video not in chosen[name]] for name, ids in task.items()})
        held.append({name: [video for video in ids if video in chosen[name]] for name, ids in task.items()})
    return {"train": left, "val": split["val"], "held": held}


def _draw(video: str) -> str:
    return hashlib.sha256(video.encode()).hexdigest()


def import_msrvtt(
    split_pkl: Path,
    annotations: Path | Sequence[Path],
    test_csv: Path,
    videos: Path,
    out: Path | None,
    held_out: int = 0,
) -> tuple[Manifest, str]:
    """Import CTVR on MSR-VTT: every caption of a training video is a pair, one caption per test video.

    Args:
        split_pkl: `MSRVTT_10_dataset.pkl` or `MSRVTT_20_dataset.pkl`.
        annotations: one or more of `MSRVTT_data.json`, `train_val_videodatainfo.json`, `test_videodatainfo.json`,
            `MSR_VTT.json`; the schema is recognized by the content.
        test_csv: `MSRVTT_CL_validation.csv` (columns video_id, sentence).
        videos: the folder that contains the videos, or folders of their frames.
        out: file of the manifest; if None, nothing is written.
        held_out: training videos per category that become the validation split (`hold_out`).

    Returns:
        The manifest and a report: counts of each task and split, missing videos.

    Raises:
        ConfigError: if a file is malformed, or a video of the split has no caption.
    """
    paths = [annotations] if isinstance(annotations, str | Path) else list(annotations)
    train = read_msrvtt_captions(paths)
    rows = read_csv(test_csv, ("video_id", "sentence"))
    test: Captions = {}
    for line, row in rows:
        row["video_id"] = msrvtt_id(row["video_id"])
        if row["video_id"] in test:
            raise ConfigError(f"{test_csv}: line {line}: a second caption of {row['video_id']!r}. Keep one per video.")
        test[row["video_id"]] = captions_in(f"{test_csv}: line {line}", row["sentence"])
        if len(test[row["video_id"]]) > 1:
            raise ConfigError(f"line {line}: {row['video_id']!r} has a list of captions", test_csv, remedy="Keep one.")
    split = _read(split_pkl, held_out)
    sources = {"train": " and ".join(map(str, paths)), "val": str(test_csv)}
    builder = Builder(videos, out)
    tasks = _ctvr_tasks(builder, split, {"train": train, "val": test}, sources, segments={})
    published = {"train": 320, "test": 2990}
    files = [split_pkl, *paths, test_csv]
    name = ctvr_name("msrvtt", len(tasks), held_out)
    return builder.finish(name, "ctvr", tasks, MSRVTT_SETTINGS, files, published, held_out)


def ctvr_name(kind: str, tasks: int, held_out: int) -> str:
    """Return the benchmark's name, with a suffix if videos are held out."""
    return f"{kind}-{tasks}" + (f"-val{held_out}" if held_out else "")


def _read(split_pkl: Path, held_out: int) -> Split:
    split = read_split(split_pkl)
    return hold_out(split, held_out, split_pkl) if held_out else split


def import_actnet(
    split_pkl: Path, train_queries: Path, val_queries: Path, videos: Path, out: Path | None, held_out: int = 0
) -> tuple[Manifest, str]:
    """Import CTVR on ActivityNet Captions: one segment and one caption per video, as the benchmark selected them.

    Args:
        split_pkl: `ACTNET_10_dataset.pkl` or `ACTNET_20_dataset.pkl`.
        train_queries, val_queries: the benchmark's `train_queries.json`, `val_queries.json`.
        videos: the folder that contains whole videos, or the benchmark's `Activity_Clip_Frames`; a folder `<id>_1`
            contains only the segment's frames, so its item has no segment.
        out: file of the manifest; if None, nothing is written.

    The return value and errors are those of `import_msrvtt`.
    """
    captions: dict[str, Captions] = {}
    segments: dict[str, list[float]] = {}
    for split_name, path in (("train", train_queries), ("val", val_queries)):
        captions[split_name] = {}
        for video, entry in read_narrations(path):
            if len(entry.sentences) != 1:
                raise ConfigError(
                    f"{path}: {video!r} has {len(entry.sentences)} sentences, the benchmark has one; its selected "
                    "segment cannot be derived from ActivityNet Captions. Use the benchmark's train_queries.json / "
                    "val_queries.json."
                )
            captions[split_name][video] = entry.sentences
            segments[video] = entry.segments[0]
    builder = Builder(videos, out)
    sources = {"train": str(train_queries), "val": str(val_queries)}
    tasks = _ctvr_tasks(builder, _read(split_pkl, held_out), captions, sources, segments)
    published = {"train": 3200, "test": 4910}
    files = [split_pkl, train_queries, val_queries]
    name = ctvr_name("actnet", len(tasks), held_out)
    return builder.finish(name, "ctvr", tasks, ACTNET_SETTINGS, files, published, held_out)


def _ctvr_tasks(
    builder: Builder,
    split: Split,
    captions: Mapping[str, Captions],
    sources: Mapping[str, str],
    segments: Mapping[str, Sequence[float]],
) -> list[dict[str, Any]]:
    """Return the tasks of a CTVR split. Its "val", on which papers report, becomes "test"; "held" becomes "val"."""
    captions, sources = {**captions, "held": captions["train"]}, {**sources, "held": sources["train"]}
    for part, tasks in split.items():
        ids = [video for task in tasks for videos in task.values() for video in videos]
        lacking = [video for video in ids if not captions[part].get(video)]
        if lacking:
            raise ConfigError(
                f"{sources[part]}: no caption for {len(lacking)} of the split's {len(ids)} {part} videos, first "
                f"{', '.join(map(repr, lacking[:3]))}. Also pass the file that contains them."
            )
    made = []
    for place, train in enumerate(split["train"]):
        task = empty_task() | {"categories": list(train)}
        for part, tasks in split.items():
            target, found = {"val": "test", "held": "val"}.get(part, part), tasks[place]
            task[target] = [
                builder.item(video, category, captions[part][video], segments.get(video))
                for category in train
                for video in found[category]
            ]
        made.append(task)
    return made
