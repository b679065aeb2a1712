"""Export of a stream for other programs: table, manifest, frames and features (`ctvr streams export`).

Shapes: T frames, d dimensions of the joint embedding.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ctvr.methods.backbone.clip import Clip
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import count
from ctvr.orchestrator.data.array_files import Arrays, load_npy
from ctvr.orchestrator.data.arrays import FORMS, write_arrays
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.device import set_determinism
from ctvr.orchestrator.data.imported_features import caption_features, frame_source
from ctvr.orchestrator.data.prepare import prepare_stream
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.jobs.export_dataset import link_files, without_others
from ctvr.orchestrator.learning.run.factory import load_tower
from ctvr.orchestrator.output_dir import new_folder, require_new
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.captions import cell_of
from ctvr.orchestrator.streams.stream import Item, Stream, iter_items
from ctvr.orchestrator.streams.videos import missing_videos
from ctvr.orchestrator.vectors.card import CARD
from ctvr.orchestrator.vectors.feature_set import find_set, store_set

COLUMNS = ("video", "caption", "category", "split", "task", "path", "start", "end")


def export_stream(
    name: str, overrides: Settings, execution: ExecutionConfig, out: Path, form: str, what: list[str]
) -> str:
    """Write a stream to a folder; return the written files and the command that imports them.

    Args:
        name: name of a stream, or a manifest file.
        overrides: settings by dotted name; `backbone.*` and `data.*` determine frames and features.
        execution: runs folder and videos.
        out: the new folder.
        form: file format of frames and features, one of FORMS.
        what: parts to export. table: `table.csv`, a line for each caption, and `manifest.json`, always written. frames:
            (T, H, W, 3) uint8 of each video. features: (T, d) of each video and (d,) of each caption from the untrained
            backbone, with a card; those of a stream of features as they were imported. files: the video files in
            `videos`, whose names are then used in `table.csv`.

    Raises:
        ConfigError: for an unknown format, a folder that is not empty, or missing videos.
    """
    if form not in FORMS:
        raise ConfigError(f"{form!r} is not a known format", "--form", remedy=f"Choose one of {', '.join(FORMS)}.")
    require_new(out)
    if "frames" in what and form == "parquet":
        raise ConfigError("parquet cannot store frames", "--form", remedy="Use npz, npy, pt or h5.")
    manifest = find_manifest(name)
    stream = execution.load_stream(manifest, render=False)
    if "files" in what and (stream.domain == "images" or stream.has_features):
        kind = "images" if stream.domain == "images" else "features"
        raise ConfigError(f"stream {stream.name} has {kind} instead of videos", "--files", remedy="Omit --files.")
    if stream.has_features and "frames" in what:
        raise ConfigError(f"stream {stream.name} has features instead of frames", "--frames", remedy="Omit it.")
    experiment = resolve({"method": "zero_shot", "stream": manifest, **overrides}, stream.settings)
    stream = execution.load_stream(manifest)  # renders videos, after all checks
    notes: list[str] = []
    if "files" in what:
        if missing := missing_videos(stream):
            raise ConfigError(
                f"--files: {count(len(missing), 'video is', 'videos are')} missing in {stream.name}, "
                f"for example {missing[0].path}. `ctvr streams check {stream.name}` lists the missing videos."
            )
        stream, notes = without_others(stream, manifest, execution, "--files")
    with new_folder(out) as new:
        names: list[str] = []
        if "files" in what:
            rows = link_files([(task, item) for task, _, item in iter_items(stream)], new / "videos", "--files")
            names = [row["file_name"] for row in rows]
        lines = [f"{count(_write_table(stream, new, names), 'caption')}: {out / 'table.csv'}, {out / 'manifest.json'}"]
        if names:
            words = f"{out / 'table.csv'} --videos {out / 'videos'} --name NAME"
            lines += [
                f"{count(len(names), 'video')}: {out / 'videos'}",
                *notes,
                f"import them with: ctvr streams import csv {words}",
            ]
        if "frames" in what or "features" in what:
            lines += _write_arrays(stream, experiment, execution, new, out, form, what)
    return "\n".join(lines)


def _write_arrays(
    stream: Stream, experiment: Experiment, execution: ExecutionConfig, new: Path, out: Path, form: str, what: list[str]
) -> list[str]:
    """Write frames and features to the folder `new`, which is later called `out`; return a line for each file."""
    if stream.text_features:  # as imported, without towers
        items = [item for _, _, item in iter_items(stream)]
        names, table = caption_features(Path(stream.text_features))
        texts = dict(zip(names, np.split(table.rows.numpy(), table.starts[1:-1].numpy())))
        store_set(find_set(Path(items[0].path).parent), new)
        return _write_pairs(((item.video, load_npy(item.path)) for item in items), texts, items, new, out, form)
    clip = load_tower(experiment, stream)
    assert isinstance(clip, Clip)  # a stream of images has no captions to export
    source = frame_source(stream, execution.places().open_store(), experiment.data, clip.image_size, clip.resize)
    stream, _ = prepare_stream(stream, source, stream.splits, experiment.data.skip_missing)
    items, lines = [item for _, _, item in iter_items(stream)], list[str]()
    if "frames" in what:
        frames = ((item.video, source.load(item)) for item in items)  # one at a time, because all frames take gigabytes
        written = write_arrays(new / f"frames.{form}", frames)
        lines.append(f"frames of {count(len(items), 'video')}: {out / written.name}")
    if "features" in what:
        torch.set_num_threads(experiment.run.threads)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        set_determinism(device, experiment.run.deterministic, experiment.run.precision)
        clip = clip.to(device).eval()
        data = StreamData(stream, source, clip.tokenize, clip.mean, clip.std, experiment.data, device)
        lines += _write_features(data, items, clip, new, out, form)
        if not stream.has_features:
            _write_card(experiment, clip, new)
    return lines


@torch.no_grad()
def _write_features(data: StreamData, items: list[Item], clip: Any, new: Path, out: Path, form: str) -> list[str]:
    videos = ((item.video, clip.vision(data.load_video(item))[0].cpu().numpy()) for item in items)
    texts: Arrays = {}
    for caption in dict.fromkeys(caption for item in items for caption in item.captions):
        texts[caption] = clip.text(data.tokens([caption]).to(data.device))[0].cpu().numpy()
    return _write_pairs(videos, texts, items, new, out, form)


def _write_pairs(
    videos: Iterable[tuple[str, np.ndarray]], texts: Arrays, items: list[Item], new: Path, out: Path, form: str
) -> list[str]:
    """Write the features of videos and of captions; return a line for each file."""
    written = out / write_arrays(new / f"features.{form}", videos).name
    of_texts = f"text_features.{'parquet' if form == 'parquet' else 'npy'}"  # captions are not names of files
    if form == "parquet":
        write_arrays(new / of_texts, texts.items())
    elif len({rows.shape for rows in texts.values()}) > 1:
        fault = "cannot store captions with different numbers of vectors"
        raise ConfigError(fault, f"--form {form}", remedy="Use --form parquet.")
    else:
        in_order = np.stack([texts[caption] for item in items for caption in item.captions])
        np.save(new / of_texts, in_order, allow_pickle=False)
    words = f"table={out / 'table.csv'} features={written} text={out / of_texts}"
    return [
        f"features of {count(len(items), 'video')}: {written}",
        f"features of {count(len(texts), 'caption')}: {out / of_texts}",
        f"import them with: ctvr streams import features {words} --name NAME",
    ]


def _write_card(experiment: Experiment, clip: Clip, new: Path) -> None:
    backbone, data = experiment.backbone, experiment.data
    about = {"embedder": Path(backbone.name).name, "revision": Path(backbone.weights).name, "width": clip.embed_dim}
    about |= {"frames": f"{data.num_frames}, {data.sampling}", "pooling": "one vector a frame", "normalisation": "none"}
    (new / CARD).write_text(yaml.safe_dump(about, sort_keys=False), encoding="utf-8")


def _write_table(stream: Stream, new: Path, names: Sequence[str]) -> int:
    """Write `table.csv` and `manifest.json`; return the number of captions. `names` are the names of exported files."""
    lines = 0
    with (new / "table.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number, (task, split, item) in enumerate(iter_items(stream)):
            segment = item.segment or ("", "")
            video = names[number] if names else item.video
            for caption in item.captions:
                writer.writerow([video, cell_of(caption), item.category, split, task.name, item.path, *segment])
                lines += 1
    tasks: list[dict[str, Any]] = []
    for each in stream.tasks:
        found: dict[str, Any] = {"name": each.name, "categories": list(each.categories)}
        for split in ("train", "val", "test"):
            found[split] = [_item(item) for item in getattr(each, split)]
        tasks.append(found)
    manifest = {
        "format": 1,
        "name": stream.name,
        "protocol": stream.protocol,
        "paper": stream.paper,
        "settings": dict(stream.settings),
        "videos": "/",
        "text_features": stream.text_features and stream.text_features.lstrip("/"),
        "tasks": tasks,
    }
    (new / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
    return lines


def _item(item: Item) -> dict[str, Any]:
    return {
        "video": item.video,
        "path": item.path.lstrip("/"),
        "segment": list(item.segment) if item.segment else None,
        "category": item.category,
        "captions": list(item.captions),
        **({"answers": list(item.answers)} if item.answers else {"twin": item.twin}),
        **({"relevant": list(map(list, item.relevant))} if item.relevant else {}),
    }
