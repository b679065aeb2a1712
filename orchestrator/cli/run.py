"""Command `ctvr run`."""

from __future__ import annotations

import argparse
import gc
from typing import Any

from ctvr.orchestrator.cli.mistakes import missing_name
from ctvr.orchestrator.cli.options import (
    SMOKE,
    add_doubles,
    add_execution_options,
    add_settings,
    get_execution,
    settings_of,
    split_commas,
)
from ctvr.orchestrator.interpreter import gc_disabled


def add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="train one method over one stream in this process",
        description="`ctvr run clip4clip shapes-5 optim.epochs=2` trains CLIP4Clip for 2 epochs a task. "
        "STREAM is a name or a manifest file.",
    )
    add_doubles(parser, "method", "stream")
    parser.add_argument("--fresh", action="store_true", help="train again, even if the run is finished")
    parser.add_argument("--keep-model", action="store_true", help="upload the trained model to MLflow")
    parser.add_argument("--smoke", action="store_true", help="quick check: 1 epoch per task")
    add_execution_options(parser)
    add_settings(parser, names="METHOD STREAM")
    parser.set_defaults(run=_run, places=("method", "stream"))


def _run(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.sweeps.preflight import check_method

    given = settings_of(arguments)
    for name in ("method", "stream"):
        if not getattr(arguments, name):
            raise missing_name(name, arguments.method, arguments.stream)
    check_method(arguments.method)
    execution = get_execution(arguments)
    execution.check()
    smoke = SMOKE if arguments.smoke else {}
    settings = {"method": arguments.method, "stream": arguments.stream, **smoke, **given}
    presets = split_commas(arguments.preset)
    if not (arguments.fresh or arguments.keep_model):
        from ctvr.orchestrator.jobs.finished import finished_run

        if text := finished_run(settings, presets, execution):
            return text
    with gc_disabled():
        from ctvr.orchestrator.jobs.run import run  # imports torch
    gc.freeze()  # imported packages are never garbage, so later collections need not search them

    return run(settings, presets, execution, arguments.fresh, arguments.keep_model)
