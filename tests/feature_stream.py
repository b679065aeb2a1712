"""A small stream of features of videos and captions, on which an untrained method finds some videos only."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from ctvr.orchestrator.importers.features import import_features

TASKS, TRAIN, TEST, TOPICS, OWN = 3, 80, 40, 24, 10
WIDTH, NOISE, TURN = 48, 0.95, 2.5


def write_features(home: Path, text: int = WIDTH) -> None:
    """Import the stream `mine` into `home/runs`: pairs of linear images of topics, of which each task has other ones.

    Captions have width `text`, and lie far from their videos.
    """
    random = np.random.default_rng(0)
    count = TASKS * (TRAIN + TEST)
    spaces = [np.linalg.qr(random.standard_normal((TOPICS, OWN)))[0].T for _ in range(TASKS)]
    topics = np.concatenate([random.standard_normal((TRAIN + TEST, OWN)) @ each for each in spaces])
    of_videos, other = random.standard_normal((TOPICS, WIDTH)), random.standard_normal((TOPICS, text))
    of_texts = of_videos + TURN * other if text == WIDTH else other
    videos = (topics @ of_videos)[:, None] + NOISE * random.standard_normal((count, 3, WIDTH))
    texts = topics @ of_texts + NOISE * random.standard_normal((count, text))
    with (home / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["video", "caption", "split", "task"])
        for row in range(count):
            task, place = divmod(row, TRAIN + TEST)
            writer.writerow([f"v{row}", f"caption {row}", "train" if place < TRAIN else "test", task + 1])
    np.savez(home / "videos.npz", **{f"v{row}": each.astype(np.float32) for row, each in enumerate(videos)})
    np.save(home / "texts.npy", texts.astype(np.float32))
    (home / "runs/streams").mkdir(parents=True)
    parts = (home / "table.csv", home / "videos.npz", home / "texts.npy", home / "runs/streams/mine.json")
    import_features(*parts, "mine")
