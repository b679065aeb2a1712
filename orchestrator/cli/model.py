"""Commands `ctvr search`, `ctvr serve`, `ctvr report` and `ctvr export`."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ctvr.orchestrator.cli.options import (
    add_columns,
    add_execution_options,
    get_existing_runs,
    get_runs_of_model,
    user_path,
)
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import leave


def add_search(commands: Any) -> None:
    parser = commands.add_parser(
        "search",
        help="find the videos that match a text, with a trained model",
        description="Searches the videos of the stream that the model was trained on, or the videos of --gallery.",
    )
    parser.add_argument("text", nargs="*", help="queries, each a quoted text")
    parser.add_argument(
        "--vectors",
        type=user_path,
        metavar="FILE",
        help=".npy file of query vectors, (queries, d) or (d,), instead of texts, for a model of imported features",
    )
    _add_model(parser)
    parser.add_argument(
        "-k", type=int, default=10, metavar="N", help="number of videos for each query (default: %(default)s)"
    )
    parser.add_argument(
        "--html", type=user_path, metavar="FILE", help="HTML page to write, with the results and frames of the videos"
    )
    add_execution_options(parser)
    parser.set_defaults(run=_search)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="model: a folder, OWNER/NAME@REVISION on the Hugging Face Hub, run id, run, sweep (the best trial), "
        "method (the newest run) or best-STREAM",
    )
    parser.add_argument(
        "--gallery", dest="among", type=user_path, metavar="FOLDER", help="folder of the videos to search"
    )


def _search(arguments: argparse.Namespace) -> str:
    if not arguments.text and arguments.vectors is None:
        raise ConfigError("no query was given", "search", remedy="Use a text in quotes, or --vectors FILE.npy.")
    execution = get_runs_of_model(arguments)
    from ctvr.orchestrator.jobs.query import run_query

    given = arguments
    return run_query(given.text, given.model, execution, given.k, given.among, given.html, given.vectors)


def add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve searches with a trained model over HTTP, as JSON and as a page with thumbnails",
        description="Answers GET /search?q=TEXT&k=10, /health, /thumbnail/ID and / (a page) until Ctrl-C. The model is "
        "chosen as by `ctvr search`; a run in training is served with the weights of its newest finished task, and a "
        "newer model replaces the current one. A host that others can reach needs a token, from the variable "
        "CTVR_SERVE_TOKEN or --token-file. Clients send it as Authorization: Bearer TOKEN, browsers as the password.",
    )
    _add_model(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="PORT",
        help="port to listen on; 0 for any free port (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=user_path,
        metavar="FILE",
        help="file with the token (default: the token in the variable CTVR_SERVE_TOKEN, if it is set)",
    )
    add_execution_options(parser)
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> NoReturn:
    execution = get_runs_of_model(arguments, may_be_incomplete=True)
    from ctvr.orchestrator.jobs.serve import serve

    given = arguments
    leave(serve(given.model, execution, given.among, given.host, given.port, given.token_file))


def add_page(commands: Any) -> None:
    parser = commands.add_parser(
        "report", help="write a report of a sweep, a rerun or a stream's runs as one HTML file"
    )
    parser.add_argument("name", metavar="NAME", help="name of a sweep, a rerun (NAME-final-...) or a stream")
    parser.add_argument("--html", type=user_path, metavar="FILE", help="file to write (default: RUNS/pages/NAME.html)")
    parser.add_argument(
        "--figures", type=user_path, metavar="FOLDER", help="also write the figures as SVG and PDF, into this folder"
    )
    add_columns(parser)
    add_execution_options(parser)
    parser.set_defaults(run=_page)


def _page(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.report import make_report

    return make_report(arguments.name, execution, arguments.html, arguments.figures, arguments.columns)


def add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a trained model to a folder that other programs can load")
    actions = parser.add_subparsers(dest="action", required=True, metavar="FORM")
    hub = actions.add_parser(
        "hf", help="write safetensors and a model card for the Hugging Face Hub, without an upload"
    )
    hub.add_argument("folder", type=user_path, metavar="FOLDER", help="new folder")
    hub.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="model: a run id, run, sweep (the best trial), method (the newest run) or best-STREAM",
    )
    hub.add_argument(
        "--license",
        default="",
        help="license of the weights (default: the known license of tiny-clip or OpenAI's weights)",
    )
    add_execution_options(hub)
    hub.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> str:
    execution = get_runs_of_model(arguments)
    from ctvr.orchestrator.jobs.export_model import export_hf

    return export_hf(arguments.folder, arguments.model, execution, arguments.license)
