"""`ctvr streams` and `ctvr cache`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, add_settings, get_execution, settings_of
from ctvr.orchestrator.cli.sweep import MAIN_JOB
from ctvr.orchestrator.errors import ConfigError


def add_streams(commands: Any) -> None:
    parser = commands.add_parser("streams", help="list streams; import a benchmark's own files; export one")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser("check", help="read a stream and list its missing videos")
    check.add_argument("stream")
    add_execution_options(check, folders=("runs", "videos"))
    check.set_defaults(run=_streams_check)
    importer = actions.add_parser("import", help="turn published split and annotation files into a manifest")
    importer.add_argument("kind", help="msrvtt, actnet, cvlm, cifar-10, cifar-100, tiny-imagenet, csv, features or hf")
    importer.add_argument(
        "files", nargs="*", metavar="name=FILE", help="see docs/usage.md: e.g. split=MSRVTT_10_dataset.pkl"
    )
    importer.add_argument("--name", help="of the stream (default: after the split file)")
    add_execution_options(importer, folders=("runs", "videos"))
    importer.set_defaults(run=_streams_import)
    exporter = actions.add_parser("export", help="write a stream's table, frames and features for other programs")
    exporter.add_argument("stream")
    exporter.add_argument("folder", type=Path, help="a new folder: table.csv, manifest.json and what is asked for")
    exporter.add_argument("--frames", action="store_true", help="decoded frames of each video, (T, H, W, 3) uint8")
    exporter.add_argument("--features", action="store_true", help="the untrained backbone's, of videos and captions")
    exporter.add_argument("--form", default="npz", help="npy, npz, pt, h5, parquet or tar, a shard of WebDataset (npz)")
    exporter.add_argument("--hf", action="store_true", help="instead: videos and metadata for Hugging Face's datasets")
    exporter.add_argument("--license", default="", help="of the videos and captions, for --hf's card (other)")
    add_execution_options(exporter)
    add_settings(exporter)
    exporter.set_defaults(run=_streams_export)
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_streams_list)


def _streams_list(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.streams.load import available_streams

    return "\n".join(available_streams(arguments.runs))


def _streams_check(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.streams.check import check_stream
    from ctvr.orchestrator.streams.load import load_stream

    return check_stream(load_stream(arguments.stream, arguments.runs.resolve(), arguments.videos))


def _streams_import(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.importers.command import import_stream, parse_file_arguments

    return import_stream(
        arguments.kind,
        parse_file_arguments(arguments.kind, arguments.files),
        arguments.videos,
        arguments.runs.resolve(),
        arguments.name,
    )


def _streams_export(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.export import export_stream

    what = [name for name in ("frames", "features") if getattr(arguments, name)]
    execution = get_execution(arguments)
    if arguments.hf:
        from ctvr.orchestrator.jobs.export_dataset import export_dataset

        if what or settings_of(arguments):
            raise ConfigError("--hf: writes the videos as they are. Leave out --frames, --features and settings.")
        return export_dataset(arguments.stream, execution, arguments.folder, arguments.license)
    return export_stream(arguments.stream, settings_of(arguments), execution, arguments.folder, arguments.form, what)


def add_cache(commands: Any) -> None:
    parser = commands.add_parser("cache", help="decode a stream into the store; list, check and clean the store")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="decode every video of a stream that is not in the store")
    build.add_argument("--stream", help=f"({MAIN_JOB['stream']})")
    build.add_argument("--cluster", action="store_true", help="decode on all nodes of the Ray cluster (or --address)")
    build.add_argument(
        "--features",
        action="store_true",
        help="keep what the frozen vision blocks of method=NAME (zero_shot) make of the videos, too",
    )
    add_execution_options(build, resources=True)
    add_settings(build)
    build.set_defaults(run=_cache_build)
    listing = actions.add_parser("ls", help="objects and bytes of each kind, and this machine's copies")
    listing.set_defaults(run=_cache_ls)
    check = actions.add_parser("verify", help="read every object and check its digest")
    check.add_argument("--yes", action="store_true", help="remove the damaged ones; they will be made again")
    check.set_defaults(run=_cache_verify)
    collect = actions.add_parser("gc", help="find what no commit, stream or recent sweep needs, and remove it")
    collect.add_argument("--yes", action="store_true", help="remove it; without, only its number and size are told")
    collect.add_argument(
        "--older-than",
        type=float,
        metavar="DAYS",
        help="let go of what streams and runs last used before that, recent sweeps excepted (never)",
    )
    collect.set_defaults(run=_cache_gc)
    for action in (listing, check, collect):
        add_execution_options(action, folders=("runs", "store"))


def _cache_build(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.cache import build_cache

    overrides = settings_of(arguments)
    stream = arguments.stream or MAIN_JOB["stream"]
    return build_cache(stream, overrides, get_execution(arguments), arguments.cluster, arguments.features)


def _existing_store(arguments: argparse.Namespace) -> Any:
    execution = get_execution(arguments)
    execution.require_store()
    return execution


def _cache_ls(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    from ctvr.orchestrator.jobs.cache import list_cache

    return list_cache(execution)


def _cache_verify(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    from ctvr.orchestrator.jobs.cache import verify_cache

    return verify_cache(execution, arguments.yes)


def _cache_gc(arguments: argparse.Namespace) -> str:
    execution = _existing_store(arguments)
    from ctvr.orchestrator.jobs.cache import collect_garbage

    return collect_garbage(execution, arguments.older_than, arguments.yes)
