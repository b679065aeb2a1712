"""Readers of the caption files that data sets publish; each rejects a wrong file with a one-line error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.importers.builder import Captions
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.text_files import lines_of, read_text


def read_msrvtt_captions(paths: Iterable[Path]) -> Captions:
    """Return captions per video from any published MSR-VTT annotation file, recognized by its content.

    `{"sentences": [{"caption", "video_id"}]}` (MSRVTT_data, *_videodatainfo), COCO-like
    `{"annotations": [{"caption", "image_id"}]}` (MSR_VTT), or a list of `{"caption", "video_id"}` whose captions may be
    lists (copies on the Hugging Face hub). The id 7010 becomes video7010.
    """
    captions: Captions = {}
    for path in paths:
        data = read_json(path)
        keys = {"sentences": "video_id", "annotations": "image_id"}
        found = {key: data[key] for key in keys if isinstance(data, dict) and isinstance(data.get(key), list)}
        if not found and not _is_list_of(dict, data):
            raise ConfigError(
                f"{path}: contains neither 'sentences' nor 'annotations'. Use MSRVTT_data.json, "
                "train_val_videodatainfo.json or MSR_VTT.json."
            )
        name, entries = next(iter(found.items()), ("", data))
        id_key = keys.get(name, "video_id")
        of_file: Captions = {}
        for number, entry in enumerate(entries):
            video, caption = (entry.get(id_key), entry.get("caption")) if isinstance(entry, dict) else (None, None)
            video = msrvtt_id(video)
            texts: list[Any] = caption if isinstance(caption, list) else [caption]
            if not isinstance(video, str) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{name}[{number}] lacks {id_key!r} or 'caption'", path, remedy="Download it again.")
            of_file.setdefault(video, []).extend(texts)
        for video, found_texts in of_file.items():
            captions.setdefault(video, clean(found_texts))  # overlapping files do not duplicate captions
    return captions


def msrvtt_id(value: Any) -> Any:
    """Return "video7010" for 7010, given as an integer or as digits; return anything else unchanged."""
    if type(value) is int:
        return f"video{value}"
    is_number = isinstance(value, str) and value.isascii() and value.isdigit()
    return f"video{value.lstrip('0') or '0'}" if is_number else value  # `int` refuses more than 4300 digits


def read_msrvtt_splits(path: Path) -> dict[str, str]:
    """Return the split (train, validate or test) of each video in MSRVTT_data.json."""
    data = read_json(path)
    videos = data.get("videos") if isinstance(data, dict) else None
    splits: dict[str, str] = {}
    for number, entry in enumerate(videos if isinstance(videos, list) else [None]):
        video, split = (entry.get("video_id"), entry.get("split")) if isinstance(entry, dict) else (None, None)
        video = msrvtt_id(video)
        if not isinstance(video, str) or split not in ("train", "validate", "test"):
            raise ConfigError(f"{path}: videos[{number}] lacks 'video_id' or its 'split'. Use MSRVTT_data.json.")
        splits[video] = split
    return splits


@dataclass(frozen=True)
class Narration:
    """Sentences of one video, stripped, and the segment (seconds) of each, as published."""

    segments: list[list[float]]
    sentences: list[str]


def read_narrations(path: Path) -> Iterator[tuple[str, Narration]]:
    """Yield the videos of a file in the schema of ActivityNet Captions, with stripped sentences."""
    data = read_json(path, unique_keys=True)
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{path}: does not map video ids to timestamps and sentences. Use ActivityNet's JSON file.")
    for video, entry in data.items():
        times: Any
        sentences: Any
        times, sentences = (entry.get(k) if isinstance(entry, dict) else None for k in ("timestamps", "sentences"))
        if not isinstance(entry, dict):  # paragraphs, as in captioning code
            text = f"{path}: {video!r} does not have timestamps and sentences"
            raise ConfigError(text, remedy="Use ActivityNet's own train.json and val_1.json.")
        if not _is_list_of(list, times) or not _is_list_of(str, sentences) or len(times) != len(sentences):
            raise ConfigError(
                f"{video!r}: timestamps and sentences are not lists of equal length", path, remedy="Download it again."
            )
        yield video, Narration(list(times), clean(sentences))


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(entry, kind) for entry in value)


def read_entries(path: Path, id_key: str, text_key: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the values of `id_key` and `text_key` of every object in a JSON list.

    Args:
        kind: required type of the value of `text_key`, str or list.
    """
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise ConfigError("is not a list of videos", path, remedy="Use the data set's own JSON file.")
    for number, entry in enumerate(data):
        good = isinstance(entry, dict) and isinstance(entry.get(id_key), str) and isinstance(entry.get(text_key), kind)
        if not good:
            raise ConfigError(f"{path}: entry {number} lacks {id_key!r} or {text_key!r}. Download the file again.")
        yield entry[id_key], entry[text_key]


def all_text(path: Path, video: str, captions: list[Any]) -> list[str]:
    if not all(isinstance(caption, str) for caption in captions):
        raise ConfigError(f"{video!r} has a caption that is not text", path, remedy="Download the file again.")
    return captions


def read_lines(path: Path) -> list[str]:
    return lines_of(read_text(path))


def clean(captions: Iterable[str]) -> list[str]:
    """Strip captions and drop empty ones."""
    return [text for caption in captions if (text := caption.strip())]
