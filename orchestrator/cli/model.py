"""`ctvr search`, `ctvr report`, `ctvr export` and `ctvr schema`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, get_execution, get_existing_runs


def add_search(commands: Any) -> None:
    parser = commands.add_parser(
        "search",
        help="ask a trained model for the videos that fit a text",
        description="The videos are those of the stream that the model has learned, or those of --in.",
    )
    parser.add_argument("text", nargs="+", help="what is to be seen; each quoted text is a query of its own")
    parser.add_argument(
        "--model",
        required=True,
        help="a folder, run id, run, sweep (its best trial), method (its newest run), best-STREAM",
    )
    parser.add_argument("--gallery", dest="among", type=Path, metavar="FOLDER", help="search the videos of this folder")
    parser.add_argument("-k", type=int, default=10, help="how many videos of each query (%(default)s)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures of them, too")
    add_execution_options(parser)
    parser.set_defaults(run=_search)


def _search(arguments: argparse.Namespace) -> str:
    execution = get_execution(arguments) if Path(arguments.model).is_dir() else get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.query import run_query

    return run_query(arguments.text, arguments.model, execution, arguments.k, arguments.among, arguments.html)


def add_page(commands: Any) -> None:
    parser = commands.add_parser(
        "report", help="write one HTML file of a sweep, a rerun or a stream's runs, to look at and mail"
    )
    parser.add_argument("name", help="of a sweep, a rerun (NAME-final-...) or a stream")
    parser.add_argument("--html", type=Path, metavar="FILE", help="(<runs>/pages/NAME.html)")
    add_execution_options(parser)
    parser.set_defaults(run=_page)


def _page(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.report import make_report

    return make_report(arguments.name, execution, arguments.html)


def add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a trained model as a folder that others can load")
    actions = parser.add_subparsers(dest="action", required=True, metavar="FORM")
    hub = actions.add_parser("hf", help="safetensors and a model card for Hugging Face's hub; nothing is uploaded")
    hub.add_argument("folder", type=Path, help="a new one")
    hub.add_argument("--model", required=True, help="run id, run, sweep (its best trial), method, best-STREAM")
    hub.add_argument("--license", default="", help="of the weights (known of tiny-clip's and OpenAI's)")
    add_execution_options(hub)
    hub.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.export_model import export_hf

    return export_hf(arguments.folder, arguments.model, execution, arguments.license)


def add_schema(commands: Any) -> None:
    parser = commands.add_parser("schema", help="print every setting as a JSON schema, for editors of --config files")
    parser.add_argument("method", nargs="?", default="", help="of this method alone")
    parser.set_defaults(run=_schema)


def _schema(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.catalog.schema import schema_text

    return schema_text(arguments.method)
