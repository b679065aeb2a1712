"""`ctvr`: parse, call one function, print. No logic here.

stdout carries results, stderr carries logs. Exit status: 0 done, 1 runs failed, 2 bad usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import signal
import sys
from typing import Any, NoReturn

from orchestrator.cli.options import add_settings, add_where, get_where, words_of
from orchestrator.cli.sweep import MAIN_JOB, add_rerun, add_sweep
from orchestrator.config import parse_overrides
from orchestrator.console import say
from orchestrator.errors import ConfigError, CtvrError, Interrupted
from orchestrator.redaction import hide_secrets, redact

log = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and "=" in message and "--" not in message:
            message += " (write all name=value words together, after the options)"
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command; every mistake of the user becomes one line and exit status 2."""
    _set_up_logging()
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        arguments = make_parser().parse_args(argv)
        with contextlib.redirect_stdout(sys.stderr):  # whatever libraries print is no result
            text = arguments.run(arguments)
    except CtvrError as error:
        return _fail(error, error.status)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _fail(f"{error}. Free some space and run again." if is_full else error, ConfigError.status)
    except KeyboardInterrupt:
        return _fail("stopped. Finished tasks are kept; the same command goes on from them.", Interrupted.status)
    if text:
        print(redact(text))
    return 0


def _fail(reason: object, status: int) -> int:
    say(f"ctvr: {redact(str(reason))}")
    return status


def _set_up_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for name in ("ctvr", "orchestrator"):
        logging.getLogger(name).setLevel(logging.INFO)
    hide_secrets()
    logging.getLogger("root").addFilter(lambda record: "No pretrained weights loaded" not in record.getMessage())


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ctvr", description="Continual text-to-video retrieval experiments.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_sweep(commands)
    _add_run(commands)
    add_rerun(commands)
    _add_table(commands)
    _add_streams(commands)
    _add_cache(commands)
    _add_methods(commands)
    _add_ui(commands)
    _add_doctor(commands)
    _add_explain(commands)
    sync = commands.add_parser("sync", help="send to MLflow what waited while it was away")
    add_where(sync)
    sync.set_defaults(run=_sync)
    return parser


# ------------------------------------------------------------------------------------------ commands


def _add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="train one method over one stream in this process")
    parser.add_argument("--method", required=True, help="a name from `ctvr methods`")
    parser.add_argument("--stream", required=True, help="a name from `ctvr streams` or a manifest file")
    parser.add_argument("--fresh", action="store_true", help="train again what has been finished before")
    parser.add_argument("--keep-model", action="store_true", help="upload the trained model to MLflow")
    parser.add_argument("--smoke", action="store_true", help="1 epoch per task")
    add_where(parser)
    add_settings(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.deployment import run

    settings = {"method": arguments.method, "stream": arguments.stream}
    if arguments.smoke:
        settings["optim.epochs"] = "1"
    settings.update(parse_overrides(arguments.overrides))
    return run(settings, words_of(arguments.preset), get_where(arguments), arguments.fresh, arguments.keep_model)


def _add_table(commands: Any) -> None:
    parser = commands.add_parser("table", help="write the table of finished runs: Markdown, LaTeX, CSV, figures")
    parser.add_argument("--sweep", help="of the runs of one sweep (a rerun is the sweep NAME-final-...)")
    parser.add_argument("--stream", help="of all complete runs of a stream")
    add_where(parser)
    parser.set_defaults(run=_table)


def _table(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.deployment import table

    if not arguments.sweep and not arguments.stream:
        raise ConfigError("table: of what? Add --sweep NAME or --stream NAME.")
    return table(get_where(arguments), arguments.sweep, arguments.stream)


def _add_streams(commands: Any) -> None:
    parser = commands.add_parser("streams", help="list streams; import a benchmark's own files")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser("check", help="read a stream and list its missing videos")
    check.add_argument("stream")
    add_where(check)
    check.set_defaults(run=_streams_check)
    importer = actions.add_parser("import", help="turn published split and annotation files into a manifest")
    importer.add_argument("kind", help="msrvtt, actnet, cvlm or csv")
    importer.add_argument("files", nargs="*", metavar="name=FILE", help="see README: e.g. split=MSRVTT_10_dataset.pkl")
    importer.add_argument("--name", help="of the stream (default: after the split file)")
    add_where(importer)
    importer.set_defaults(run=_streams_import)
    add_where(parser)
    parser.set_defaults(run=_streams_list)


def _streams_list(arguments: argparse.Namespace) -> str:
    from orchestrator.streams.load import available_streams

    return "\n".join(available_streams(arguments.runs))


def _streams_check(arguments: argparse.Namespace) -> str:
    from orchestrator.streams.load import check_videos, load_stream

    return check_videos(load_stream(arguments.stream, arguments.runs.resolve(), arguments.videos))


def _streams_import(arguments: argparse.Namespace) -> str:
    from orchestrator.importers.command import import_stream

    return import_stream(
        arguments.kind, parse_overrides(arguments.files), arguments.videos, arguments.runs.resolve(), arguments.name
    )


def _add_cache(commands: Any) -> None:
    parser = commands.add_parser("cache", help="decode a stream into the store; list, check and clean the store")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="decode every video of a stream that is not in the store")
    build.add_argument("--stream", default=MAIN_JOB["stream"], help="(%(default)s)")
    build.add_argument("--cluster", action="store_true", help="decode on all nodes of the Ray cluster (or --address)")
    build.add_argument(
        "--features",
        action="store_true",
        help="keep what the frozen vision blocks of method=NAME (zero_shot) make of the videos, too",
    )
    add_where(build, resources=True)
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
        add_where(action)


def _cache_build(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.cache import build_cache

    overrides = parse_overrides(arguments.overrides)
    return build_cache(arguments.stream, overrides, get_where(arguments), arguments.cluster, arguments.features)


def _cache_ls(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.cache import list_cache

    return list_cache(get_where(arguments))


def _cache_verify(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.cache import verify_cache

    return verify_cache(get_where(arguments), arguments.yes)


def _cache_gc(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.cache import collect_garbage

    return collect_garbage(get_where(arguments), arguments.older_than, arguments.yes)


def _add_methods(commands: Any) -> None:
    parser = commands.add_parser("methods", help="list the methods, or one method's settings and presets")
    parser.add_argument("name", nargs="?", help="show this method's settings")
    parser.add_argument("--cost", action="store_true", help="multiply-adds and parameters beside the papers' figures")
    parser.set_defaults(run=_methods)


def _methods(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs import methods as catalogue

    if arguments.cost:
        return catalogue.cost_text()
    return catalogue.method_text(arguments.name) if arguments.name else catalogue.methods_text()


def _add_ui(commands: Any) -> None:
    parser = commands.add_parser("ui", help="open MLflow's pages on this machine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    add_where(parser)
    parser.set_defaults(run=_ui)


def _ui(arguments: argparse.Namespace) -> str:
    from orchestrator.tracking.server import default_uri, ui_command
    from orchestrator.tracking.tracker import prepare

    if not 0 < arguments.port < 65536:
        raise ConfigError(f"--port {arguments.port}: is no port. Write a number from 1 to 65535.")
    uri = default_uri(arguments.runs)
    command = ui_command(uri, arguments.host, arguments.port)
    prepare(uri, arguments.runs)
    say(f"MLflow: http://{arguments.host}:{arguments.port} (Ctrl-C ends it)")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # seven processes that nobody needs here
    os.execv(command[0], command)  # this process becomes the server, so that a signal to it ends the server


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="look for what would go wrong: versions, disk, store, MLflow, videos")
    parser.add_argument("--stream", help="look at its videos too")
    add_where(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> str:
    from orchestrator.doctor.examine import blocking, examine, to_text
    from orchestrator.tracking.server import default_uri

    uri = default_uri(arguments.runs)
    found = examine(arguments.runs, arguments.store, arguments.stream, arguments.videos, uri)
    text = to_text(found)
    if blocking(found):
        raise ConfigError(f"doctor: {len(blocking(found))} problems\n{text}")
    return text


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser("explain", help="say what a result's key stands for, or what sets two apart")
    parser.add_argument("key", help="the beginning of a key (tag ctvr.result of a run)")
    parser.add_argument("other", nargs="?", help="a second key to compare with")
    add_where(parser)
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs.explain import compare, explain

    where = get_where(arguments)
    store, tracker = where.places().open_store(), where.tracker()
    if arguments.other:
        return compare(arguments.key, arguments.other, store, tracker)
    return explain(arguments.key, store, tracker)


def _sync(arguments: argparse.Namespace) -> str:
    from orchestrator.tracking.server import default_uri
    from orchestrator.tracking.tracker import Tracker

    sent, left = Tracker(default_uri(arguments.runs), arguments.runs).flush()
    if left:
        raise ConfigError(f"sync: {sent} records sent, {left} still wait: MLflow does not answer. Try again later.")
    return f"{sent} records sent, none left"


if __name__ == "__main__":
    sys.exit(main())
