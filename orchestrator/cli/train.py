"""`ctvr run`."""

from __future__ import annotations

import argparse
from typing import Any

from orchestrator.cli.options import add_settings, add_where, get_where, settings_of, words_of
from orchestrator.errors import ConfigError


def add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="train one method over one stream in this process")
    parser.add_argument("--method", help="a name from `ctvr methods`")
    parser.add_argument("--stream", help="a name from `ctvr streams` or a manifest file")
    parser.add_argument("--fresh", action="store_true", help="train again what has been finished before")
    parser.add_argument("--keep-model", action="store_true", help="upload the trained model to MLflow")
    parser.add_argument("--smoke", action="store_true", help="1 epoch per task")
    add_where(parser)
    add_settings(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.words import check_names

    given = settings_of(arguments)
    for name in ("method", "stream"):
        if not getattr(arguments, name):
            raise ConfigError(f"run: --{name} is required. `ctvr {name}s` lists them.")
    check_names([arguments.method], {}, (), ())
    where = get_where(arguments)
    where.check()
    from orchestrator.jobs.train import run

    smoke = {"optim.epochs": "1"} if arguments.smoke else {}
    settings = {"method": arguments.method, "stream": arguments.stream, **smoke, **given}
    return run(settings, words_of(arguments.preset), where, arguments.fresh, arguments.keep_model)
