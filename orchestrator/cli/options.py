"""Options shared by several commands (folders, cluster, settings), and the checks before a sweep starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from ctvr.orchestrator.config import parse_overrides
from ctvr.orchestrator.console import count, say
from ctvr.orchestrator.errors import ConfigError, TrackingUnavailable
from ctvr.orchestrator.output_dir import check_name
from ctvr.orchestrator.sweeps.settings_file import read_settings

SMOKE = {"optim.epochs": "1"}  # settings of --smoke


def user_path(text: str) -> Path:
    """Expand `~` in a path, which a shell does not do in `--runs=~/runs`."""
    if re.match(r"\w+://", text):
        raise argparse.ArgumentTypeError(f"is a URL, not a path (got {text!r:.80}). Use a path on this machine.")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80}: the user does not exist. Use the whole path.") from error


def _sweep_name(text: str) -> str:
    check_name(text, "--name", is_ascii=True)
    return text


def add_sweep_name(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the option --name for a new sweep; the name becomes a part of paths and addresses."""
    text = f"name of the sweep (default: {default})"
    parser.add_argument("--name", type=_sweep_name, metavar="NAME", help=text)


def stream_name(text: str) -> str:
    """Check the name of a new stream, which becomes a part of paths, and return it."""
    check_name(text, "--name")
    return text


def add_doubles(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add hidden options that are equivalent to positional arguments, such as `--method clip4clip` to `clip4clip`."""
    for name in names:
        parser.add_argument(f"--{name}", metavar="NAME", help=argparse.SUPPRESS)


def add_execution_options(
    parser: argparse.ArgumentParser, resources: bool = False, folders: Sequence[str] = ("runs", "store", "videos")
) -> None:
    """Add the options for `folders` to a parser and, with `resources`, the options of a cluster."""
    runs, store, videos = (os.environ.get(f"CTVR_{name}") or "" for name in ("RUNS", "STORE", "VIDEOS"))
    options: dict[str, dict[str, Any]] = {
        "runs": {
            "type": user_path,
            "default": Path(runs or "runs"),
            "metavar": "FOLDER",
            "help": "runs folder, for all files that are written (default: %(default)s)",
        },
        "store": {
            "default": store,
            "metavar": "URI",
            "help": "object store of frames and commits, a folder or s3://bucket/prefix (default: RUNS/store)",
        },
        "videos": {
            "type": user_path,
            "default": Path(videos) if videos else None,
            "metavar": "FOLDER",
            "help": "folder of the stream's videos (default: the folder in the manifest)",
        },
    }
    where = parser.add_argument_group("where")
    for name in folders:
        where.add_argument(f"--{name}", **options[name])
    if not resources:
        return
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--address",
        help="Ray cluster: `auto` or an address joins a cluster, `local` starts one (default: join the cluster on this "
        "machine, or start one)",
    )
    nodes = _number("CTVR_NODES", 1, int)
    group.add_argument(
        "--nodes",
        type=int,
        default=nodes,
        metavar="N",
        help="number of cluster nodes to wait for (default: %(default)s)",
    )
    group.add_argument(
        "--local-cpus",
        type=int,
        metavar="N",
        help="number of logical CPUs of a cluster that is started on this machine (default: all)",
    )
    storage = os.environ.get("CTVR_STORAGE") or None
    group.add_argument(
        "--storage",
        dest="ray_storage",
        metavar="URI",
        default=storage,
        help="folder or s3:// URI of Ray's own state, writable by every node (default: RUNS/sweeps/NAME)",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="number of data-parallel worker processes of a trial (default: %(default)s)",
    )
    group.add_argument(
        "--cpus-per-worker",
        type=float,
        default=0.9,
        metavar="CPUS",
        help="logical CPUs of each worker (default: %(default)s)",
    )
    gpus = _number("CTVR_GPUS_PER_TRIAL", None, float)
    group.add_argument(
        "--gpus-per-trial",
        type=float,
        default=gpus,
        metavar="GPUS",
        help="GPUs of a trial; 0.5 puts two trials on a GPU (default: one per worker if the cluster has GPUs)",
    )
    group.add_argument(
        "--accelerator-type",
        default="",
        metavar="NAME",
        help="GPU model of a trial by Ray's name, e.g. A100 or H100, if a cluster has several models (default: any)",
    )
    group.add_argument(
        "--worker-timeout-hours",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="maximum wait for a trial's first worker, and maximum time without progress (default: %(default)g)",
    )
    group.add_argument(
        "--no-reuse",
        dest="reuse_prefixes",
        action="store_false",
        help="train every task of every trial, even if another trial has trained it with the same settings",
    )
    group.add_argument(
        "--max-concurrent",
        type=int,
        metavar="N",
        help="upper limit of concurrent trials (default: computed from the cluster)",
    )
    group.add_argument(
        "--max-nodes",
        type=int,
        default=_number("CTVR_MAX_NODES", None, int),
        metavar="N",
        help="upper limit of nodes requested from the cluster, including the head (default: the cluster's limit)",
    )
    group.add_argument(
        "--budget-hours",
        type=float,
        default=_number("CTVR_BUDGET_HOURS", None, float),
        metavar="HOURS",
        help="time limit, after which trials stop at the end of an epoch; --resume continues them (default: none)",
    )


def add_direction(parser: argparse._ActionsContainer) -> None:
    text = "retrieval direction of the table: text to video, video to text, or both with R-Sum (default: t2v)"
    parser.add_argument("--direction", choices=("t2v", "v2t", "both"), help=text)


def add_columns(parser: argparse._ActionsContainer) -> None:
    text = "metrics to show as further columns of the table, as runs record them, for example stream/t2v/rsum"
    parser.add_argument("--columns", type=_column_names, default=(), metavar="NAME,NAME", help=text)


def _column_names(text: str) -> tuple[str, ...]:
    if not (names := split_commas(text)) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"is empty or repeats a name (got {text!r:.80}). Use each name once.")
    return names


def get_direction(arguments: argparse.Namespace) -> Literal["t2v", "v2t", "both"]:
    return arguments.direction or "t2v"


def add_task_orders(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--task-orders",
        type=int,
        default=1,
        metavar="N",
        help="number of task orders in the rerun: the stream's own plus random ones (default: %(default)s)",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="show Ray's tracebacks and other output")


def _number(variable: str, default: Any, kind: type[int] | type[float]) -> Any:
    """Read a number from an environment variable.

    Raises:
        ConfigError: if it is not a number >= 0.
    """
    text = os.environ.get(variable, "")
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if (number := kind(text)) >= 0:  # false if the number is NaN
            return number
    what = "whole number" if kind is int else "number"
    raise ConfigError(f"{variable}={text!r} in the environment is not a {what} >= 0", remedy="Correct or unset it.")


def add_settings(
    parser: argparse.ArgumentParser, preset: str = "named settings of the method, e.g. released", names: str = ""
) -> None:
    """Add the options and arguments for presets and settings; `names` are positional arguments before the settings."""
    parser.add_argument("--preset", default="", metavar="PRESETS", help=f"{preset}; comma-separated")
    parser.add_argument(
        "--config",
        type=user_path,
        metavar="FILE",
        help="YAML file of settings; settings on the command line override it",
    )
    text = "settings, e.g. optim.epochs=8 method.beta=0.4"
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar=f"{names} name=value" if names else "name=value",
        help=f"{names} (names: `ctvr methods`, `ctvr streams`), then {text}" if names else text,
    )


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of --config, overridden by the command line; `method`, `stream`, `preset` become options.

    Raises:
        ConfigError: for an argument that is not a setting, or a file without settings.
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

    given = vars(arguments)
    return ExecutionConfig(**{each.name: given[each.name] for each in fields(ExecutionConfig) if each.name in given})


def get_existing_runs(arguments: argparse.Namespace, fills_store: bool = False) -> Any:
    """Return the execution settings of a command that reads existing runs.

    Args:
        arguments: parsed arguments of the command.
        fills_store: whether the command may create the store that --store names.

    Raises:
        ConfigError: if the runs folder lacks records, or --store is not an existing store.
    """
    from ctvr.orchestrator.tracking.server import require_records

    require_records(arguments.runs)
    execution = get_execution(arguments)
    if execution.store and not fills_store:
        execution.require_store()
    return execution


def get_runs_of_model(arguments: argparse.Namespace, may_be_incomplete: bool = False) -> Any:
    """Return the execution settings of a command that loads --model; check the model's name before torch is loaded.

    Args:
        arguments: parsed arguments of the command.
        may_be_incomplete: whether a run in training may be used as a model.

    Raises:
        ConfigError: as `get_existing_runs`, for a --gallery that does not exist, and for an unknown model.
    """
    from ctvr.orchestrator.jobs.find_model import BEST, find_run, find_started, is_folder, local_name

    gallery = getattr(arguments, "among", None)
    if isinstance(gallery, Path) and not gallery.exists():
        raise ConfigError("does not exist", f"--gallery {gallery}", remedy="Pass the folder of the videos to search.")
    arguments.model = local_name(arguments.model)
    if is_folder(arguments.model):
        return get_execution(arguments)
    execution = get_existing_runs(arguments)
    if not arguments.model.startswith(BEST):  # loading prints warnings, which would be repeated
        (find_started if may_be_incomplete else find_run)(arguments.model, execution)
    return execution


def split_commas(text: str) -> tuple[str, ...]:
    """Return the comma-separated items of a text, without surrounding spaces and empty items."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_source_digest(asked: str | None) -> None:
    """Check that the sources equal the sources on the machine that submitted the command.

    Args:
        asked: digest of the expected sources; None to omit the check.

    Raises:
        ConfigError: if the sources differ; the message contains both digests.
    """
    from ctvr.orchestrator.digests import source_digest

    if asked and asked != (here := source_digest()):
        raise ConfigError(
            f"--expect-sources {asked}: this machine has other sources ({here}). Run `ray up` with the cluster's YAML "
            "and submit again."
        )


def preflight(arguments: argparse.Namespace, stream: str | None) -> None:
    """Run the checks of `ctvr doctor` before a sweep, and print the number of warnings.

    Raises:
        ConfigError, TrackingUnavailable: for the first error.
    """
    from ctvr.orchestrator.doctor.run_checks import blocking, examine
    from ctvr.orchestrator.tracking.server import default_uri

    uri = default_uri(arguments.runs)
    found = examine(arguments.runs, arguments.store, stream, arguments.videos, uri)
    for finding in blocking(found):
        kind = TrackingUnavailable if finding.is_unavailable else ConfigError
        raise kind(f"{finding.subject}: {finding.text}. {finding.remedy}")
    if warnings := [finding.subject for finding in found if finding.level == "warning"]:
        say(f"doctor: {count(len(warnings), 'warning')} ({', '.join(warnings)}); run `ctvr doctor` for details")
