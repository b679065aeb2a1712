"""Commands `ctvr streams` and `ctvr cache`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.frames import add_frames
from ctvr.orchestrator.cli.options import (
    add_doubles,
    add_execution_options,
    add_settings,
    get_execution,
    settings_of,
    stream_name,
    user_path,
)
from ctvr.orchestrator.cli.sweep import MAIN_JOB
from ctvr.orchestrator.errors import ConfigError, CtvrError
from ctvr.orchestrator.exporters.script import SCRIPTS, script_of, write_script


def add_streams(commands: Any) -> None:
    parser = commands.add_parser("streams", help="list, import, check and export streams; write frames of videos")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser(
        "check", help="read a stream and list its missing videos, or check that an embedder computed its features"
    )
    check.add_argument("stream", metavar="STREAM", help="name of a stream, or a manifest file")
    check.add_argument(
        "--features",
        type=user_path,
        metavar="FOLDER",
        help="folder (or its card features.yaml) with canaries.npz of the current embedder, which is compared with the "
        "stream's embedder; exit status 1 if their vectors must not be mixed",
    )
    add_execution_options(check, folders=("runs", "videos"))
    check.set_defaults(run=_streams_check)
    canaries = actions.add_parser("canaries", help="write 16 clips and 16 sentences whose vectors identify an embedder")
    canaries.add_argument("folder", type=user_path, metavar="FOLDER", help="new folder for the inputs and a blank card")
    canaries.set_defaults(run=_streams_canaries)
    importer = actions.add_parser("import", help="convert published split and annotation files to a manifest")
    importer.add_argument(
        "kind",
        metavar="KIND",
        help="importer: msrvtt, actnet, cvlm, cifar-10, cifar-100, tiny-imagenet, msrvtt-qa, csv, features or hf",
    )
    importer.add_argument(
        "files",
        nargs="*",
        default=[],
        metavar="name=FILE",
        help="the importer's files and options, such as split=MSRVTT_10_dataset.pkl; csv and features also accept "
        "tasks=month|N|category, and features accepts tasks=clusters:N; see docs/own-videos.md. features also accepts "
        "one exported folder, or OWNER/NAME@REVISION on the Hugging Face Hub",
    )
    importer.add_argument(
        "--name",
        type=stream_name,
        metavar="NAME",
        help="name of the stream (default: derived from the split file's name)",
    )
    importer.add_argument(
        "--correct-captions",
        action="store_true",
        help="replace HTML entities (&amp;) in captions, and UTF-8 that was decoded as latin-1",
    )
    add_execution_options(importer, folders=("runs", "videos"))
    importer.set_defaults(run=_streams_import)
    exporter = actions.add_parser("export", help="write a stream's table, frames and features for other programs")
    exporter.add_argument("stream", metavar="STREAM", help="name of a stream, or a manifest file")
    exporter.add_argument(
        "folder",
        type=user_path,
        metavar="FOLDER",
        help="new folder for table.csv, manifest.json and the exported arrays",
    )
    exporter.add_argument(
        "--frames", action="store_true", help="export the decoded frames of each video, (T, H, W, 3) uint8"
    )
    exporter.add_argument(
        "--features", action="store_true", help="export the untrained backbone's features of videos and captions"
    )
    exporter.add_argument(
        "--files",
        action="store_true",
        dest="video_files",
        help="export the video files, for `ctvr streams import csv` and other programs",
    )
    exporter.add_argument(
        "--form",
        default="npz",
        metavar="FORM",
        help="file format: npy, npz, pt, h5, parquet or tar, a WebDataset shard (default: %(default)s)",
    )
    exporter.add_argument(
        "--hf", action="store_true", help="export videos and metadata for Hugging Face's datasets instead of arrays"
    )
    exporter.add_argument(
        "--license", default="", help="license of the videos and captions, for the card of --hf (default: other)"
    )
    add_execution_options(exporter)
    add_settings(exporter)
    exporter.set_defaults(run=_streams_export)
    _add_script(actions)
    add_frames(actions)
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_streams_list)


def _add_script(actions: Any) -> None:
    each = "; ".join(f"{name}: {models}" for name, (_, models) in SCRIPTS.items())
    script = actions.add_parser(
        "export-script",
        help="print a Python script that computes features with another model, without ctvr",
        description=f"Prints a script for `ctvr streams import features`. Names of scripts: {each}.",
    )
    script.add_argument("script", metavar="NAME", help=f"name of the script: {', '.join(SCRIPTS)}")
    script.add_argument("--out", type=user_path, metavar="FILE", help="new file for the script (default: stdout)")
    script.set_defaults(run=_streams_script, is_verbatim=True)


def _streams_list(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.streams.listing import streams_text

    return streams_text(arguments.runs)


def _streams_check(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.streams.check import check_stream
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.vectors.feature_set import check_features, find_set

    get_execution(arguments).check_videos()
    stream = load_stream(arguments.stream, arguments.runs.resolve(), arguments.videos, arguments.features is None)
    folder = Path(stream.tasks[0].train[0].path).parent
    if arguments.features is not None:
        if not stream.has_features:
            raise ConfigError("has videos, not features", f"stream {stream.name}", remedy="Omit --features.")
        result = check_features(folder, stream.name, arguments.features)
        report = "\n".join(result.lines())
        if not result.is_mixable:
            raise CtvrError(f"{stream.name} and {arguments.features}: {report}")
        return report
    found = find_set(folder) if stream.has_features else None
    return "\n".join([check_stream(stream), *(found.describe() if found is not None else [])])


def _streams_canaries(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.vectors.canaries import write_canaries

    return write_canaries(arguments.folder)


def _streams_script(arguments: argparse.Namespace) -> str:
    text = script_of(arguments.script)
    return text.removesuffix("\n") if arguments.out is None else write_script(text, arguments.out)


def _streams_import(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.importers.command import import_stream, parse_file_arguments

    return import_stream(
        arguments.kind,
        parse_file_arguments(arguments.kind, arguments.files),
        arguments.videos,
        arguments.runs.resolve(),
        arguments.name,
        arguments.correct_captions,
    )


def _streams_export(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.export import export_stream

    what = [name for name in ("frames", "features") if getattr(arguments, name)]
    what += ["files"] * arguments.video_files
    execution = get_execution(arguments)
    if arguments.hf:
        from ctvr.orchestrator.jobs.export_dataset import export_dataset

        if what or settings_of(arguments):
            raise ConfigError("--hf: exports the videos unchanged. Omit --files, --frames, --features and settings.")
        return export_dataset(arguments.stream, execution, arguments.folder, arguments.license)
    return export_stream(arguments.stream, settings_of(arguments), execution, arguments.folder, arguments.form, what)


def add_cache(commands: Any) -> None:
    parser = commands.add_parser("cache", help="list, check, clean or fill the store; download weights")
    add_execution_options(parser, folders=("runs", "store"))
    parser.set_defaults(run=_cache_list)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    build = actions.add_parser(
        "build",
        help="decode every video of a stream that is not in the store",
        description=f"STREAM is a name or a manifest file (default: {MAIN_JOB['stream']}).",
    )
    add_doubles(build, "stream")
    build.add_argument(
        "--cluster", action="store_true", help="decode on all nodes of the Ray cluster (implied by --address)"
    )
    build.add_argument(
        "--features",
        action="store_true",
        help="also store the features of the frozen vision blocks of method=NAME (default: zero_shot)",
    )
    add_execution_options(build, resources=True)
    add_settings(build, names="STREAM")
    build.set_defaults(run=_cache_build, places=("stream",))
    check = actions.add_parser("verify", help="read every object and check its digest")
    check.add_argument("--yes", action="store_true", help="remove damaged objects; they are created again when needed")
    check.set_defaults(run=_cache_verify)
    collect = actions.add_parser("gc", help="find and remove objects that no commit, stream or recent sweep needs")
    collect.add_argument("--yes", action="store_true", help="remove the objects; without --yes, only count them")
    what = collect.add_mutually_exclusive_group()
    what.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help="age from which finished tasks and frames are removed, unless a recent sweep uses them (default: none)",
    )
    what.add_argument(
        "--losers",
        metavar="SWEEP",
        help="remove the weights of a finished sweep's trials, except the best trial; metrics are kept",
    )
    collect.set_defaults(run=_cache_gc)
    for action in (check, collect):
        add_execution_options(action, folders=("runs", "store"))
    weights = actions.add_parser(
        "weights",
        help="download a backbone's weights into a folder, for a machine without a network",
        description="Writes the weights and their settings to a new folder. Copy the folder to the other "
        "machine, and set backbone.weights=FOLDER.",
    )
    weights.add_argument("name", metavar="NAME", help="architecture of open_clip, such as ViT-B-32-quickgelu")
    weights.add_argument(
        "tag", metavar="TAG", nargs="?", default="openai", help="tag of the weights (default: %(default)s)"
    )
    weights.add_argument("--out", type=user_path, metavar="FOLDER", help="new folder (default: NAME-TAG)")
    weights.set_defaults(run=_cache_weights)


def _cache_weights(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.weights import carry_weights  # imports torch

    return carry_weights(arguments.name, arguments.tag, arguments.out)


def _cache_build(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.cache import build_cache

    overrides = settings_of(arguments)
    stream = arguments.stream or MAIN_JOB["stream"]
    return build_cache(stream, overrides, get_execution(arguments), arguments.cluster, arguments.features)


def _existing_store(arguments: argparse.Namespace) -> Any:
    execution = get_execution(arguments)
    execution.require_store()
    return execution


def _cache_list(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    from ctvr.orchestrator.jobs.cache import list_cache

    return list_cache(execution)


def _cache_verify(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    from ctvr.orchestrator.jobs.cache import verify_cache

    return verify_cache(execution, arguments.yes)


def _cache_gc(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    if arguments.losers is not None:
        execution.existing_tracker().require_sweep(arguments.losers)
    from ctvr.orchestrator.jobs.cache import collect_garbage, collect_losers  # imports torch

    if arguments.losers is not None:
        return collect_losers(execution, arguments.losers, arguments.yes)
    return collect_garbage(execution, arguments.older_than, arguments.yes)
