"""`ctvr plot`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, get_execution, get_existing_runs


def add_plot(commands: Any) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw what a trained model attends to, which patches it merges, its scores, or how its queries moved",
        description="A picture of frames as the model sees them: attention between frames (FFA) and within (CLIP), "
        "patches that were merged, scores before and after Dual Softmax; or a plot of the first task's queries in "
        "feature space after every task (drift).",
    )
    parser.add_argument("kind", choices=("attention", "merges", "scores", "drift"))
    parser.add_argument(
        "model", help="a folder, run id, run, sweep (its best trial), method (its newest run), best-STREAM"
    )
    parser.add_argument(
        "--inputs", dest="among", type=Path, nargs="+", default=[], metavar="FILE", help="videos, or a folder of them"
    )
    parser.add_argument("--count", type=int, help="how many videos are drawn (2; of scores 12; of drift 40 queries)")
    parser.add_argument("--block", type=int, help="of attention, from 1 (the last with frame fusion, or the last)")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".png or .pdf (<runs>/pages/KIND-MODEL.png)")
    add_execution_options(parser)
    parser.set_defaults(run=_plot)


def _plot(arguments: argparse.Namespace) -> str:
    execution = get_execution(arguments) if Path(arguments.model).is_dir() else get_existing_runs(arguments)
    from ctvr.orchestrator.jobs.plot import plot

    given = (arguments.among, arguments.count, arguments.block, arguments.out)
    return plot(arguments.kind, arguments.model, execution, *given)
