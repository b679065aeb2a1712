"""Picture of a forgotten query: `python docs/forgotten.py RUNS` writes docs/forgotten.png.

RUNS is a runs folder with a run of `ctvr run clip4clip worlds-quick`. Among the queries that found their video first
after their own task, and now find another video of that task or an earlier one, it shows the one that fell furthest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt
from PIL import Image

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.find_model import find_run
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.pages.forgetting import lost_names
from ctvr.orchestrator.video.pool import Decoder
from ctvr.orchestrator.video.sampling import Sampling

METHOD, FRAMES, SIZE = "clip4clip", 6, 96


def main(runs: Path) -> None:
    execution = ExecutionConfig(runs=runs)
    run, model = find_run(METHOD, execution), load(METHOD, execution)
    stream, split = model.stream, model.trained.experiment.evaluation.split
    assert stream is not None
    count = len(stream.tasks)
    commits = Commits(execution.places().open_store(), run.tags["ctvr.commits"])
    history = [commits.record(done).ranks for done in range(1, count + 1)]
    items = {item.video: (task, item) for task in range(count) for item in stream.items(task, split)}
    owners = {name: items[name.rpartition("#")[0]] for name in history[-1]}
    for name in lost_names(history, {name: task for name, (task, _) in owners.items()})[1]:
        task, item = owners[name]
        text = item.captions[int(name.rpartition("#")[2])]
        now = model.search(text, 1)[0]
        if items[now.video][0] <= task:
            break
    else:
        sys.exit("forgotten: no query of this run was forgotten")
    _draw(
        f"“{text}”",
        {
            f"after learning its task ({task + 1}): rank 1": item.path,
            f"after task {count}: rank {history[-1][name].mean:g}, and this video is first": now.path,
        },
    )


def _draw(query: str, rows: dict[str, str]) -> None:
    figure, axes = plt.subplots(len(rows), 1, figsize=(8, 3.6), layout="constrained", facecolor="white")
    figure.suptitle(query, fontsize=14, fontweight="bold")
    with Decoder(workers=1) as pool:
        for axis, (title, path), colour in zip(axes, rows.items(), ("#009e73", "#d55e00")):
            frames = pool.decode(path, Sampling(FRAMES, SIZE), None).frames
            strip = np.pad(frames, ((0, 0), (3, 3), (3, 3), (0, 0)), constant_values=255)
            axis.imshow(np.concatenate(list(strip), axis=1), interpolation="nearest")
            axis.set_title(title, fontsize=11, loc="left", color=colour, fontweight="bold")
            axis.axis("off")
    picture = Path(__file__).with_suffix(".png")
    figure.savefig(picture, dpi=110)
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
