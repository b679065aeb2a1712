"""Command line of `make bench` and `make bench-gpu`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from tools.bench import floor, kernels, service
from tools.bench.paths import ONE_SIZE, PATHS
from tools.bench.timing import Measured, measure, to_markdown

SERVICE = "serve"  # latency of the service, which is not compared with a plain implementation
KERNELS = "kernels"  # number of kernels in a step, which is not compared either
FLOOR = "floor"  # times of steps and of the operators that they need


def machine() -> str:
    """Return a line that describes the machine and the libraries."""
    return (
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread, Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the measurements, print Markdown on stdout and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Time hot paths and their plain implementations."
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        help=f"name of the hot path: {', '.join([*PATHS, SERVICE, KERNELS, FLOOR])} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="toy sizes (under a minute)")
    parser.add_argument("--gpu", action="store_true", help="step time, memory and videos per second on a GPU instead")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if arguments.gpu:
        from tools.bench.gpu import gpu_table

        print(gpu_table())
        return 0
    try:
        return run(arguments.only, arguments.quick)
    except ConfigError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2


def run(only: str | None = None, is_quick: bool = False) -> int:
    """Run one benchmark (a hot path, the service, or the kernels of a step), or all of them, and print the tables.

    Raises:
        ConfigError: for an unknown name.
    """
    names = [*PATHS, SERVICE, KERNELS, FLOOR]
    if only is not None and only not in names:
        raise ConfigError(f"is not a hot path.{suggest(only, names)} All: {', '.join(names)}.", f"--only {only}")
    torch.set_num_threads(1)
    parts, chosen = [machine()], [only] if only else names
    with tempfile.TemporaryDirectory(prefix="ctvr-bench-") as folder:
        if rows := measured([name for name in chosen if name in PATHS], is_quick, Path(folder)):
            parts.append(to_markdown(rows))
        if SERVICE in chosen:
            sys.stderr.write(f"bench: {SERVICE} ...\n")
            parts.append(service.to_markdown(service.measure_service(Path(folder), is_quick)))
        if KERNELS in chosen:
            sys.stderr.write(f"bench: {KERNELS} ...\n")
            parts.append(kernels.kernel_table())
        if FLOOR in chosen:
            sys.stderr.write(f"bench: {FLOOR} ...\n")
            parts.append(floor.floor_table(is_quick))
    print("\n\n".join(parts))
    return 0


def measured(names: Sequence[str], is_toy: bool, root: Path) -> list[Measured]:
    """Time each named hot path, at toy size or at the size of the papers."""
    rows = []
    for name in names:
        label = f"{name}-toy" if is_toy and name not in ONE_SIZE else name
        sys.stderr.write(f"bench: {label} ...\n")
        torch.manual_seed(0)
        rows.append(measure(label, PATHS[name](root / label, is_toy)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
