"""The commands `ctvr sweep` and `ctvr rerun`: from options and words to one request."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.cli.options import (
    add_direction,
    add_execution_options,
    add_settings,
    check_source_digest,
    get_direction,
    get_execution,
    get_existing_runs,
    preflight,
    settings_of,
    split_commas,
)
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.sweeps.run_names import generate_name
from ctvr.orchestrator.sweeps.trust import trust_options

MAIN_JOB = {"method": "framefusion_moe", "stream": "shapes-5"}
BASELINES = "zero_shot,clip4clip,upper_bound"


def add_sweep(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="search a method's settings on the cluster, rerun the best over seeds, tabulate; or a whole table",
        description="Every argument has a default: without any, FrameFusionMoE is searched on the embedded stream. "
        "--preset with the name of a table (ctvr-table1, bmu-table2, ..., or a .json file) runs every row of it.",
    )
    parser.add_argument("--method", help=f"a name from `ctvr methods` ({MAIN_JOB['method']})")
    parser.add_argument("--stream", help=f"a name from `ctvr streams` ({MAIN_JOB['stream']}, or the table's)")
    parser.add_argument("--name", help="of the sweep (method or table, stream and time)")
    parser.add_argument("--resume", metavar="NAME", help="go on with an interrupted sweep or table")
    parser.add_argument("--trials", type=int, help="of the search, for each row of a table (8); 0: only reruns")
    parser.add_argument("--searcher", help="tpe, grouped_tpe, random or grid (tpe; grouped_tpe from 16 trials on)")
    parser.add_argument("--scheduler", help="halving or none (halving)")
    parser.add_argument(
        "--confirm",
        type=int,
        help="best trials that must beat the recommended settings on validation videos; 0: none (2)",
    )
    parser.add_argument("--space", action="append", default=[], metavar="name=v1,v2", help="search these values only")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="name=v1,v2",
        help="run these values of a setting, all else as recommended, and draw R@1 over them; again for other settings",
    )
    parser.add_argument("--top", type=int, default=1, help="winners to rerun (%(default)s)")
    parser.add_argument("--seeds", type=int, help="of the rerun; 0 only searches (3)")
    add_task_orders(parser)
    parser.add_argument("--baselines", help=f"methods beside the winner ({BASELINES} and the method's own controls)")
    parser.add_argument("--rows", default="", help="of a table: these rows only, by comma")
    add_direction(parser)
    parser.add_argument("--smoke", action="store_true", help="1 trial of 1 epoch and 1 seed, to see that all is well")
    parser.add_argument(
        "--expect-sources", metavar="DIGEST", help="refuse to run other sources (cluster/submit.sh adds it)"
    )
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    add_settings(parser, "named settings of the method, or a whole table, e.g. ctvr-table1")
    parser.set_defaults(run=_sweep)


def add_task_orders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task-orders",
        type=int,
        default=1,
        help="of the stream's tasks in the rerun: its own and drawn ones (%(default)s)",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="show tracebacks and whatever else Ray writes")


def is_supervised(arguments: argparse.Namespace) -> bool:
    """Whether a command runs trials on Ray, which may take the process that started them with it."""
    if arguments.command == "reproduce":
        return bool(arguments.item) and not (arguments.list or arguments.plan)
    return arguments.command in ("sweep", "rerun")


def supervised_command(arguments: argparse.Namespace, words: list[str]) -> supervisor.SupervisedCommand:
    """A sweep, rerun or table that was typed, for the process that supervises it."""
    if arguments.command == "sweep":
        name = arguments.resume or arguments.name
    else:
        name = arguments.sweep if arguments.command == "rerun" else arguments.name
    hours = arguments.budget_hours
    deadline = time.monotonic() + hours * 3600 if hours and hours > 0 else None
    return supervisor.SupervisedCommand(words, arguments.runs, arguments.store, name or "", deadline, trust_options())


def _sweep(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.sweeps.preflight import check_hours, check_resumable
    from ctvr.orchestrator.tables.presets import names_table

    check_source_digest(arguments.expect_sources)
    check_hours(arguments.budget_hours)
    execution = get_execution(arguments)
    if arguments.resume:
        if others := _beside_resume(arguments):
            raise ConfigError(
                f"--resume {arguments.resume}: goes on with the settings of the first command. Leave "
                f"{others[0]} out, or start a new sweep."
            )
        check_resumable(arguments.resume, arguments.runs)
        preflight(arguments, None)
        from ctvr.orchestrator.sweeps.resume import resume
        from ctvr.orchestrator.sweeps.session import within_budget

        with within_budget(arguments.budget_hours):
            return resume(arguments.resume, execution)
    overrides = settings_of(arguments)
    if arguments.smoke:
        arguments.trials, arguments.seeds = 1, min(1 if arguments.seeds is None else arguments.seeds, 1)
        is_table = names_table(arguments.preset) or arguments.vary
        arguments.baselines = arguments.baselines if is_table else "zero_shot"
        overrides = {"optim.epochs": "1", **overrides}
    search = _search_settings(arguments, overrides)
    if names_table(arguments.preset) or arguments.vary:
        return run_table(arguments, search, overrides)
    return _sweep_method(arguments, search, overrides)


def _beside_resume(arguments: argparse.Namespace) -> list[str]:
    """Words that would change what is resumed."""
    options = "config method stream preset rows trials searcher scheduler confirm space vary seeds baselines direction"
    names = options.split()
    orders = ["--task-orders"] if arguments.task_orders != 1 else []
    return [
        *arguments.overrides,
        *orders,
        *(f"--{name}" for name in names if getattr(arguments, name) not in (None, "", [])),
    ]


def _search_settings(arguments: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, Any]:
    """What was said of the search, by options and by `search.*` words, which are taken out of `overrides`."""
    names = ("trials", "searcher", "scheduler", "confirm")
    search = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for word in [word for word in overrides if word.startswith("search.")]:
        name, value = word.removeprefix("search."), overrides.pop(word)
        if str(search.setdefault(name, value)) != str(value):
            raise ConfigError(f"{word}: given twice, as {search[name]!r} and {value!r}. Keep one of them.")
    return search


def _sweep_method(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> str:
    from ctvr.orchestrator.sweeps.preflight import check_arguments, check_settings

    if arguments.rows:
        raise ConfigError(f"--rows {arguments.rows}: is of a table. Name it: --preset ctvr-table1.")
    method, stream = arguments.method or MAIN_JOB["method"], arguments.stream or MAIN_JOB["stream"]
    check_arguments([method], search, arguments.space, overrides)
    baselines = split_commas(BASELINES if arguments.baselines is None else arguments.baselines)
    if arguments.top < 1 or (arguments.seeds or 0) < 0:
        raise ConfigError(f"--top must be >= 1 and --seeds >= 0, got {arguments.top} and {arguments.seeds or 0}.")
    check_arguments(baselines, {}, (), ())
    execution = get_execution(arguments)
    execution.check()
    from ctvr.orchestrator.learning.resolve import get_method, presets_of
    from ctvr.orchestrator.sweeps.untrained import untrained_baselines
    from ctvr.orchestrator.tables.presets import known_tables

    if arguments.baselines is None:
        baselines = (*baselines, *get_method(method).controls)

    unknown = [word for word in split_commas(arguments.preset) if word not in presets_of(method)]
    if unknown and arguments.method is None:
        raise ConfigError(f"--preset: {unknown[0]!r} is no table and no preset of {method}. {known_tables(unknown[0])}")
    arguments.stream = stream
    preflight(arguments, arguments.stream)
    check_settings(method, overrides, arguments.space)
    if arguments.baselines is None:
        baselines += untrained_baselines(method, split_commas(arguments.preset), baselines)
    from ctvr.orchestrator.sweeps.session import within_budget
    from ctvr.orchestrator.sweeps.sweep import SweepRequest, sweep

    name = arguments.name or generate_name(f"{method.replace(':', '-')}-{_slug(stream)}")
    supervisor.report_name(name)
    request = SweepRequest(
        method=method,
        stream=stream,
        name=name,
        overrides=overrides,
        presets=split_commas(arguments.preset),
        search=search,
        space=tuple(arguments.space),
        top=arguments.top,
        seeds=3 if arguments.seeds is None else arguments.seeds,
        baselines=baselines,
        direction=get_direction(arguments),
        orders=arguments.task_orders,
    )
    with within_budget(arguments.budget_hours):
        return sweep(request, execution)


def _slug(stream: str) -> str:
    """A stream as a part of a sweep's name."""
    return Path(stream).stem.replace("@", "-order")


def run_table(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> str:
    """Run the table that `arguments.preset` names."""
    execution = get_execution(arguments)
    request = request_table(arguments, search, overrides)
    execution.check()
    preflight(arguments, arguments.stream)
    from ctvr.orchestrator.learning.resolve import named_in
    from ctvr.orchestrator.sweeps.session import within_budget
    from ctvr.orchestrator.sweeps.table_sweep import sweep_table

    with within_budget(arguments.budget_hours), named_in(f"table {arguments.preset or 'of --vary'}"):
        return sweep_table(request, execution)


def request_table(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """What was asked for, as a `TableRequest`; `arguments.stream` becomes the table's where none was named."""
    from ctvr.orchestrator.sweeps.preflight import check_table
    from ctvr.orchestrator.tables.presets import load_preset, names_table

    if arguments.vary and not names_table(arguments.preset):
        return _request_varied(arguments, search, overrides)
    for option, value, default in (
        ("--method", arguments.method, None),
        ("--baselines", arguments.baselines, None),
        ("--space", arguments.space, []),
        ("--vary", arguments.vary, []),
        ("--top", arguments.top, 1),
    ):
        if value != default:
            raise ConfigError(f"{option}: a table names its rows itself. Leave it out, or write a preset of your own.")
    preset = load_preset(arguments.preset).only(split_commas(arguments.rows))
    seeds = preset.seeds if arguments.seeds is None else arguments.seeds
    preset = replace(preset, search={**preset.search, **search}, seeds=seeds)
    check_table(preset.search, preset.seeds, overrides)
    arguments.stream = arguments.stream or preset.stream
    table, stream = Path(arguments.preset).stem, _slug(arguments.stream)
    name = arguments.name or generate_name(f"{table}-{stream}")
    supervisor.report_name(name)
    from ctvr.orchestrator.sweeps.table_plan import TableRequest

    return TableRequest(name, arguments.stream, preset, overrides, get_direction(arguments), arguments.task_orders)


def _request_varied(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """A table of a method, of each value of --vary in it, and of --baselines beside it; nothing is searched."""
    from ctvr.orchestrator.sweeps.preflight import ablation_preset, check_arguments, check_settings, check_table
    from ctvr.orchestrator.sweeps.table_plan import TableRequest

    if given := [name for name in search if str(search[name]) != "1" or name != "trials"]:  # --smoke means one trial
        raise ConfigError(f"--vary: runs each value over seeds and searches nothing. Leave search.{given[0]} out.")
    if arguments.space or arguments.top != 1 or arguments.rows:
        raise ConfigError("--vary: searches nothing and has rows of its own. Leave --space, --top and --rows out.")
    method, baselines = arguments.method or MAIN_JOB["method"], split_commas(arguments.baselines or "")
    preset = ablation_preset(method, split_commas(arguments.preset), baselines, arguments.vary)
    check_arguments([method, *baselines], {}, arguments.vary, overrides)
    preset = replace(preset, seeds=preset.seeds if arguments.seeds is None else arguments.seeds)
    check_table(preset.search, preset.seeds, overrides)
    check_settings(method, overrides, arguments.vary)
    arguments.stream = arguments.stream or MAIN_JOB["stream"]
    name = arguments.name or generate_name(f"{method.replace(':', '-')}-vary-{_slug(arguments.stream)}")
    supervisor.report_name(name)
    direction = get_direction(arguments)
    return TableRequest(name, arguments.stream, preset, overrides, direction, arguments.task_orders)


def add_attach(commands: Any) -> None:
    parser = commands.add_parser("attach", help="watch a sweep that was submitted to this machine, or end it in order")
    parser.add_argument("name", nargs="?", help="a folder of ~/ctvr_drivers (the sweep that runs, else the last one)")
    parser.add_argument("--stop", action="store_true", help="end it in order; `ctvr sweep --resume` goes on with it")
    parser.set_defaults(run=_attach)


def _attach(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.cli import detached

    place = detached.find(arguments.name)
    sys.exit((detached.stop if arguments.stop else detached.follow)(place))


def add_rerun(commands: Any) -> None:
    parser = commands.add_parser("rerun", help="run the best trials of a sweep again over fresh seeds, and tabulate")
    parser.add_argument("--sweep", required=True, help="name of the sweep")
    parser.add_argument("--top", type=int, default=1, help="trials to rerun, best first (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="(%(default)s)")
    add_task_orders(parser)
    parser.add_argument("--baselines", default="", help="methods beside the winner, by comma")
    add_direction(parser)
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    parser.set_defaults(run=_rerun)


def _rerun(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.sweeps.rerun import rerun
    from ctvr.orchestrator.sweeps.session import within_budget

    baselines, direction = split_commas(arguments.baselines), get_direction(arguments)
    with within_budget(arguments.budget_hours):
        counts = (arguments.top, arguments.seeds)
        return rerun(arguments.sweep, execution, *counts, baselines, direction, arguments.task_orders)
