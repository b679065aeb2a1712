"""Commands `ctvr runs publish`, `ctvr runs verify` and `ctvr runs compare`."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, get_execution, get_existing_runs, user_path
from ctvr.orchestrator.errors import ConfigError


def add_bundles(actions: Any) -> None:
    publish = actions.add_parser("publish", help="write the ranks of a run or of a table as one small file, a bundle")
    publish.add_argument("name", metavar="NAME", help="name of a run, or of a sweep or stream as for `ctvr table`")
    publish.add_argument("--out", type=user_path, metavar="FILE", help="new bundle (default: RUNS/bundles/NAME.zip)")
    publish.add_argument("--captions", action="store_true", help="include the text of each caption")
    publish.add_argument("--sign", type=user_path, metavar="KEY", help="private SSH key that signs the bundle")
    ranks = "file for the ranks as one Parquet table"
    publish.add_argument("--parquet", type=user_path, metavar="FILE", help=ranks)
    add_execution_options(publish)
    publish.set_defaults(run=_publish)
    verify = actions.add_parser(
        "verify",
        help="check that a bundle's table follows from its ranks, and that models on this machine give these ranks",
        description="Exit status: 0 consistent and, unless --queries is 0, all runs reproduced; 1 consistent, but not "
        "all runs reproduced; 2 not consistent, or invalid input.",
    )
    verify.add_argument("file", type=user_path, metavar="FILE", help="bundle to check")
    verify.add_argument(
        "--queries",
        type=int,
        default=100,
        metavar="N",
        help="number of randomly chosen ranks to compute again; 0 skips this check (default: %(default)s)",
    )
    verify.add_argument(
        "--signers", type=user_path, metavar="FILE", help="SSH file of allowed signers; one must have made FILE.sig"
    )
    verify.add_argument("--parquet", type=user_path, metavar="FILE", help=ranks)
    add_execution_options(verify)
    verify.set_defaults(run=_verify)
    compare = actions.add_parser("compare", help="compare the ranks of two runs, bundles or CSV files query by query")
    text = "run (or several, comma-separated: its seeds), bundle FILE or FILE:ROW, or CSV file with query and rank"
    compare.add_argument("first", metavar="A", help=text)
    compare.add_argument("second", metavar="B", help="second run, bundle or CSV file, in the same form")
    add_execution_options(compare, folders=("runs",))
    compare.set_defaults(run=_compare)


def _publish(arguments: argparse.Namespace) -> str:
    execution = get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.publish import publish

    given = arguments
    return publish(given.name, execution, given.out, given.captions, given.sign, given.parquet)


def _verify(arguments: argparse.Namespace) -> str:
    if arguments.queries < 0:
        raise ConfigError("must be >= 0", f"--queries {arguments.queries}", remedy="Use 0 to omit the reproduction.")
    from ctvr.orchestrator.jobs.verify import verify

    options = arguments.queries, arguments.signers, arguments.parquet
    text, arguments.status = verify(arguments.file, get_execution(arguments), *options)
    return text


def _compare(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.compare import compare

    return compare(arguments.first, arguments.second, get_execution(arguments))
