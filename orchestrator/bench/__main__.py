"""`make bench` and `make bench-gpu`: the command, the list of comparisons and the table."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from methods import METHODS
from methods.backbone.clip import Clip
from methods.backbone.load import TINY, load_backbone
from orchestrator.bench.cpu import (
    Comparison,
    bench_encoder,
    bench_features,
    bench_ranking,
    bench_step,
    bench_store,
    bench_trial,
)
from orchestrator.bench.memory import bench_memory
from orchestrator.bench.work import VIT
from orchestrator.config import suggest
from orchestrator.errors import ConfigError

LAST_BLOCKS = {"ffa_placement": "deepest", "ffa_layers": 6}


def _vit() -> Clip:
    return load_backbone(VIT, "random")


BENCHES: dict[str, Callable[[Path], list[Comparison]]] = {
    "step": lambda root: bench_step(load_backbone(TINY, "shipped"), "tiny CLIP", 8, 8),
    "step-vit": lambda root: bench_step(_vit(), "ViT-B/32", 2, 4, pairs=5),
    "encoder": lambda root: bench_encoder("tempme", _vit(), "ViT-B/32", 1, 12, pairs=11),
    "ranking": lambda root: bench_ranking(),
    "memory": lambda root: bench_memory(),
    "store": bench_store,
    "features": lambda root: [
        bench_features(root, load_backbone(TINY, "shipped"), "tiny CLIP, no FFA", {"use_ffa": False}, 12, 8),
        bench_features(root, _vit(), "ViT-B/32, FFA in the last 6 blocks", LAST_BLOCKS, 2, 12),
        bench_features(root, _vit(), "ViT-B/32, no FFA", {"use_ffa": False}, 2, 12),
    ],
    "trial": bench_trial,
}


def machine() -> str:
    """What the figures were made on."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{os.cpu_count()} CPUs{load}, torch {torch.__version__}, {torch.get_num_threads()} thread, "
        f"Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}"
    )


def to_markdown(rows: Sequence[Comparison]) -> str:
    """A table of rows; a ratio below 1 means that ours is quicker."""
    lines = ["| measured | seconds | against | seconds | ratio | pairs |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = f"{row.name}; {row.note}" if row.note else row.name
        lines.append(
            f"| {name} | {row.ours:.4f} | {row.other_name} | {row.other:.4f} "
            f"| {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) | {row.pairs} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the comparisons and print them as Markdown on stdout."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.bench", description="Ratios on this machine.")
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join(BENCHES)}")
    parser.add_argument("--ray", action=argparse.BooleanOptionalAction, default=True, help="measure a trial under Ray")
    parser.add_argument("--gpu", action="store_true", help="step time, memory and videos per second on a GPU instead")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        if arguments.gpu:
            from orchestrator.bench.gpu import gpu_table

            print(gpu_table())
            return 0
        print(f"{machine()}\n\n{to_markdown(run(arguments.only, arguments.ray))}")
    except ConfigError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2
    return 0


def run(only: str | None = None, ray: bool = True) -> list[Comparison]:
    """All comparisons, or one of them.

    Raises:
        ConfigError: for a name that is none.
    """
    if only is not None and only not in BENCHES:
        raise ConfigError(f"--only {only}: is no comparison.{suggest(only, BENCHES)} All: {', '.join(BENCHES)}.")
    names = [only] if only else [name for name in BENCHES if ray or name != "trial"]
    torch.set_num_threads(1)
    rows: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="ctvr-bench-") as folder:
        for name in names:
            if name == "encoder" and "tempme" not in METHODS:
                sys.stderr.write("bench: encoder left out: methods/__init__.py has no tempme\n")
                continue
            sys.stderr.write(f"bench: {name} ...\n")
            rows += BENCHES[name](Path(folder) / name)
    return rows


if __name__ == "__main__":
    sys.exit(main())
