"""Picture of the worlds of `worlds-5`: `python docs/worlds.py` writes docs/worlds.png."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt
from PIL import Image

from ctvr.orchestrator.synthetic import worlds, worlds_stream

COLUMNS = (0, 16, 32)  # test clips; the second of a pair is its reversal


def main() -> None:
    figure, axes = plt.subplots(5, len(COLUMNS), figsize=(12, 6.2), layout="constrained")
    for index, row in enumerate(axes):
        made = worlds_stream.plan(index, worlds.Dials(), 0)
        for axis, number in zip(row, COLUMNS):
            _, clip, item = made[number]
            frames = clip.scene.render(clip.backward, 4, 64)
            axis.imshow(np.concatenate(frames, axis=1), interpolation="nearest")
            axis.set_title(item["captions"][0], fontsize=6, pad=2)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(worlds.NAMES[index], fontsize=8)
    picture = Path(__file__).with_suffix(".png")
    figure.savefig(picture, dpi=90)
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main()
