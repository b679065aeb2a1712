"""Streams by name: embedded streams (rendered on first use), imported streams of the data folder, manifest files."""

from __future__ import annotations

import os
import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path

from ctvr.methods.plug_ins import installed
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import gc_disabled
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.streams.stream import Stream

RENDERED = {
    "shapes-5": 5,
    "shapes-10": 10,
    "shapes-20": 20,
    "shapes-cvlm": None,
    "shapes-images": None,
    "shapes-qa": None,
    "worlds-5": 5,
    "worlds-10": 10,
    "worlds-20": 20,
    "worlds-50": 50,
    "worlds-quick": None,
}
BENCHMARKS = (
    "msrvtt-10",
    "msrvtt-20",
    "actnet-10",
    "actnet-20",
    "cvlm",
    "cifar-10",
    "cifar-100",
    "tiny-imagenet",
    "msrvtt-qa",
)


def load_stream(name_or_path: str | Path, root: Path, videos: Path | None = None, render: bool = True) -> Stream:
    """Load an embedded stream, a stream of `<root>/streams/`, or a manifest file.

    Args:
        name_or_path: "shapes-10"; "shapes-10@3" for its tasks in the random order of seed 3; "worlds-5_conflict0"
            for a parameter of the generator that differs from its default; "shapes-5_blurry20" for blurry boundaries
            (`Stream.blurred`); "shapes-5_chunks7" (`Stream.chunked`) or "shapes-5_drift48" (`Stream.cut_at_drift`) for
            boundaries that the method does not know (suffixes in the order blur, chunks, task order); "msrvtt-10" for
            `<root>/streams/msrvtt-10.json`; or a path to a .json file.
        root: the data folder, which contains rendered streams and `streams/`.
        videos: the base folder of the manifest's paths; default: `videos` in the manifest.
        render: whether to render the videos of an embedded stream if they do not exist.

    Raises:
        ConfigError: for an unknown name or a malformed manifest.
    """
    name, root = str(name_or_path), Path(root)
    if render and name != plain_name(name) and is_embedded(name):
        load_stream(name, root, videos, render=False)  # refuses a wrong suffix before anything is rendered
    written, order = split_order(name)
    ordered, kind, count = _split_chunks(written)
    if kind:  # chunks are cut after the tasks are reordered
        whole = load_stream(f"{ordered}@{order}" if order else ordered, root, videos, render)
        return whole.chunked(count) if kind == "chunks" else whole.cut_at_drift(count)
    if order:
        return load_stream(written, root, videos, render).in_order(order)
    written, percent = _split_blur(name)
    if percent and not os.path.isfile(root / "streams" / f"{name}.json"):
        return load_stream(written, root, videos, render).blurred(percent)
    if is_embedded(name):
        return _load_rendered(name, root, render)
    path = Path(name).expanduser()
    if path.suffix.lower() in (".csv", ".tsv"):
        words = f"ctvr streams import csv {path.name} --videos FOLDER --name NAME"
        raise ConfigError(f"{path.name} is a table of captions", "stream", remedy=f"Import it first: {words}")
    if path.suffix.lower() in (".yaml", ".yml"):
        raise ConfigError(
            f"{path.name} is not a manifest", "stream", remedy=f"If it is a file of settings, use --config {name}"
        )
    if name in (others := plugins()) and not os.path.isfile(root / "streams" / f"{name}.json"):
        path = _manifest_of_others(others[name])
    if path.suffix != ".json" and len(path.parts) == 1:
        named = root / "streams" / f"{name}.json"
        if not os.path.isfile(named) and not os.path.isfile(path):  # `Path.is_file` raises for a name that is too long
            raise _unknown_stream(name, root)
        path = named if os.path.isfile(named) else path
    with gc_disabled():
        return parse_manifest(read_json(path, unique_keys=True), source=str(path), base=path.parent, videos=videos)


def split_order(name: str) -> tuple[str, int]:
    """Split `NAME@3` into the stream's name and the seed of its task order; the seed is 0 if none is given.

    A suffix is a seed if it is a number of at most 100 digits.
    """
    written, _, order = name.rpartition("@")
    return (written, int(order)) if written and order.isdecimal() and len(order) <= 100 else (name, 0)


def plain_name(name: str) -> str:
    """Return a stream's name or path without its task order, chunks and blur."""
    return _split_blur(_split_chunks(split_order(name)[0])[0])[0]


def _split_chunks(name: str) -> tuple[str, str, int]:
    """Split `NAME_chunks7` or `NAME_drift48` into the stream's name, `chunks` or `drift`, and the number."""
    match = re.fullmatch(r"(.+)_(chunks|drift)(\d+)", name)
    return (match[1], match[2], int(match[3])) if match else (name, "", 0)


def _split_blur(name: str) -> tuple[str, int]:
    """Split `NAME_blurry20` into the stream's name and the percentage of exchanged videos; 0 if none is given."""
    match = re.fullmatch(r"(.+)_blurry(\d+)", name)
    if match and not 1 <= int(match[2]) <= 99:
        raise ConfigError(
            f"{name}: the number after _blurry is a percentage of 1 to 99",
            "stream",
            remedy=f"Use {match[1]}_blurry20.",
        )
    return (match[1], int(match[2])) if match else (name, 0)


def is_embedded(name: str) -> bool:
    """Report whether a name is that of an embedded stream, with or without suffixes."""
    name = plain_name(name)
    return name in RENDERED or _is_worlds(name)


def _is_worlds(name: str) -> bool:
    written = name.partition("_")[0]
    return written.startswith("worlds-") and bool(RENDERED.get(written))


def plugins() -> dict[str, EntryPoint]:
    """Return the streams of other packages; each is a manifest's path, or a callable."""
    return installed("streams", RENDERED)


def _manifest_of_others(point: EntryPoint) -> Path:
    try:
        found = point.load()
        return Path(found() if callable(found) else found)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{point.name} of {point.value} cannot be loaded ({error})", "stream", remedy="Reinstall the package."
        ) from error


def available_streams(root: Path) -> list[str]:
    """Return names of streams, without suffixes: the embedded streams, then the manifests of `<root>/streams`."""
    found = sorted(path.stem for path in (Path(root) / "streams").glob("*.json"))
    return [*RENDERED, *sorted({*found, *plugins()} - set(RENDERED))]


def _load_rendered(name: str, root: Path, render: bool) -> Stream:
    from ctvr.orchestrator.synthetic import cvlm, images, questions, worlds_stream
    from ctvr.orchestrator.synthetic import stream as shapes

    others = {
        "shapes-cvlm": cvlm.render_cvlm,
        images.NAME: images.render_images,
        questions.NAME: questions.render_questions,
        worlds_stream.QUICK: worlds_stream.render_quick,
    }
    if _is_worlds(name):
        written, dials = worlds_stream.split_dials(name)
        manifest = worlds_stream.render_worlds(root, RENDERED[written] or 0, dials, videos=render)
    elif name in others:
        manifest = others[name](root, videos=render)
    else:
        manifest = shapes.render_stream(root, RENDERED[name] or 0, videos=render)
    return parse_manifest(manifest, source=name, base=root)


def _unknown_stream(name: str, root: Path) -> ConfigError:
    known, meant = available_streams(root), ""
    if name in BENCHMARKS:
        remedy = "Import the benchmark's files first: `ctvr streams import --help`."
    elif os.path.isdir(name):
        remedy = f"Import that folder first: ctvr streams import csv table=TABLE.csv --videos {shlex.quote(name)}."
    else:
        meant = closest(name, [*known, *BENCHMARKS])
        remedy = f"Did you mean {meant!r}?" if meant else ""
    return ConfigError(
        f"no stream called {name!r} in {root / 'streams'}",
        "stream",
        remedy=f"{remedy} All: {', '.join(known)}.".strip(),
        write=(meant,) if meant else (),
        unknown=name,
    )
