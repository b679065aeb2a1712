"""Command `ctvr plot`."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import add_execution_options, get_runs_of_model, user_path


def add_plot(commands: Any) -> None:
    parser = commands.add_parser(
        "plot",
        help="plot a trained model's attention, merged patches, expert weights, scores, or the drift of its queries",
        description="Plots the model's input frames with attention between frames (FFA) and within frames (CLIP), with "
        "merged patches, or with the weights of experts. `scores` plots the similarity matrix before and after dual "
        "softmax. `drift` plots the first task's queries in feature space after every task.",
    )
    parser.add_argument("kind", choices=("attention", "merges", "gates", "scores", "drift"), help="kind of plot")
    parser.add_argument(
        "model",
        help="model: a folder, OWNER/NAME@REVISION on the Hugging Face Hub, run id, run, sweep (the best trial), "
        "method (the newest run) or best-STREAM",
    )
    parser.add_argument(
        "--inputs",
        dest="among",
        type=user_path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="videos, or a folder of videos",
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="number of videos to plot, or of queries for drift (default: 2; gates: 8; scores: 12; drift: 40)",
    )
    parser.add_argument(
        "--block",
        type=int,
        metavar="N",
        help="number of the block whose attention is plotted, from 1 (default: the last block, with frame fusion if "
        "the model has any)",
    )
    parser.add_argument(
        "--out",
        type=user_path,
        metavar="FILE",
        help=".png or .pdf file to write, or .svg for scores and drift (default: RUNS/pages/KIND-MODEL.png)",
    )
    add_execution_options(parser)
    parser.set_defaults(run=_plot)


def _plot(arguments: argparse.Namespace) -> str:
    execution = get_runs_of_model(arguments)
    from ctvr.orchestrator.jobs.plot import plot

    given = (arguments.among, arguments.count, arguments.block, arguments.out)
    return plot(arguments.kind, arguments.model, execution, *given)
