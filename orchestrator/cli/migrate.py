"""Command `ctvr migrate`."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, user_path


def add_migrate(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="compare the ways to switch embedders, and write a map between them",
        description="Prints the recall and the cost of each way: keeping the old embedder, mapping queries or the "
        "index, re-encoding a part or all of the items, searching both indexes. Recommends a way by the rule in "
        "docs/migrate.md.",
    )
    parser.add_argument(
        "old",
        metavar="OLD",
        help="vectors of the old embedder: a file or folder of arrays by id, or an imported stream of features",
    )
    parser.add_argument("new", metavar="NEW", help="vectors of the new embedder, for all ids or for a sample of them")
    parser.add_argument(
        "--queries",
        type=user_path,
        metavar="FILE",
        help="past queries; items that they find are re-encoded first. Vectors of the new embedder, or a .txt file "
        "with captions of the streams",
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="number of items to which the maps are fitted (default: 2000, at most half of the common items)",
    )
    parser.add_argument(
        "--measure",
        type=int,
        default=1000,
        metavar="N",
        help="maximum number of measured queries (default: %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="permitted loss of recall relative to re-encoding all (default: %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        metavar="ITEMS_PER_SECOND",
        help="items per second that the new embedder encodes, for a column with the encoding time",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sample (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=user_path,
        metavar="FILE",
        help=".safetensors file of the map, and a .py file next to it that applies the map "
        "(default: RUNS/migrate/OLD--NEW.safetensors)",
    )
    add_execution_options(parser, folders=("runs",))
    parser.set_defaults(run=_migrate)


def _migrate(arguments: argparse.Namespace) -> str:
    from dataclasses import fields

    from ctvr.orchestrator.jobs.migrate import MigrationConfig, migrate

    given = {each.name: getattr(arguments, each.name) for each in fields(MigrationConfig)}
    return migrate(arguments.old, arguments.new, MigrationConfig(**given))
