"""Effect of the dials of `worlds-5`: `python docs/dials.py DIAL ...` trains, prints a table and writes a figure.

Three methods and the untrained backbone run on each stream, with the settings of `worlds-quick` and three seeds.
Finished runs are read instead of trained again. All dials take 200 runs; conflict and motion 90.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt

import ctvr
from ctvr.orchestrator.synthetic.worlds_stream import DEFAULT, QUICK_PAIRS, QUICK_SETTINGS, SETTINGS, name_stream

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
VALUES = {
    "conflict": SHARES,
    "shift": SHARES,
    "motion": SHARES,
    "pairs": (40, 80, 160, 320, 640),
    "distractors": (0, 1, 2, 3),
}
STYLES = {"clip4clip": "o-", "er_ring": "s-", "framefusion_moe": "^-", "zero_shot": "x--"}
COLUMNS = ("R@1, task just learned", "R@1, all worlds", "BWF", "twins (%)")
CHANGED = {name: value for name, value in QUICK_SETTINGS.items() if SETTINGS.get(name) != value}
Job = tuple[str, str, int]  # method, stream, seed


def stream_of(dial: str, value: float) -> str:
    """Return the name of `worlds-5` with the pairs of `worlds-quick` and one dial at a value."""
    changed: dict[str, Any] = {"pairs": QUICK_PAIRS, dial: value}
    return name_stream("worlds-5", replace(DEFAULT, **changed))


def measure(job: Job) -> list[float]:
    """Return the value of each column after a training; NaN for twins on a stream without twins."""
    method, stream, seed = job
    done = ctvr.run(method, stream, settings={**CHANGED, "seed": seed})
    just_learned = mean(row[-1] for row in done.own)
    return [just_learned, *(done.metrics.get(f"stream/t2v/{name}", float("nan")) for name in ("r1", "bwf", "twin"))]


def measure_all(dials: list[str]) -> dict[Job, list[float]]:
    """Train in two processes. The untrained runs come first: they render and decode the videos of their streams."""
    streams = list(dict.fromkeys(stream_of(dial, value) for dial in dials for value in VALUES[dial]))
    untrained = [("zero_shot", stream, 1) for stream in streams]
    others = [(name, stream, seed) for stream in streams for name in list(STYLES)[:3] for seed in (1, 2, 3)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        made = dict(zip(untrained, pool.map(measure, untrained)))
        return made | dict(zip(others, pool.map(measure, others)))


def main(dials: list[str]) -> None:
    made = measure_all(dials)
    size = (3 * len(dials), 2.3 * len(COLUMNS))
    shared: dict[str, Any] = {"sharex": "col", "sharey": "row", "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(len(COLUMNS), len(dials), figsize=size, **shared)
    for dial, column_of_axes in zip(dials, axes.T):
        points = [stream_of(dial, value) for value in VALUES[dial]]
        for method, style in STYLES.items():
            runs = [[values for job, values in made.items() if job[:2] == (method, point)] for point in points]
            for row, (column, axis) in enumerate(zip(COLUMNS, column_of_axes)):
                seeds = [[run[row] for run in of_value] for of_value in runs]
                middle = [np.mean(values) for values in seeds]
                spread = [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in seeds]
                axis.errorbar(VALUES[dial], middle, spread, fmt=style, capsize=2, label=method)
                cells = " | ".join(f"{value:.1f}±{width:.1f}" for value, width in zip(middle, spread))
                sys.stdout.write(f"| {dial} | {method} | {column} | {cells} |\n")
        column_of_axes[-1].set_xlabel(dial)
    for column, axis in zip(COLUMNS, axes[:, 0]):
        axis.set_ylabel(column)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    figure.savefig(Path(__file__).with_name(f"dials-{'-'.join(dials)}.png"), dpi=90)


if __name__ == "__main__":
    main(sys.argv[1:] or list(VALUES))
