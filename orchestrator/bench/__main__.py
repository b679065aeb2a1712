"""`make bench` and `make bench-gpu`: the command, what can be asked for by name, the tables."""

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

from methods.backbone.load import TINY, load_backbone
from orchestrator.bench.cpu import Comparison, bench_features, bench_trial
from orchestrator.bench.hot import Measured, measure
from orchestrator.bench.memory import bench_memory
from orchestrator.bench.paths import ONE_SIZE, PATHS, SHOWN
from orchestrator.bench.verdict import failures, read_shares, to_markdown, write_shares
from orchestrator.bench.work import VIT
from orchestrator.config import suggest
from orchestrator.errors import ConfigError

LAST_BLOCKS = {"ffa_placement": "deepest", "ffa_layers": 6}
OTHERS: dict[str, Callable[[Path], list[Comparison]]] = {
    "memory": lambda root: bench_memory(),
    "features": lambda root: [
        bench_features(root, load_backbone(TINY, "shipped"), "tiny CLIP, no FFA", {"use_ffa": False}, 12, 8),
        bench_features(root, load_backbone(VIT, "random"), "ViT-B/32, FFA in the last 6 blocks", LAST_BLOCKS, 2, 12),
        bench_features(root, load_backbone(VIT, "random"), "ViT-B/32, no FFA", {"use_ffa": False}, 2, 12),
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


def comparisons(rows: Sequence[Comparison]) -> str:
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
    """Measure, print Markdown on stdout; 1 if a path is below its recorded share."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.bench",
        description="Hot paths beside a plain way and the machine's own rate. Ends with 1 where one is below its "
        "recorded share by more than the noise.",
    )
    parser.add_argument("--only", metavar="NAME", help=f"one of {', '.join([*PATHS, *SHOWN, *OTHERS])}")
    parser.add_argument("--quick", action="store_true", help="toy sizes alone (under a minute)")
    parser.add_argument(
        "--shows",
        action="store_true",
        help="the papers' sizes, and beside them larger rankings, "
        "a ViT-B/16, checkpointed activations, a cold decoder and a start on 100,000 videos (quarter of an hour)",
    )
    parser.add_argument(
        "--record", action="store_true", help="compare with what was recorded, then write into shares.json"
    )
    parser.add_argument("--gpu", action="store_true", help="step time, memory and videos per second on a GPU instead")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        if arguments.gpu:
            from orchestrator.bench.gpu import gpu_table

            print(gpu_table())
            return 0
        return run(arguments.only, arguments.quick, arguments.record, arguments.shows)
    except ConfigError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2


def run(only: str | None = None, is_quick: bool = False, is_record: bool = False, is_all: bool = False) -> int:
    """Measure one path or comparison, or all paths.

    Raises:
        ConfigError: for a name that is none.
    """
    known = [*PATHS, *SHOWN, *OTHERS]
    if only is not None and only not in known:
        raise ConfigError(f"--only {only}: is no comparison.{suggest(only, known)} All: {', '.join(known)}.")
    torch.set_num_threads(1)
    began = machine()
    with tempfile.TemporaryDirectory(prefix="ctvr-bench-") as folder:
        if only in OTHERS:
            print(f"{began}\n\n{comparisons(OTHERS[only](Path(folder)))}")
            return 0
        names = [only] if only else [*PATHS, *(SHOWN if is_all else ())]
        rows = measured(names, is_quick, Path(folder), has_toys=not is_all and only not in SHOWN)
    recorded = read_shares()  # before it is written, or a record would be compared with itself
    if is_record:
        write_shares(rows, f"{began}; load at the end {os.getloadavg()[0]:.1f}")
    notes = "In brackets: the recorded share. ±: half the range over pairs. Ours keep freed memory, as a run does."
    print(f"{began}\n\n{to_markdown(rows, recorded)}\n\n{notes}")
    short = failures(rows, recorded)
    sys.stdout.flush()
    sys.stderr.writelines(f"bench: below its share: {line}\n" for line in short)
    return 1 if short and not is_record else 0


def measured(names: Sequence[str], is_quick: bool, root: Path, has_toys: bool = True) -> list[Measured]:
    """Toys, and the papers' sizes behind them."""
    rows = []
    for is_toy in (True,) if is_quick else (True, False) if has_toys else (False,):
        for name in names:
            if name in ONE_SIZE and has_toys and not is_toy:
                continue
            label = f"{name}-toy" if is_toy and name not in ONE_SIZE else name
            sys.stderr.write(f"bench: {label} ...\n")
            torch.manual_seed(0)
            try:
                rows.append(measure(label, {**PATHS, **SHOWN}[name](root / label, is_toy)))
            except MemoryError as error:  # one path is left out, and what the others measured stands
                sys.stderr.write(f"bench: {label} is left out: {error}\n")
    return rows


if __name__ == "__main__":
    sys.exit(main())
