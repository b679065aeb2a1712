"""`ctvr`: parse, call one function, print. No logic here.

stdout carries results, stderr carries logs. Exit status: 0 done, 1 runs failed, 2 bad usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.config import ConfigError, parse_overrides

log = logging.getLogger(__name__)
MAIN_JOB = {"method": "framefusion_moe", "stream": "shapes-5"}


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
    except (ConfigError, OSError) as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        return _fail("stopped. Finished tasks are kept; the same command goes on from them.", 130)
    except RuntimeError as error:
        status = {"Interrupted": 130, "FailedRuns": 1, "Diverged": 1, "StoreError": 1}.get(type(error).__name__)
        if status is None:
            raise
        return _fail(error, status)
    if text:
        print(text)
    return 0


def _fail(reason: object, status: int) -> int:
    sys.stderr.write(f"ctvr: {reason}\n")
    return status


def _set_up_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for name in ("ctvr", "orchestrator"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("root").addFilter(lambda record: "No pretrained weights loaded" not in record.getMessage())


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="ctvr", description="Continual text-to-video retrieval experiments.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_sweep(commands)
    _add_run(commands)
    _add_rerun(commands)
    _add_table(commands)
    _add_streams(commands)
    _add_cache(commands)
    _add_methods(commands)
    _add_ui(commands)
    _add_doctor(commands)
    _add_explain(commands)
    sync = commands.add_parser("sync", help="send to MLflow what waited while it was away")
    _where(sync)
    sync.set_defaults(run=_sync)
    return parser


def _where(parser: argparse.ArgumentParser, resources: bool = False) -> None:
    runs, store, videos = (os.environ.get(f"CTVR_{name}") or "" for name in ("RUNS", "STORE", "VIDEOS"))
    parser.add_argument(
        "--runs", type=Path, default=Path(runs or "runs"), help="folder of everything that is written (%(default)s)"
    )
    parser.add_argument(
        "--store", default=store, help="object store of frames and commits: a folder or s3://bucket/prefix"
    )
    parser.add_argument(
        "--videos",
        type=Path,
        default=Path(videos) if videos else None,
        help="folder of the videos, if not the manifest's own",
    )
    if not resources:
        return
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--address",
        help="Ray cluster: auto or an address joins, local starts one (joins this machine's if there is one)",
    )
    nodes = _number("CTVR_NODES", 1)
    group.add_argument(
        "--nodes", type=int, default=nodes, help="wait until the cluster has this many nodes (%(default)s)"
    )
    group.add_argument("--local-cpus", type=int, help="logical CPUs of a cluster started on this machine")
    storage = os.environ.get("CTVR_STORAGE") or None
    group.add_argument(
        "--storage", default=storage, help="Ray's own state: a folder or s3:// URI that every node can write"
    )
    group.add_argument("--workers", type=int, default=1, help="data-parallel processes of one trial (1)")
    group.add_argument("--cpus-per-worker", type=float, default=0.9, help="(0.9)")
    group.add_argument(
        "--gpus-per-trial",
        type=float,
        help="may be a fraction: 0.5 puts two on a GPU (one per worker if there are GPUs)",
    )
    group.add_argument("--max-concurrent", type=int, help="upper limit of trials at once (computed from the cluster)")


def _number(variable: str, default: int) -> int:
    """A whole number from the environment; what is none is refused where it is used, by its name."""
    text = os.environ.get(variable, "")
    if text and not text.isdigit():
        raise ConfigError(f"{variable}={text!r} in the environment is no whole number. Correct or unset it.")
    return int(text) if text else default


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="", help="named settings of the method, e.g. released; several by comma")
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="e.g. optim.epochs=8 method.beta=0.4")


def _get_where(arguments: argparse.Namespace) -> Any:
    from orchestrator.jobs import Where

    names: tuple[str, ...] = ("runs", "store", "videos", "address", "nodes", "local_cpus", "storage", "workers")
    names += ("cpus_per_worker", "gpus_per_trial", "max_concurrent")
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return Where(**given)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


# ------------------------------------------------------------------------------------------ commands


def _add_sweep(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="search a method's settings on the cluster, rerun the best over seeds, tabulate",
        description="Every argument has a default: without any, FrameFusionMoE is searched on the embedded stream.",
    )
    parser.add_argument("--method", default=MAIN_JOB["method"], help="a name from `ctvr methods` (%(default)s)")
    parser.add_argument("--stream", default=MAIN_JOB["stream"], help="a name from `ctvr streams` (%(default)s)")
    parser.add_argument("--name", help="of the sweep (method, stream and time)")
    parser.add_argument("--resume", metavar="NAME", help="go on with an interrupted sweep")
    parser.add_argument("--trials", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--searcher", default="tpe", help="tpe, random or grid (%(default)s)")
    parser.add_argument("--scheduler", default="asha", help="asha or none (%(default)s)")
    parser.add_argument("--space", action="append", default=[], metavar="name=v1,v2", help="search these values only")
    parser.add_argument("--top", type=int, default=1, help="winners to rerun (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of the rerun; 0 only searches (%(default)s)")
    parser.add_argument(
        "--baselines", default="zero_shot,clip4clip,upper_bound", help="methods beside the winner (%(default)s)"
    )
    parser.add_argument("--smoke", action="store_true", help="1 trial of 1 epoch and 1 seed, to see that all is well")
    _where(parser, resources=True)
    _settings(parser)
    parser.set_defaults(run=_sweep)


def _sweep(arguments: argparse.Namespace) -> str:
    from orchestrator.sweep_jobs import SweepRequest, resume, sweep

    where = _get_where(arguments)
    if arguments.resume:
        if arguments.overrides:
            raise ConfigError(
                f"--resume {arguments.resume}: goes on with the settings of the first command. Leave "
                f"{arguments.overrides[0]} out, or start a new sweep."
            )
        return resume(arguments.resume, where)
    overrides = parse_overrides(arguments.overrides)
    if arguments.smoke:
        arguments.trials, arguments.seeds, arguments.baselines = 1, min(arguments.seeds, 1), "zero_shot"
        overrides = {"optim.epochs": "1", **overrides}
    _check_first(arguments)
    name = arguments.name or f"{arguments.method}-{Path(arguments.stream).stem}-{time.strftime('%m%d-%H%M%S')}"
    request = SweepRequest(
        method=arguments.method,
        stream=arguments.stream,
        name=name,
        overrides=overrides,
        presets=_words(arguments.preset),
        search={"trials": arguments.trials, "searcher": arguments.searcher, "scheduler": arguments.scheduler},
        space=tuple(arguments.space),
        top=arguments.top,
        seeds=arguments.seeds,
        baselines=_words(arguments.baselines),
    )
    return sweep(request, where)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="train one method over one stream in this process")
    parser.add_argument("--method", required=True, help="a name from `ctvr methods`")
    parser.add_argument("--stream", required=True, help="a name from `ctvr streams` or a manifest file")
    parser.add_argument("--fresh", action="store_true", help="train again what has been finished before")
    parser.add_argument("--keep-model", action="store_true", help="upload the trained model to MLflow")
    parser.add_argument("--smoke", action="store_true", help="1 epoch per task")
    _where(parser)
    _settings(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs import run

    settings = {"method": arguments.method, "stream": arguments.stream}
    if arguments.smoke:
        settings["optim.epochs"] = "1"
    settings.update(parse_overrides(arguments.overrides))
    return run(settings, _words(arguments.preset), _get_where(arguments), arguments.fresh, arguments.keep_model)


def _add_rerun(commands: Any) -> None:
    parser = commands.add_parser("rerun", help="run the best trials of a sweep again over fresh seeds, and tabulate")
    parser.add_argument("--sweep", required=True, help="name of the sweep")
    parser.add_argument("--top", type=int, default=1, help="trials to rerun, best first (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--baselines", default="", help="methods beside the winner, by comma")
    _where(parser, resources=True)
    parser.set_defaults(run=_rerun)


def _rerun(arguments: argparse.Namespace) -> str:
    from orchestrator.sweep_jobs import rerun

    where = _get_where(arguments)
    return rerun(arguments.sweep, where, arguments.top, arguments.seeds, _words(arguments.baselines))


def _add_table(commands: Any) -> None:
    parser = commands.add_parser("table", help="write the table of finished runs: Markdown, LaTeX, CSV, figures")
    parser.add_argument("--sweep", help="of the runs of one sweep (a rerun is the sweep NAME-final-...)")
    parser.add_argument("--stream", help="of all complete runs of a stream")
    _where(parser)
    parser.set_defaults(run=_table)


def _table(arguments: argparse.Namespace) -> str:
    from orchestrator.jobs import table

    if not arguments.sweep and not arguments.stream:
        raise ConfigError("table: of what? Add --sweep NAME or --stream NAME.")
    return table(_get_where(arguments), arguments.sweep, arguments.stream)


def _add_streams(commands: Any) -> None:
    parser = commands.add_parser("streams", help="list streams; import a benchmark's own files")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser("check", help="read a stream and list its missing videos")
    check.add_argument("stream")
    _where(check)
    check.set_defaults(run=_streams_check)
    importer = actions.add_parser("import", help="turn published split and annotation files into a manifest")
    importer.add_argument("kind", help="msrvtt, actnet, cvlm or csv")
    importer.add_argument("files", nargs="*", metavar="name=FILE", help="see README: e.g. split=MSRVTT_10_dataset.pkl")
    importer.add_argument("--name", help="of the stream (default: after the split file)")
    _where(importer)
    importer.set_defaults(run=_streams_import)
    _where(parser)
    parser.set_defaults(run=_streams_list)


def _streams_list(arguments: argparse.Namespace) -> str:
    from orchestrator.streams import available_streams

    return "\n".join(available_streams(arguments.runs))


def _streams_check(arguments: argparse.Namespace) -> str:
    from orchestrator.streams import check_videos, load_stream

    return check_videos(load_stream(arguments.stream, arguments.runs.resolve(), arguments.videos))


def _streams_import(arguments: argparse.Namespace) -> str:
    from orchestrator.importers import import_stream

    return import_stream(
        arguments.kind, parse_overrides(arguments.files), arguments.videos, arguments.runs.resolve(), arguments.name
    )


def _add_cache(commands: Any) -> None:
    parser = commands.add_parser("cache", help="decode a stream into the store; list, check and clean the store")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="decode every video of a stream that is not in the store")
    build.add_argument("--stream", default=MAIN_JOB["stream"], help="(%(default)s)")
    build.add_argument("--cluster", action="store_true", help="decode on all nodes of the Ray cluster (or --address)")
    _where(build, resources=True)
    _settings(build)
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
        _where(action)


def _cache_build(arguments: argparse.Namespace) -> str:
    from orchestrator.cache_jobs import build_cache

    overrides = parse_overrides(arguments.overrides)
    return build_cache(arguments.stream, overrides, _get_where(arguments), arguments.cluster)


def _cache_ls(arguments: argparse.Namespace) -> str:
    from orchestrator.cache_jobs import list_cache

    return list_cache(_get_where(arguments))


def _cache_verify(arguments: argparse.Namespace) -> str:
    from orchestrator.cache_jobs import verify_cache

    return verify_cache(_get_where(arguments), arguments.yes)


def _cache_gc(arguments: argparse.Namespace) -> str:
    from orchestrator.cache_jobs import collect_garbage

    return collect_garbage(_get_where(arguments), arguments.older_than, arguments.yes)


def _add_methods(commands: Any) -> None:
    parser = commands.add_parser("methods", help="list the methods, or one method's settings and presets")
    parser.add_argument("name", nargs="?", help="show this method's settings")
    parser.add_argument("--cost", action="store_true", help="multiply-adds and parameters beside the papers' figures")
    parser.set_defaults(run=_methods)


def _methods(arguments: argparse.Namespace) -> str:
    from orchestrator import catalogue

    if arguments.cost:
        return catalogue.cost_text()
    return catalogue.method_text(arguments.name) if arguments.name else catalogue.methods_text()


def _add_ui(commands: Any) -> None:
    parser = commands.add_parser("ui", help="open MLflow's pages on this machine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    _where(parser)
    parser.set_defaults(run=_ui)


def _ui(arguments: argparse.Namespace) -> str:
    from orchestrator.tracking import default_uri, prepare, ui_command

    if not 0 < arguments.port < 65536:
        raise ConfigError(f"--port {arguments.port}: is no port. Write a number from 1 to 65535.")
    uri = default_uri(arguments.runs)
    command = ui_command(uri, arguments.host, arguments.port)
    prepare(uri, arguments.runs)
    sys.stderr.write(f"MLflow: http://{arguments.host}:{arguments.port} (Ctrl-C ends it)\n")
    subprocess.run(command, check=False)
    return ""


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="look for what would go wrong: versions, disk, store, MLflow, videos")
    parser.add_argument("--stream", help="look at its videos too")
    _where(parser)
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> str:
    from orchestrator import doctor
    from orchestrator.tracking import default_uri

    uri = default_uri(arguments.runs)
    found = doctor.examine(arguments.runs, arguments.store, arguments.stream, arguments.videos, uri)
    text = doctor.to_text(found)
    if doctor.blocking(found):
        raise ConfigError(f"doctor: {len(doctor.blocking(found))} problems\n{text}")
    return text


def _check_first(arguments: argparse.Namespace) -> None:
    """What `ctvr doctor` calls an error stops a sweep before it starts; warnings are counted."""
    from orchestrator import doctor
    from orchestrator.tracking import default_uri

    uri = default_uri(arguments.runs)
    found = doctor.examine(arguments.runs, arguments.store, arguments.stream, arguments.videos, uri)
    for finding in doctor.blocking(found):
        raise ConfigError(f"{finding.subject}: {finding.text} {finding.remedy}")
    warnings = [finding.subject for finding in found if finding.level == "warning"]
    if warnings:
        sys.stderr.write(f"doctor: {len(warnings)} warnings ({', '.join(warnings)}); `ctvr doctor` says more\n")


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser("explain", help="say what a result's key stands for, or what sets two apart")
    parser.add_argument("key", help="the beginning of a key (tag ctvr.result of a run)")
    parser.add_argument("other", nargs="?", help="a second key to compare with")
    _where(parser)
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> str:
    from orchestrator.explain import compare, explain

    where = _get_where(arguments)
    store, tracker = where.places().open_store(), where.tracker()
    if arguments.other:
        return compare(arguments.key, arguments.other, store, tracker)
    return explain(arguments.key, store, tracker)


def _sync(arguments: argparse.Namespace) -> str:
    from orchestrator.tracking import Tracker, default_uri

    sent, left = Tracker(default_uri(arguments.runs), arguments.runs).flush()
    if left:
        raise ConfigError(f"sync: {sent} records sent, {left} still wait: MLflow does not answer. Try again later.")
    return f"{sent} records sent, none left"


if __name__ == "__main__":
    sys.exit(main())
