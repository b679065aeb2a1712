"""Import of streams (`ctvr streams import`): selects the importer of a kind and writes the manifest.

    importers.ctvr         CTVR (MSR-VTT, ActivityNet)
    importers.cvlm         CVLM (BMU-MoCo)
    importers.csv_table    a user's table
    importers.features     a table with features instead of videos
    importers.hf_dataset   a folder in the layout of Hugging Face's datasets
    importers.images       labeled images (Table 4 of BMU-MoCo)
    importers.msrvtt_qa    questions (Table 7 of TempMe)

Every importer checks its result as `load_stream` does, writes it to `out` and returns it with a short report. Missing
videos are counted, not rejected. The format is in streams/manifest.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ctvr.orchestrator.config import parse_overrides, suggest
from ctvr.orchestrator.data.hub_repository import fetch_repository, is_repository
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Manifest, correct_captions, items_of, write_manifest
from ctvr.orchestrator.importers.csv_table import import_csv
from ctvr.orchestrator.importers.ctvr import ctvr_name, import_actnet, import_msrvtt, read_split
from ctvr.orchestrator.importers.cvlm import FIVE, import_cvlm
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.importers.hf_dataset import import_dataset
from ctvr.orchestrator.importers.images import BENCHMARKS as IMAGES
from ctvr.orchestrator.importers.images import import_images
from ctvr.orchestrator.importers.msrvtt_qa import NAME as QUESTIONS
from ctvr.orchestrator.importers.msrvtt_qa import import_questions
from ctvr.orchestrator.output_dir import check_name, is_name, nearest_name, runs_option
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.load import RENDERED
from ctvr.orchestrator.streams.manifest import parse_manifest

# Kind -> its arguments with an example of each; those in OPTIONAL may be omitted
KINDS: dict[str, dict[str, str]] = {
    "msrvtt": {
        "split": "MSRVTT_10_dataset.pkl",
        "annotations": "MSRVTT_data.json[,MORE.json]",
        "captions": "MSRVTT_CL_validation.csv",
        "held_out": "2",
    },
    "actnet": {
        "split": "ACTNET_10_dataset.pkl",
        "train": "train_queries.json",
        "val": "val_queries.json",
        "held_out": "2",
    },
    "cvlm": {"folder": "FOLDER", "datasets": "msvd,didemo"},
    **{kind: {"folder": "FOLDER", "classes": "1"} for kind in IMAGES},
    QUESTIONS: {"folder": "FOLDER", "tasks": "1"},
    "csv": {"table": "TABLE.csv", "tasks": "month"},
    "hf": {"folder": "FOLDER"},
    "features": {"table": "TABLE.csv", "features": "FEATURES.npz", "text": "TEXTS.npy", "tasks": "month"},
}
OPTIONAL = {"datasets", "text", "tasks", "held_out", "classes"}
IN_FOLDER = {"table": "table.csv", "features": "features.parquet", "text": "text_features.parquet"}  # of an export
NO_VIDEOS = ("cvlm", "features", "hf", *IMAGES)  # their own arguments give all locations


# ------------------------------------------------------------------------------------ the command line


def import_stream(
    kind: str,
    files: Mapping[str, str],
    videos: Path | None,
    root: Path,
    name: str | None = None,
    correct: bool = False,
) -> str:
    """Import a benchmark as `<root>/streams/<name>.json`: `ctvr streams import KIND word=FILE ...`.

    Args:
        kind: one of KINDS.
        files: argument name -> file, as the kind requires; several annotation files are separated by commas. For
            features, `folder` names a folder or repository with the files of IN_FOLDER, instead of these.
        videos: the folder of the videos; None for the kinds in NO_VIDEOS.
        root: the runs folder.
        name: the name of the stream; default: the kind and its number of tasks (`msrvtt-10`), `cvlm` for all five data
            sets, and for a table the name of its file.
        correct: whether to correct HTML entities and wrongly encoded text in captions.

    Returns:
        The importer's report, the path of the manifest, and the next command.

    Raises:
        ConfigError: for an unknown kind, a missing or unknown argument, or an error of the importer.
    """
    _check_words(kind, files, videos)
    if videos is not None and not videos.is_dir():
        raise ConfigError("is not a folder", f"--videos {videos}", remedy="Pass the folder that contains the videos.")
    if name is None:
        of_file = _default_name(kind, files)
        name = of_file if is_name(of_file) else nearest_name(of_file)
    check_name(name, "--name")
    files = _of_folder(files) if kind == "features" and "folder" in files else files
    if name in RENDERED:
        raise ConfigError("is an embedded stream", f"--name {name!r}", remedy="Choose another name.")
    if correct and kind in (*IMAGES, "features"):
        why = "has no captions" if kind in IMAGES else "may have features of the unchanged captions"
        raise ConfigError(f"{kind} {why}", "--correct-captions", remedy="Omit it.")
    out = Path(root) / "streams" / f"{name}.json"
    before, replaced = (out.read_bytes(), _describe_replaced(name, out)) if out.is_file() else (None, "")
    new = [folder for folder in (out.parent, out.parent.parent) if not folder.exists()]
    manifest, report = _import_kind(kind, files, videos, out, name)
    if kind == "csv" and videos is not None and (lost := _find_if_all_missing(manifest, videos)):
        out.unlink() if before is None else out.write_bytes(before)
        for folder in new:
            folder.rmdir()
        raise ConfigError(
            f"has none of the table's videos (first: {lost!r:.80})", f"--videos {videos}", remedy="Pass their folder."
        )
    if manifest["name"] != name:
        report = report.replace(f"{manifest['name']}: ", f"{name}: ")
        manifest["name"] = name
        write_manifest(manifest, out)
    if correct:
        report = correct_captions(manifest, report, out.parent / manifest["videos"], out)
    elsewhere = runs_option(root)
    of_features = "head_linear" if files.get("text") else "zero_shot"
    follows = {"features": f"run --method {of_features}", **dict.fromkeys(IMAGES, "run --method image_finetune")}
    follows[QUESTIONS] = "run --method umt_qa"
    if kind == QUESTIONS:
        elsewhere += " backbone.weights=FILE backbone.vocabulary=vocab.txt"
    if kind == "features" and not files.get("text"):
        elsewhere += " backbone.name=NAME"
    return (
        f"{report}\n{replaced}written: {out}\nnext: ctvr {follows.get(kind, 'cache build')} --stream {name}{elsewhere}"
    )


def _describe_replaced(name: str, out: Path) -> str:
    """Return the line about the stream that an import replaces, without a digest if its manifest cannot be read."""
    written = datetime.fromtimestamp(out.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    try:
        digest = f" (digest {parse_manifest(read_json(out), str(out), out.parent).digest})"
    except ConfigError:
        digest = ""
    return f"replaces the stream {name} of {written}{digest}; a table shows runs on the newest stream only\n"


def _find_if_all_missing(manifest: Manifest, videos: Path) -> str:
    """Return the first video of a manifest if the folder has none of its videos, otherwise an empty string."""
    items = items_of(manifest)
    return "" if any((videos / item["path"]).exists() for item in items) else str(items[0]["video"])


def parse_file_arguments(kind: str, words: Sequence[str]) -> dict[str, str]:
    """Parse the arguments `name=FILE`. `FILE` alone is the only required argument or, for features, the folder."""
    needed = [word for word in KINDS.get(kind, {}) if word not in OPTIONAL]
    alone = needed if len(needed) == 1 else ["folder"] * (kind == "features")
    if len(words) == 1 and alone and "=" not in words[0]:
        return {alone[0]: words[0]}
    _words_of(kind)
    if bare := [word for word in words if "=" not in word]:
        raise ConfigError(f"{bare[0]!r} lacks the name of its argument. {_usage(kind)}", f"streams import {kind}")
    return parse_overrides(words)


def _usage(kind: str) -> str:
    words = " ".join(
        f"[{word}={example}]" if word in OPTIONAL else f"{word}={example}"
        for word, example in KINDS.get(kind, {}).items()
    )
    return f"Usage: ctvr streams import {kind} {words}" + ("" if kind in NO_VIDEOS else " --videos FOLDER")


def _words_of(kind: str) -> dict[str, str]:
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is not a kind.{suggest(kind, KINDS)} Kinds: {', '.join(KINDS)}.", "streams import")
    return KINDS[kind]


def _check_words(kind: str, files: Mapping[str, str], videos: Path | None) -> None:
    words = _words_of(kind)
    usage = _usage(kind)
    if kind == "features" and "folder" in files:
        words = {"folder": "FOLDER", "tasks": words["tasks"]}
    for word in files:
        if word not in words:
            raise ConfigError(f"{word}= is unknown.{suggest(word, words)} {usage}", f"streams import {kind}")
    for word in words:
        if not files.get(word) and word not in OPTIONAL:
            raise ConfigError(f"{word}= is missing. {usage}", f"streams import {kind}")
    if kind not in NO_VIDEOS and videos is None:
        raise ConfigError(f"--videos is missing. {usage}", f"streams import {kind}")
    if kind in NO_VIDEOS and videos is not None:
        place = "features= replaces them" if kind == "features" else "folder= contains everything"
        raise ConfigError(f"--videos {videos} is not needed: {place}. {usage}", f"streams import {kind}")


def _default_name(kind: str, files: Mapping[str, str]) -> str:
    if kind in {"msrvtt", "actnet"}:
        return ctvr_name(kind, len(read_split(_path(files["split"]))["train"]), _held_out(files))
    if kind == "cvlm":
        chosen = _split_words(files.get("datasets", "")) or list(FIVE)
        return chosen[0] if len(chosen) == 1 else "cvlm" if chosen == list(FIVE) else f"cvlm-{len(chosen)}"
    if kind == "hf":
        return _path(files["folder"]).resolve().name
    if kind == QUESTIONS:
        return kind if files.get("tasks", "1") == "1" else f"{kind}-{files['tasks']}"
    if kind in IMAGES:
        return kind if _classes(files) is None else f"{kind}-classes-{_classes(files)}"
    return Path(files.get("folder") or files["table"]).stem


def _of_folder(files: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that name the files of a folder, which for OWNER/NAME@REVISION of the Hub is downloaded."""
    given = files["folder"]
    folder = fetch_repository(given, "dataset") if is_repository(given) else _path(given)
    found = {word: str(folder / name) for word, name in IN_FOLDER.items() if word != "text" or (folder / name).exists()}
    return {**files, **found}


def _import_kind(
    kind: str, files: Mapping[str, str], videos: Path | None, out: Path, name: str
) -> tuple[Manifest, str]:
    if kind == "cvlm":
        return import_cvlm(_path(files["folder"]), out, _split_words(files.get("datasets", "")) or None)
    if kind in IMAGES:
        return import_images(kind, _path(files["folder"]), out, _classes(files))
    if kind == "hf":
        return import_dataset(_path(files["folder"]), out, name)
    if kind == "features":
        texts = _path(files["text"]) if files.get("text") else None
        return import_features(
            _path(files["table"]), _path(files["features"]), texts, out, name, files.get("tasks", "")
        )
    assert videos is not None  # _check_words
    if kind == QUESTIONS:
        return import_questions(_path(files["folder"]), videos, out, files.get("tasks", "1"))
    if kind == "msrvtt":
        annotations = [_path(word) for word in _split_words(files["annotations"])]
        captions = _path(files["captions"])
        return import_msrvtt(_path(files["split"]), annotations, captions, videos, out, _held_out(files))
    if kind == "actnet":
        queries = _path(files["train"]), _path(files["val"])
        return import_actnet(_path(files["split"]), *queries, videos, out, _held_out(files))
    return import_csv(_path(files["table"]), videos, out, name, files.get("tasks", ""))


def _classes(files: Mapping[str, str]) -> int | None:
    """Return the seed of a random order of classes; None for the order of their labels."""
    word = files.get("classes", "")
    if word and (not word.isascii() or not word.isdigit() or len(word) > 9):
        raise ConfigError(f"classes={word}: is not a seed of a random order. Use classes=1, or omit it.")
    return int(word) if word else None


def _held_out(files: Mapping[str, str]) -> int:
    word = files.get("held_out", "0")
    if not word.isascii() or not word.isdigit() or len(word) > 9:
        raise ConfigError(
            "is not a number of videos per category", f"held_out={word}", remedy="Use held_out=2, or omit it."
        )
    return int(word)


def _path(word: str) -> Path:
    return Path(word).expanduser()


def _split_words(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


# ------------------------------------------------------------------------------------ CTVR: the splits
