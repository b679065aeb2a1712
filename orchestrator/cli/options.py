"""Options that several commands share: folders, the cluster, settings; and what is checked before a sweep starts."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ctvr.orchestrator.config import parse_overrides, read_settings
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, TrackingUnavailable
from ctvr.orchestrator.sweeps.trust import trust_config, trust_named, trust_typed


def add_execution_options(
    parser: argparse.ArgumentParser, resources: bool = False, folders: Sequence[str] = ("runs", "store", "videos")
) -> None:
    """Add an option for each of `folders` that the command reads or writes, and with `resources` those of a cluster."""
    runs, store, videos = (os.environ.get(f"CTVR_{name}") or "" for name in ("RUNS", "STORE", "VIDEOS"))
    options: dict[str, dict[str, Any]] = {
        "runs": {"type": Path, "default": Path(runs or "runs"), "help": "folder of everything written (%(default)s)"},
        "store": {"default": store, "help": "object store of frames and commits: a folder or s3://bucket/prefix"},
        "videos": {
            "type": Path,
            "default": Path(videos) if videos else None,
            "help": "folder of the videos, if not the manifest's own",
        },
    }
    for name in folders:
        parser.add_argument(f"--{name}", **options[name])
    if not resources:
        return
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--address",
        help="Ray cluster: auto or an address joins, local starts one (joins this machine's if there is one)",
    )
    nodes = _number("CTVR_NODES", 1, int)
    group.add_argument(
        "--nodes", type=int, default=nodes, help="wait until the cluster has this many nodes (%(default)s)"
    )
    group.add_argument("--local-cpus", type=int, help="logical CPUs of a cluster started on this machine")
    storage = os.environ.get("CTVR_STORAGE") or None
    group.add_argument(
        "--storage",
        dest="ray_storage",
        metavar="URI",
        default=storage,
        help="Ray's own state: a folder or s3:// URI that every node can write",
    )
    group.add_argument("--workers", type=int, default=1, help="data-parallel processes of one trial (1)")
    group.add_argument("--cpus-per-worker", type=float, default=0.9, help="(0.9)")
    gpus = _number("CTVR_GPUS_PER_TRIAL", None, float)
    group.add_argument(
        "--gpus-per-trial",
        type=float,
        default=gpus,
        help="may be a fraction: 0.5 puts two on a GPU (one per worker if there are GPUs)",
    )
    group.add_argument(
        "--worker-timeout-hours",
        type=float,
        default=24.0,
        help="hours that a trial's workers wait for the first one, which may decode a whole stream (%(default)g)",
    )
    group.add_argument(
        "--no-reuse",
        dest="reuse_prefixes",
        action="store_false",
        help="train every task of every trial, also those that another trial has trained with the same settings",
    )
    group.add_argument("--max-concurrent", type=int, help="upper limit of trials at once (computed from the cluster)")
    group.add_argument(
        "--max-nodes",
        type=int,
        default=_number("CTVR_MAX_NODES", None, int),
        help="upper limit of machines that the cluster is asked for, the head counts (the cluster's own limit)",
    )
    group.add_argument(
        "--budget-hours",
        type=float,
        default=_number("CTVR_BUDGET_HOURS", None, float),
        help="end in order after so many hours and take the request for machines back; --resume goes on (no limit)",
    )


def add_direction(parser: argparse.ArgumentParser) -> None:
    text = "of the table: text to video (t2v), video to text, or both with R-Sum"
    parser.add_argument("--direction", choices=("t2v", "v2t", "both"), help=text)


def get_direction(arguments: argparse.Namespace) -> Literal["t2v", "v2t", "both"]:
    return arguments.direction or "t2v"


def _number(variable: str, default: Any, kind: type[int] | type[float]) -> Any:
    """A number from the environment; what is none is refused by its name."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if (number := kind(text)) >= 0:  # which no NaN is
            return number
    what = "whole number" if kind is int else "number"
    raise ConfigError(f"{variable}={text!r} in the environment is no {what} >= 0. Correct or unset it.")


def add_settings(parser: argparse.ArgumentParser, preset: str = "named settings of the method, e.g. released") -> None:
    parser.add_argument("--preset", default="", help=f"{preset}; several by comma")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings from a YAML file; words here go before it"
    )
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="e.g. optim.epochs=8 method.beta=0.4")


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of --config with those of the command line over them; `method`, `stream`, `preset` become options.

    Raises:
        ConfigError: for a word or a file that holds no settings.
    """
    settings = read_settings(arguments.config) if arguments.config else {}
    for name in ("method", "stream", "preset"):
        if name in settings and hasattr(arguments, name):
            value = settings.pop(name)
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            setattr(arguments, name, getattr(arguments, name) or text)
    return {**settings, **parse_overrides(arguments.overrides)}


def get_execution(arguments: argparse.Namespace) -> Any:
    from ctvr.orchestrator.execution import ExecutionConfig

    names: tuple[str, ...] = ("runs", "store", "videos", "address", "nodes", "local_cpus", "ray_storage", "workers")
    names += (
        "cpus_per_worker",
        "gpus_per_trial",
        "worker_timeout_hours",
        "max_concurrent",
        "max_nodes",
        "reuse_prefixes",
    )
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return ExecutionConfig(**given)


def get_existing_runs(arguments: argparse.Namespace) -> Any:
    """As `get_execution`, for commands that read what is there.

    Raises:
        ConfigError: if the runs folder holds no records.
    """
    from ctvr.orchestrator.tracking.server import require_records

    require_records(arguments.runs)
    return get_execution(arguments)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust to a command, or to each of its actions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                add_trust(choice)
            return
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="load this class although only a file names it: a stream, model, record, plan or table; may be repeated",
    )


def trust_user(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Trust the classes that the user names: in the words of the command, by --trust, in the --config file.

    Raises:
        ConfigError: for a --trust that names no class, or a --config file that cannot be read.
    """
    trust_typed(words)
    trust_named(getattr(arguments, "trust", []))
    if getattr(arguments, "config", None):
        trust_config(arguments.config)


def split_commas(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_source_digest(asked: str | None) -> None:
    """Tell somebody who submits from another machine that this one has not got his edits.

    Raises:
        ConfigError: with both digests and what to do.
    """
    from ctvr.orchestrator.digests import source_digest

    if asked and asked != (here := source_digest()):
        raise ConfigError(
            f"--expect-sources {asked}: this machine has other sources ({here}), as of the last `ray up`. Run `ray up` "
            "with the cluster's YAML again, then submit again."
        )


def preflight(arguments: argparse.Namespace, stream: str | None) -> None:
    """What `ctvr doctor` calls an error stops a sweep before it starts; warnings are counted."""
    from ctvr.orchestrator.doctor.run_checks import blocking, examine
    from ctvr.orchestrator.tracking.server import default_uri

    uri = default_uri(arguments.runs)
    found = examine(arguments.runs, arguments.store, stream, arguments.videos, uri)
    for finding in blocking(found):
        kind = TrackingUnavailable if finding.is_unavailable else ConfigError
        raise kind(f"{finding.subject}: {finding.text}. {finding.remedy}")
    warnings = [finding.subject for finding in found if finding.level == "warning"]
    if warnings:
        say(f"doctor: {len(warnings)} warnings ({', '.join(warnings)}); `ctvr doctor` says more")
