"""Command `ctvr sweep`."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

from ctvr.orchestrator.cli import supervisor
from ctvr.orchestrator.cli.options import (
    SMOKE,
    add_direction,
    add_doubles,
    add_execution_options,
    add_settings,
    add_sweep_name,
    add_task_orders,
    add_verbose,
    check_source_digest,
    get_direction,
    get_execution,
    preflight,
    settings_of,
    split_commas,
)
from ctvr.orchestrator.cli.rerun import swept, with_page
from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import nearest_name
from ctvr.orchestrator.streams.metric_names import OBJECTIVES
from ctvr.orchestrator.sweeps.run_names import generate_name
from ctvr.orchestrator.sweeps.trust import trust_options

MAIN_JOB = {"method": "framefusion_moe", "stream": "worlds-quick"}
_KEPT_BY_PLAN = ("task_orders", "workers", "cpus_per_worker", "gpus_per_trial", "accelerator_type")
# Chance, and rows that separate the benefit of replay from its cost
BASELINES = "zero_shot:chance,zero_shot,clip4clip,clip4clip@er_ring,er_ring:share-5,er_ring,upper_bound:only-final"


def add_sweep(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="search a method's settings, rerun the best over seeds and tabulate; or run a whole table",
        description=f"Without arguments, {MAIN_JOB['method']} is searched on {MAIN_JOB['stream']}. "
        "TABLE, the name of a table (ctvr-table1, bmu-table2, ..., or a .json file), runs all its rows.",
    )
    add_doubles(parser, "method", "stream")
    add_sweep_name(parser, "METHOD-STREAM-TIME")
    parser.add_argument("--resume", metavar="NAME", help="name of the interrupted sweep or table to resume")
    search = parser.add_argument_group("what to search")
    search.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="number of search trials, of each row for a table; 0 is allowed for tables (default: 8)",
    )
    search.add_argument(
        "--searcher",
        metavar="NAME",
        help="search algorithm: tpe, grouped_tpe, random, grid or an installed package's (default: tpe; grouped_tpe "
        "from 16 trials on)",
    )
    search.add_argument(
        "--objectives",
        metavar="NAMES",
        help=f"several objectives, for a Pareto front, comma-separated: {', '.join(OBJECTIVES)} (default: one metric)",
    )
    others = "halving or none; or, with timing-dependent results, asha, hyperband, median_stopping, bohb or a package's"
    search.add_argument("--scheduler", metavar="NAME", help=f"trial scheduler: {others} (default: halving)")
    search.add_argument(
        "--confirm",
        type=int,
        metavar="N",
        help="number of best trials compared with the recommended settings on validation videos (default: 2)",
    )
    search.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="name=v1,v2",
        help="values to search, with recommended values of all other settings; all combinations are run if there are "
        "enough trials; may be repeated. 'name=v1,v2 where other=w' searches name only if the other setting is w",
    )
    search.add_argument(
        "--space-add",
        action="append",
        default=[],
        metavar="name=v1,v2",
        help="values to search, together with the method's own search space; may be repeated",
    )
    search.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="name=v1,v2",
        help="values of a setting to run without a search, with recommended values of all other settings and a plot of "
        "R@1; may be repeated",
    )
    rerun = parser.add_argument_group("what to rerun")
    rerun.add_argument(
        "--top", type=int, default=1, metavar="N", help="number of winners to rerun (default: %(default)s)"
    )
    rerun.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds of the rerun; 0 skips the rerun (default: 3)"
    )
    add_task_orders(rerun)
    rerun.add_argument(
        "--baselines",
        metavar="METHODS",
        help=f"methods to run next to the winner, comma-separated (default: {BASELINES} and the method's controls)",
    )
    rerun.add_argument(
        "--rows", default="", metavar="ROWS", help="rows of the table to run, comma-separated (default: all)"
    )
    add_direction(rerun)
    parser.add_argument(
        "--smoke", action="store_true", help="quick check: 1 trial, 1 epoch, 1 seed, unless you set others"
    )
    parser.add_argument(
        "--expect-sources",
        metavar="DIGEST",
        help="digest that the sources on this machine must have (set by cluster/submit.sh)",
    )
    add_execution_options(parser, resources=True)
    add_verbose(parser)
    add_settings(parser, "named settings of the method, or a whole table, e.g. ctvr-table1", "METHOD STREAM, or TABLE")
    usual = {name: parser.get_default(name) for name in _KEPT_BY_PLAN}
    parser.set_defaults(run=_sweep, places=("method", "stream", "preset"), usual=usual)


def is_supervised(arguments: argparse.Namespace) -> bool:
    """Return whether a command runs trials on Ray, so that it needs a supervisor, because Ray can kill the driver."""
    if arguments.command == "reproduce":
        return bool(arguments.item) and not (arguments.list or arguments.plan)
    return arguments.command in ("sweep", "rerun")


def supervised_command(arguments: argparse.Namespace, words: list[str]) -> supervisor.SupervisedCommand:
    """Return the supervised form of a sweep, rerun or table command."""
    if arguments.command == "sweep":
        name = arguments.resume or arguments.name
    else:
        name = swept(arguments) if arguments.command == "rerun" else arguments.name
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
        if others := _list_conflicts(arguments):
            raise ConfigError(
                f"--resume {arguments.resume}: resumes with the settings of the first command. Omit {others[0]}, or "
                "start a new sweep."
            )
        check_resumable(arguments.resume, arguments.runs)
        preflight(arguments, None)
        from ctvr.orchestrator.sweeps.session import within_budget
        from ctvr.orchestrator.sweeps.sweep import resume

        with within_budget(arguments.budget_hours):
            return with_page(resume(arguments.resume, execution), arguments.resume, execution)
    overrides = settings_of(arguments)
    if arguments.smoke:
        is_table = names_table(arguments.preset) or arguments.vary
        for name, value in (("trials", 1), ("seeds", 1), ("baselines", None if is_table else "zero_shot")):
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        overrides = {**SMOKE, **overrides}
    search = _search_settings(arguments, overrides)
    if names_table(arguments.preset) or arguments.vary:
        return run_table(arguments, search, overrides)
    return _sweep_method(arguments, search, overrides)


def _list_conflicts(arguments: argparse.Namespace) -> list[str]:
    """Return the given arguments that cannot be combined with --resume."""
    options = "config method stream preset rows trials searcher scheduler objectives confirm space space_add vary seeds"
    names = f"{options} baselines direction".split()
    others = [name for name, value in arguments.usual.items() if getattr(arguments, name) != value]
    return [
        *arguments.overrides,
        *(f"--{name.replace('_', '-')}" for name in others),
        *(f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) not in (None, "", [])),
    ]


def _search_settings(arguments: argparse.Namespace, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the search settings of the options and the `search.*` overrides, which are removed from `overrides`."""
    names = ("trials", "searcher", "scheduler", "confirm")
    search = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.objectives is not None:
        words = split_commas(arguments.objectives)
        if unknown := [word for word in words if word not in OBJECTIVES]:
            hint = suggest(unknown[0], OBJECTIVES)
            raise ConfigError(f"{unknown[0]!r} is none of {', '.join(OBJECTIVES)}.{hint}", "--objectives")
        if not words or len(set(words)) < len(words):
            fault = "a name is repeated" if words else "is an empty list"
            raise ConfigError(fault, "--objectives", arguments.objectives, f"Use each of {', '.join(OBJECTIVES)} once.")
        metrics, modes = zip(*(OBJECTIVES[word] for word in words))
        search |= {"metric": ",".join(metrics), "mode": ",".join(modes)}
    for word in [word for word in overrides if word.startswith("search.")]:
        name, value = word.removeprefix("search."), overrides.pop(word)
        if str(search.setdefault(name, value)) != str(value):
            raise ConfigError(f"given twice, as {search[name]!r} and {value!r}", word, remedy="Keep one of them.")
    return search


def _sweep_method(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> str:
    from ctvr.orchestrator.sweeps.preflight import check_method, check_methods, check_search_arguments, check_settings

    if arguments.rows:
        raise ConfigError(
            f"--rows {arguments.rows}: applies to tables only. Add --preset TABLE, for example --preset ctvr-table1."
        )
    method, stream = arguments.method or MAIN_JOB["method"], arguments.stream or MAIN_JOB["stream"]
    check_method(method)
    space = [*arguments.space, *arguments.space_add]
    check_search_arguments(search, space, overrides, arguments.top, arguments.seeds or 0)
    baselines = split_commas(BASELINES if arguments.baselines is None else arguments.baselines)
    check_methods(baselines)
    get_execution(arguments).check()
    from ctvr.orchestrator.settings.presets import get_method, presets_of
    from ctvr.orchestrator.sweeps.untrained import untrained_baselines
    from ctvr.orchestrator.tables.presets import known_tables

    if arguments.baselines is None:
        baselines = (*baselines, *get_method(method).controls)

    unknown = [word for word in split_commas(arguments.preset) if word not in presets_of(method)]
    if unknown and arguments.method is None:
        raise ConfigError(
            f"{unknown[0]!r} is neither a table nor a preset of {method}. {known_tables(unknown[0])}", "--preset"
        )
    arguments.stream = stream
    preflight(arguments, arguments.stream)
    check_settings(method, overrides, space)
    if arguments.baselines is None:
        baselines += untrained_baselines(method, split_commas(arguments.preset), baselines)
    from ctvr.orchestrator.sweeps.plan import request_search

    name = arguments.name or generate_name(f"{_slug(method)}-{_slug(stream)}")
    supervisor.report_name(name)
    request = request_search(
        *(method, stream, name, overrides, split_commas(arguments.preset), search),
        seeds=3 if arguments.seeds is None else arguments.seeds,
        space=tuple(arguments.space),
        space_add=tuple(arguments.space_add),
        top=arguments.top,
        baselines=baselines,
        direction=get_direction(arguments),
        orders=arguments.task_orders,
    )
    return _start(request, arguments)


def _start(request: Any, arguments: argparse.Namespace) -> str:
    """Run a sweep or table, and write its report."""
    from ctvr.orchestrator.sweeps.session import within_budget
    from ctvr.orchestrator.sweeps.sweep import sweep

    execution = get_execution(arguments)
    with within_budget(arguments.budget_hours):
        text = sweep(request, execution)
        return with_page(text, request.name, execution) if request.preset.seeds or not request.is_table else text


def _slug(name: str) -> str:
    """Return the name of a method, stream, table or file as a valid part of a sweep's name."""
    return nearest_name(name.rpartition("/")[2].removesuffix(".json").replace("@", "-order"))


def run_table(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> str:
    """Run the table that `arguments.preset` names."""
    request = request_table(arguments, search, overrides)
    get_execution(arguments).check()
    preflight(arguments, arguments.stream)
    from ctvr.orchestrator.settings.resolve import named_in

    with named_in(f"table {arguments.preset or 'of --vary'}"):
        return _start(request, arguments)


def request_table(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """Build the `SweepRequest` of a table; sets `arguments.stream` to the table's stream if none was given."""
    from ctvr.orchestrator.sweeps.preflight import check_table
    from ctvr.orchestrator.tables.presets import names_table

    is_listed = names_table(arguments.preset) or not arguments.vary
    preset = _load_table(arguments, search) if is_listed else _build_ablation(arguments, search, overrides)
    preset = replace(preset, seeds=preset.seeds if arguments.seeds is None else arguments.seeds)
    check_table(preset.search, preset.seeds, [*overrides, *preset.varies])
    arguments.stream = arguments.stream or preset.stream
    what = _slug(arguments.preset) if is_listed else f"{_slug(preset.rows[0].method)}-vary"
    name = arguments.name or generate_name(f"{what}-{_slug(arguments.stream)}")
    supervisor.report_name(name)
    from ctvr.orchestrator.sweeps.plan import SweepRequest  # imports torch

    return SweepRequest(name, arguments.stream, preset, overrides, get_direction(arguments), arguments.task_orders)


def _load_table(arguments: argparse.Namespace, search: dict[str, Any]) -> Any:
    """Return the table that `arguments.preset` names, or for claims, the table whose rows test the papers' claims."""
    from ctvr.orchestrator.tables.paper_items import CLAIMS
    from ctvr.orchestrator.tables.presets import load_preset

    for option, value, default in (
        ("--method", arguments.method, None),
        ("--baselines", arguments.baselines, None),
        ("--space", arguments.space, []),
        ("--space-add", arguments.space_add, []),
        ("--vary", arguments.vary, []),
        ("--top", arguments.top, 1),
    ):
        if value != default:
            raise ConfigError(
                f"{option}: not applicable, because a table determines its rows. Omit it, or write your own preset."
            )
    if arguments.preset == CLAIMS.preset:
        from ctvr.orchestrator.tables.claims import STREAM, chosen, has_images, preset_of

        stream = arguments.stream or STREAM
        preset = preset_of(chosen(split_commas(arguments.only), has_images(stream)), stream)
    else:
        preset = load_preset(arguments.preset)
    preset = preset.only(split_commas(arguments.rows))
    return replace(preset, search={**preset.search, **search})


def _build_ablation(arguments: argparse.Namespace, search: dict[str, Any], overrides: dict[str, Any]) -> Any:
    """Return a table without a search: a row for each value of --vary and each baseline."""
    from ctvr.orchestrator.sweeps.preflight import ablation_preset, check_methods, check_settings

    if given := [name for name in search if str(search[name]) != "1" or name != "trials"]:  # --smoke sets trials=1
        raise ConfigError("runs each value over seeds, without a search", "--vary", remedy=f"Omit search.{given[0]}.")
    if arguments.space or arguments.space_add or arguments.top != 1 or arguments.rows:
        raise ConfigError("--vary: runs the listed values without a search. Omit --space, --space-add, --top, --rows.")
    method, baselines = arguments.method or MAIN_JOB["method"], split_commas(arguments.baselines or "")
    preset = ablation_preset(method, split_commas(arguments.preset), baselines, arguments.vary)
    check_methods([method, *baselines])
    check_settings(method, overrides, arguments.vary)
    return replace(preset, stream=MAIN_JOB["stream"])
