"""Importer of CVLM (BMU-MoCo): five complete published data sets become one stream.

Two further data sets become separate streams, for CAMoE and TempMe: LSMDC, and MSR-VTT in its original split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.data.pickles import read_pickle
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import BACKBONE, MAX_IDS, Builder, Captions, Manifest, empty_task
from ctvr.orchestrator.importers.captions import (
    all_text,
    clean,
    msrvtt_id,
    read_entries,
    read_lines,
    read_msrvtt_captions,
    read_msrvtt_splits,
    read_narrations,
)
from ctvr.orchestrator.importers.cells import captions_in, read_csv
from ctvr.orchestrator.importers.folder_files import FolderFiles, describe_unread, keep_listed
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.stream import SPLITS
from ctvr.orchestrator.streams.videos import video_stem

# The paper does not give the number of frames
CVLM_SETTINGS = {"preset": "paper", "data.batch_size": 48, "optim.epochs": 10, **BACKBONE}
ALONE = {"preset": "paper", **BACKBONE}
# Numbers of training and searched videos. The training file of LSMDC has several lines for some clips, so that its
# 101,079 lines are not the number of clips
PUBLISHED: dict[str, tuple[int | None, int]] = {
    "vatex": (25_991, 6_000),
    "activitynet": (10_009, 4_917),
    "msrvtt": (9_000, 1_000),
    "didemo": (8_395, 1_004),  # 8,392 in the lists used by other papers
    "msvd": (1_200, 670),
    "lsmdc": (None, 1_000),
    "msrvtt-full": (7_010, 2_990),
}
MAX_WORDS, MAX_CHARACTERS = 1_000, 20_000  # per caption
MSVD_BYTES = 64 << 20
LSMDC_CELLS = 6


def import_cvlm(folder: Path, out: Path | None, datasets: Sequence[str] | None = None) -> tuple[Manifest, str]:
    """Import BMU-MoCo's stream: five complete data sets, each a task with its own gallery.

    `folder` contains one folder per data set, with its published files and, anywhere below it, its videos:

        vatex/        vatex_training_*.json, vatex_validation_*.json, vatex_public_test_english_*.json; or
                      ref_captions.json with the lists below
        activitynet/  train.json, val_1.json                       (a paragraph per video)
        msrvtt/       MSRVTT_data.json, MSRVTT_JSFUSION_test.csv   (1K-A; all other videos train)
        didemo/       train_data.json, test_data.json[, val_data.json]   (a paragraph per video)
        msvd/         train_list.txt, val_list.txt, test_list.txt, raw-captions.pkl, captions_msvd.json, captions.txt,
                      captions.csv or the corpus's own *corpus*.csv
        lsmdc/        LSMDC16_annos_training.csv, LSMDC16_annos_val.csv, LSMDC16_challenge_1000_publictect.csv
        msrvtt-full/  MSRVTT_data.json, or train_val_videodatainfo.json and test_videodatainfo.json  (all captions)

    Any data set may have train_list.txt, val_list.txt and test_list.txt (an id per line), which keep a paper's videos.

    Args:
        datasets: names of data sets, in the order of the tasks; default: the first five, in the paper's order. A single
            data set is imported as one task, under its own name and without CVLM's settings, for papers without a
            stream.

    The return value and errors are those of `import_msrvtt`. Ids start with the data set's name.
    """
    names = list(FIVE) if datasets is None else list(datasets)
    for name in names:
        if name not in DATASETS:
            raise ConfigError(f"{name!r} is unknown.{suggest(name, DATASETS)} All: {', '.join(DATASETS)}.", "datasets")
        if not (Path(folder) / name).is_dir():
            raise ConfigError("no such folder", Path(folder) / name, remedy=f"Create it, or omit {name!r} in datasets.")
    builder = Builder(folder, out)
    tasks, sources, notes, unread = [], [], list[str](), list[str]()
    for name in names:
        files = FolderFiles(Path(folder) / name)
        task = empty_task() | {"categories": [name]}
        for split, captions in keep_listed(files, DATASETS[name](files)).items():
            if empty := [video for video, texts in captions.items() if not texts]:
                notes.append(
                    f"{name}: {len(empty)} {split} videos without caption text are left out, first {empty[0]!r}."
                )
            task[split] = [builder.item(video, name, texts, below=name) for video, texts in captions.items() if texts]
        tasks.append(task)
        sources += files.used
        unread += [f"{name}/{each}" for each in files.unread()]
    if len(names) == 1:
        manifest, report = builder.finish(names[0], "ctvr", tasks, ALONE, sources, _published(names))
    else:
        published = _published(names) if names == list(FIVE) else None
        stem = "cvlm" if published else (Path(out).stem if out else "cvlm-part")
        manifest, report = builder.finish(stem, "cvlm", tasks, CVLM_SETTINGS, sources, published)
    return manifest, "\n".join([report, *notes, *describe_unread(unread)])


def _published(names: Sequence[str]) -> dict[str, int]:
    train, test = zip(*(PUBLISHED[name] for name in names))
    found = {"test": sum(test)}
    return found if None in train else {"train": sum(train), **found}


def _vatex(files: FolderFiles) -> dict[str, Captions]:
    """Return the captions of VATEX's own files, or of `ref_captions.json`, whose splits are given by lists."""
    train = files.find("*train*.json")
    if train is None and (whole := files.find("ref_captions.json")):
        files.need("test_list.txt")
        return {"train": _read_captions(whole)}
    paths = {
        "train": train or files.need("*train*.json", "ref_captions.json"),
        "val": files.find("*validation*.json", "*val*.json"),
        "test": files.find("*test_english*.json", "*test*.json") or files.need("*test*.json", "test_list.txt"),
    }
    found: dict[str, Captions] = {}
    for split, path in paths.items():
        if path is not None and path.suffix == ".json":
            entries = read_entries(path, "videoID", "enCap", list)
            found[split] = {video: clean(all_text(path, video, captions)) for video, captions in entries}
    return found


def _activitynet_captions(files: FolderFiles) -> dict[str, Captions]:
    paths = {"train": files.need("train.json"), "test": files.need("val_1.json")}
    return {
        split: {video: clean([" ".join(entry.sentences)]) for video, entry in read_narrations(path)}
        for split, path in paths.items()
    }


def _msrvtt_1ka(files: FolderFiles) -> dict[str, Captions]:
    whole = files.find("msrvtt_data.json", "msr_vtt.json")
    paths = [whole] if whole else [files.need("train_val_videodatainfo.json"), files.need("test_videodatainfo.json")]
    captions = read_msrvtt_captions(paths)
    table = files.need("*jsfusion_test*.csv", "*test*.csv")
    test: Captions = {}
    for line, row in read_csv(table, ("video_id", "sentence")):
        test.setdefault(msrvtt_id(row["video_id"]), []).extend(captions_in(f"{table}: line {line}", row["sentence"]))
    return {"train": {video: texts for video, texts in captions.items() if video not in test}, "test": test}


def _msrvtt_full(files: FolderFiles) -> dict[str, Captions]:
    """Return captions; published validation videos join the training split (CAMoE, table 8: 7k and 3k)."""
    whole = files.find("msrvtt_data.json")
    if whole is None:
        paths = {"train": files.need("train_val_videodatainfo.json"), "test": files.need("test_videodatainfo.json")}
        return {split: read_msrvtt_captions([path]) for split, path in paths.items()}
    splits = read_msrvtt_splits(whole)
    found: dict[str, Captions] = {"train": {}, "test": {}}
    for video, texts in read_msrvtt_captions([whole]).items():
        if video not in splits:
            raise ConfigError(f"{video!r} has captions but lacks a split", whole, remedy="Download it again.")
        found["test" if splits[video] == "test" else "train"][video] = texts
    return found


def _lsmdc(files: FolderFiles) -> dict[str, Captions]:
    """Return the movie clips of LSMDC with their captions; a clip may have several captions."""
    paths = {
        "train": files.need("lsmdc16_annos_training.csv", "*train*.csv"),
        "val": files.find("lsmdc16_annos_val.csv", "*val*.csv"),
        "test": files.need("lsmdc16_challenge_1000_publictect.csv", "*test*.csv"),
    }
    found: dict[str, Captions] = {}
    for split, path in paths.items():
        for number, line in enumerate(read_lines(path) if path is not None else (), start=1):
            cells = line.strip(" ").split("\t")
            if line.strip() and len(cells) != LSMDC_CELLS:
                raise ConfigError(
                    f"{path}: line {number}: {len(cells)} cells, not {LSMDC_CELLS} (clip, four times, sentence) "
                    "between tabs. Download it again."
                )
            if line.strip() and not any(cell[:1].isdigit() for cell in cells[1:5]):
                raise ConfigError(f"{path}: line {number}: {cells[1]!r:.40} is not a time. Remove the header line.")
            if line.strip():
                found.setdefault(split, {}).setdefault(cells[0], []).extend(clean(cells[-1:]))
    return found


def _didemo(files: FolderFiles) -> dict[str, Captions]:
    paths = {
        "train": files.need("train_data.json"),
        "val": files.find("val_data.json"),
        "test": files.need("test_data.json"),
    }
    found: dict[str, Captions] = {}
    for split, path in paths.items():
        if path is not None:
            sentences: Captions = {}
            for video, description in read_entries(path, "video", "description", str):
                sentences.setdefault(video, []).append(description)
            found[split] = {video: clean([" ".join(clean(texts))]) for video, texts in sentences.items()}
    return found


def _msvd(files: FolderFiles) -> dict[str, Captions]:
    captions = _msvd_captions(
        files.need("raw-captions.pkl", *(f"*captions*.{end}" for end in ("csv", "txt", "json")), "*corpus*.csv")
    )
    stems = {video_stem(video): video for video in captions}
    found: dict[str, Captions] = {}
    for split in SPLITS:
        path = files.need(f"{split}_list.txt", f"*{split}*.txt")
        listed = [line.strip() for line in read_lines(path) if line.strip()]
        ids = [video if video in captions else stems.get(video_stem(video), video) for video in listed]
        lacking = [video for video in ids if not captions.get(video)]
        if lacking:
            raise ConfigError(
                f"{path}: {len(lacking)} of {len(ids)} videos have no caption, first {lacking[0]!r}. Use the captions "
                "that belong to this list."
            )
        found[split] = {video: captions[video] for video in ids}
    return found


def _msvd_captions(path: Path) -> Captions:
    captions: Captions = {}
    if path.suffix == ".pkl":
        data = read_pickle(path, max_bytes=MSVD_BYTES)
        if not isinstance(data, dict):
            raise ConfigError("does not map ids to captions", path, remedy="Use MSVD's raw-captions.pkl.")
        left = MAX_IDS
        for video, entries in data.items():
            left -= len(entries) if isinstance(entries, list) else MAX_IDS + 1
            if left < 0:
                raise ConfigError(f"{video!r} lacks a list of captions", path, remedy="Use MSVD's raw-captions.pkl.")
            captions[str(video)] = clean(all_text(path, str(video), [_join_words(entry) for entry in entries]))
    elif path.suffix == ".json":
        captions = _read_captions(path)
    elif path.suffix == ".csv" and "corpus" in path.name.lower():  # the first published version, in all languages
        for _, row in read_csv(path, ("VideoID", "Start", "End", "Language"), ("Description",)):
            if row["Language"] == "English" and row["Description"]:
                captions.setdefault(f"{row['VideoID']}_{row['Start']}_{row['End']}", []).append(row["Description"])
    elif path.suffix == ".csv":
        for number, row in read_csv(path, ("video_id", "caption")):
            captions.setdefault(row["video_id"], []).extend(captions_in(f"{path}: line {number}", row["caption"]))
    else:
        for number, line in enumerate(read_lines(path), start=1):
            video, caption = [*line.split(maxsplit=1), "", ""][:2]  # separated by a blank or a tab
            if video and not caption.strip():
                raise ConfigError(f"{path}: line {number}: no caption after {video!r}. Use `video_id caption`.")
            if video:
                captions.setdefault(video, []).append(caption.strip())
    return captions


def _read_captions(path: Path) -> Captions:
    """Read a JSON object that maps each ID to its captions (X-Pool's captions_msvd.json, HGR's ref_captions.json)."""
    data = read_json(path, unique_keys=True)
    captions: Captions = {}
    for video, texts in data.items() if isinstance(data, dict) else [("", None)]:
        if not isinstance(texts, list):
            raise ConfigError("does not map ids to captions", path, remedy=f"Use the published {path.name}.")
        captions[video] = clean(all_text(path, video, texts))
    return captions


def _join_words(entry: Any) -> Any:
    """Join a caption that was published as a list of words; return any other value unchanged."""
    if not isinstance(entry, list) or len(entry) > MAX_WORDS or not all(isinstance(word, str) for word in entry):
        return entry
    return " ".join(entry) if sum(map(len, entry)) <= MAX_CHARACTERS else entry


DATASETS: dict[str, Callable[[FolderFiles], dict[str, Captions]]] = {
    "vatex": _vatex,
    "activitynet": _activitynet_captions,
    "msrvtt": _msrvtt_1ka,
    "didemo": _didemo,
    "msvd": _msvd,
    "lsmdc": _lsmdc,
    "msrvtt-full": _msrvtt_full,
}
FIVE = tuple(DATASETS)[:5]  # the data sets of BMU-MoCo
