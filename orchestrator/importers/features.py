"""Importer of a user's table with precomputed features: writes a manifest and one array file per video."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ctvr.orchestrator.data.arrays import FEATURES, Arrays, read_arrays, validate_features
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.importers.array_folder import current_arrays, new_arrays
from ctvr.orchestrator.importers.builder import Manifest, items_of, write_manifest
from ctvr.orchestrator.importers.csv_table import ids_of, import_csv, read_table
from ctvr.orchestrator.importers.task_rules import CLUSTERS
from ctvr.orchestrator.streams.check import describe
from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.streams.videos import normalize_name, video_stem
from ctvr.orchestrator.vectors.feature_set import check_arrays, find_set, refuse_mixture, store_set

TEXTS = "texts.npz"
BATCH = 64  # pairs per training step; vectors need little memory, and larger batches have more negatives
_FEATURES = re.compile("feat|emb|vec|data|arr", re.IGNORECASE)
_NUMBERED = re.compile(r"video\d+", re.ASCII)


def import_features(
    table: Path, features: Path, texts: Path | None, out: Path, name: str, rule: str = ""
) -> tuple[Manifest, str]:
    """Import a stream of features. Videos are matched by ID, captions by their text or by their order in the table.

    Args:
        table: as in `import_csv`.
        features: a file or folder for `read_arrays`: id -> (T, d) or (d,), or one array in the order of the videos,
            without a name or with a generic name ("features").
        texts: features of the captions, whose width d' may differ from d: caption -> (d',) or (L, d'), or one array
            (lines of the table, d') or (lines, L, d'). If None, a text tower encodes the captions.
        out: file of the manifest; the arrays are in a numbered subfolder of the folder `out` without its suffix.
        name: the name of the stream.
        rule: as in `import_csv`.

    A card and canaries next to the features or captions (`vectors/feature_set.py`) are checked, and stored with the
    arrays.

    Raises:
        ConfigError: for videos or captions without features, features of different widths, or features of two
            embedders.
    """
    with ExitStack() as stack:
        return _import(table, features, texts, out, name, rule, stack)


def _import(
    table: Path, features: Path, texts: Path | None, out: Path, name: str, rule: str, stack: ExitStack
) -> tuple[Manifest, str]:
    """Do the work of `import_features`; `stack` finally removes the previous arrays, or the new ones after an error."""
    # a rule of clusters needs them; otherwise errors of the table are reported first
    of_captions = _read_caption_features(table, texts) if texts is not None and rule.startswith(CLUSTERS) else None
    with tempfile.TemporaryDirectory() as empty:  # a manifest needs a folder, even if it contains no videos
        manifest, report = import_csv(table, Path(empty), None, name, rule, of_captions)
    items = items_of(manifest)
    names = ids_of(table)
    read = _drop_generic_name(read_arrays(features), names)
    found = _match_names(features, read, names, "videos")
    arrays: Arrays = {}  # digest of each file
    width = 0
    for number, item in enumerate(items):
        vectors = _checked(features, item["video"], found[item["video"]])
        width = width or vectors.shape[1]
        if vectors.shape[1] != width:
            raise ConfigError(
                f"{features}: {item['video']!r} has features of {vectors.shape[1]} dimensions, others have {width}. "
                "Compute all of them with one model."
            )
        item |= {"path": f"{number:06d}.npy", "segment": None}
        arrays[item["path"]] = _to_stored(vectors, found[item["video"]])
    frames = [len(vectors) for vectors in arrays.values()]
    if texts is not None and of_captions is None:
        of_captions = _read_caption_features(table, texts)
    folder = out.with_suffix("")
    cards = _check_cards(features, texts, {i["video"]: arrays[i["path"]] for i in items}, of_captions, folder)
    folder = stack.enter_context(new_arrays(folder, features))
    for path, vectors in arrays.items():
        np.save(folder / path, vectors, allow_pickle=False)
    settings: dict[str, Any] = {"data.num_frames": max(set(frames), key=frames.count)}
    if of_captions is not None:
        counts = [len(rows) for rows in of_captions.values()]
        found_texts = {"texts": np.array(list(of_captions)), "features": np.concatenate(list(of_captions.values()))}
        if max(counts) > 1:
            found_texts["starts"] = np.cumsum([0, *counts])
        np.savez(folder / TEXTS, **found_texts)  # type: ignore[arg-type]
        settings |= {"backbone.name": "vectors", "backbone.weights": "imported", "data.batch_size": BATCH}
    store_set(find_set(features), folder)
    content = [[item["video"], digest_file(folder / item["path"])] for item in items]
    content += [[TEXTS, digest_file(folder / TEXTS)]] if texts else []
    place = folder.relative_to(out.parent.resolve()).as_posix()
    manifest |= {"videos": place, "settings": settings, "text_features": TEXTS if texts else None}
    manifest |= {"features": digest_of(content)}
    stream = parse_manifest(manifest, source=str(table), base=out.parent)
    write_manifest(manifest, out)
    of_texts = "captions are encoded by the selected backbone"
    if of_captions is not None:
        first = next(iter(of_captions.values()))
        of_texts = f"captions have {'one vector' if max(counts) == 1 else f'{min(counts)} to {max(counts)} vectors'}"
        of_texts += f" of {first.shape[1]} numbers"
    notes = report.partition("\ndigest ")[2].splitlines()[1:]  # such as the names of tasks
    notes += _note_zeros("videos", {item["video"]: arrays[item["path"]] for item in items}, "counts as a frame")
    notes += _note_zeros("captions", of_captions or {}, "has no direction")
    order = " in the order of the table" if isinstance(read, np.ndarray) else ""
    size = f"features of {width} numbers{order}, {min(frames)} to {max(frames)} a video"
    lines = [describe(stream), f"{size}; {of_texts}"]
    return manifest, "\n".join([*lines, *cards, *notes, f"digest {stream.digest}"])


def _check_cards(
    features: Path, texts: Path | None, videos: Arrays, captions: Arrays | None, folder: Path
) -> list[str]:
    """Check arrays against their cards, and the cards against each other and the card of the replaced import."""
    ours, theirs = find_set(features), find_set(texts) if texts is not None else None
    if ours is not None:
        check_arrays(ours, features, videos)
    if theirs is not None and texts is not None and captions is not None:
        check_arrays(theirs, texts, captions, "texts")
    current = current_arrays(folder)
    before = find_set(current) if current is not None else None
    notes = []
    if ours is not None and theirs is not None and theirs.card.path != ours.card.path:
        refuse_mixture(ours, theirs, "videos of one embedder and captions of another")
    elif (ours is None) != (theirs is None) and texts is not None:
        notes.append("only one of videos and captions has a card, so whether one embedder computed both is not checked")
    if before is not None and ours is not None:
        refuse_mixture(before, ours, "two embedders under one name")
    elif before is not None:
        notes.append(f"the card of {before.card.embedder}, which the replaced import had, is removed")
    return [*(ours.describe() if ours is not None else []), *notes]


def _note_zeros(what: str, arrays: Arrays, effect: str) -> list[str]:
    """Return the line of the report about vectors of zeros, if there is one."""
    zeros = [name for name, vectors in arrays.items() if not vectors.any(axis=1).all()]
    if not zeros:
        return []
    said = f"{len(zeros)} of {len(arrays)} {what} have a vector of zeros, the first is {zeros[0][:60]!r}"
    return [f"{said}. Such a vector {effect}."]


def _to_stored(vectors: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return checked features as float16 if they were float16, which halves the disk space without loss."""
    return vectors.astype(np.float16) if np.asarray(found).dtype.str[1:] == "f2" else vectors


def _drop_generic_name(found: Arrays | np.ndarray, names: list[str]) -> Arrays | np.ndarray:
    """Return a file's only array if its name is a generic one such as "features", not a video's ID."""
    if isinstance(found, dict) and len(found) == 1:
        ((key, array),) = found.items()
        if _FEATURES.search(key) and array.ndim > 1 and _bare(key) not in map(_bare, names):
            return array
    return found


def _match_names(file: Path, found: Arrays | np.ndarray, names: list[str], what: str) -> Arrays:
    """Map each name to its array; an array without names is in the order of `names`."""
    if isinstance(found, np.ndarray):
        if len(found) != len(names):
            raise ConfigError(
                f"{file}: has {len(found)} rows for {len(names)} {what} of the table. Use one row for each, in order."
            )
        return dict(zip(names, found))
    if what == "videos" and any(name not in found for name in names):
        found = _match_variants(found, names)
    if missing := [name for name in names if name not in found]:
        raise ConfigError(
            f"{file}: lacks features of {len(missing)} of {len(names)} {what}, the first {missing[0][:60]!r}. "
            + (f"It has {len(found)}, such as {next(iter(found))[:60]!r}." if found else "It lacks numeric arrays.")
        )
    return found


def _match_variants(found: Arrays, names: list[str]) -> Arrays:
    """Return the arrays under `names`; the key may be a variant of the name if it is the only variant.

    Variants are a leading `./`, a video's extension, another Unicode form, MSR-VTT's video7010 for 7010, and, if all
    keys have them, folders or suffixes: features/ID, train/ID, ID/c3d_features (ActivityNet), ID.clip. Of several
    arrays of a video (ID/seconds, ID/features) the array named as in FEATURES is used.
    """
    keys: dict[str, list[str]] = {}
    every = [key for key in found if "/" in key and key.rpartition("/")[2] in FEATURES] or list(found)
    parts = [key.removeprefix("./").split("/") for key in every]
    field = "".join((every or [""])[0].rpartition(".")[1:])
    shared = field if all(key.endswith(field) for key in every) else ""
    all_in_folders = all(len(each) > 1 for each in parts)
    is_one_name = len({each[-1] for each in parts}) == 1
    for key, (*folders, last) in zip(every, parts):
        keys.setdefault(_bare(key), []).append(key)
        if (without := _bare(key.removesuffix(shared))) != _bare(key):
            keys.setdefault(without, []).append(key)
        if all_in_folders:
            keys.setdefault(_bare(last), []).append(key)
        if folders and is_one_name:
            keys.setdefault(_bare("/".join(folders)), []).append(key)
    bare = Counter(_bare(name) for name in names)
    fitting = {name: keys[_bare(name)] for name in names if name not in found and _bare(name) in keys}
    return found | {name: found[fits[0]] for name, fits in fitting.items() if len(fits) == 1 == bare[_bare(name)]}


def _bare(name: str) -> str:
    stem = normalize_name(video_stem(name.removeprefix("./")))
    return stem.removeprefix("video") if _NUMBERED.fullmatch(stem) else stem


def _checked(file: Path, name: str, array: np.ndarray) -> np.ndarray:
    try:
        return validate_features(np.asarray(array), f"{file}: {name}")
    except VideoError as error:
        raise ConfigError(error, remedy="Save finite values of shape (frames, d) or (d,).") from error


def _rename_by_caption_id(table: Path, file: Path, found: Arrays | np.ndarray) -> Arrays | np.ndarray:
    """Rename arrays that are named by the column caption_id (7 or qid7) to the captions; return others unchanged."""
    rows = [(line, cells["caption_id"], captions) for line, cells, captions in read_table(table)]
    if isinstance(found, np.ndarray) or not any(key for _, key, _ in rows):
        return found
    made: Arrays = {}
    for line, key, captions in rows:
        name = next((name for name in (key, f"qid{key}", f"./{key}") if name in found), None)
        if name is None or len(captions) > 1:
            fault = "gives one ID to several captions" if name else f"has caption_id {key[:60]!r}, which the file lacks"
            raise ConfigError(
                f"line {line} of {table.name} {fault}", file, remedy="Use an ID of the file for each caption."
            )
        if not np.array_equal(made.setdefault(captions[0], found[name]), found[name]):
            fault = f"{captions[0][:60]!r} occurs twice in the table, with different features"
            raise ConfigError(fault, file, remedy="Keep one.")
    return made


def _read_caption_features(table: Path, texts: Path) -> Arrays:
    """Return the features (L, d') of each distinct caption."""
    captions = [caption for _, _, found in read_table(table) for caption in found]
    if not captions:
        raise ConfigError("has a header but no rows", table, remedy="Add a row for each caption.")
    arrays = _rename_by_caption_id(table, texts, read_arrays(texts))
    found: Arrays = {}
    if isinstance(arrays, np.ndarray):
        if len(arrays) != len(captions):
            raise ConfigError(
                f"has {len(arrays)} rows for {len(captions)} lines of {table.name}", texts, remedy="Use one per line."
            )
        for caption, row in zip(captions, arrays):
            if caption in found and not np.array_equal(found[caption], row):
                raise ConfigError(f"{texts}: {caption[:60]!r} occurs twice in the table with two features. Keep one.")
            found[caption] = row
    else:
        found = _match_names(texts, arrays, captions, "captions")
    rows = {caption: _checked(texts, caption, found[caption]) for caption in captions}
    first = next(iter(rows))
    width = rows[first].shape[1]
    if wrong := [caption for caption, row in rows.items() if row.shape[1] != width]:
        numbers = f"{first[:40]!r} has features of {width} dimensions, {wrong[0][:40]!r} of {rows[wrong[0]].shape[1]}"
        raise ConfigError(numbers, texts, remedy="Compute all of them with one model.")
    return rows
