import csv

import numpy as np
import pytest
import torch

from ctvr.orchestrator.streams.query_rank import Rank
from tools import real_vectors
from tools.real_vectors import FOLDS, ROWS, TASKS, hits, interval, main

VIDEOS = 150


@pytest.fixture
def repositories(tmp_path, monkeypatch):
    """A repository of 150 captioned videos whose captions begin with one of five words, and an encoder of the words."""
    source = tmp_path / "Dense-Captioning"
    (source / "featuresBig").mkdir(parents=True)
    random = np.random.default_rng(0)
    topics = random.standard_normal((TASKS, 6))
    for i in range(1000):
        array = topics[i % TASKS] + 0.5 * random.standard_normal((3, 6))
        np.save(source / "featuresBig" / f"video{i}.npy", array.astype(np.float32))
    (source / "caption.txt").write_text("".join(f"video{i}|{'abcde'[i % TASKS]} clip {i}\n" for i in range(VIDEOS)))
    (source / "captiont.txt").write_text("no video here\n")

    def encode(texts):
        one = np.eye(TASKS, dtype=np.float32)[["abcde".index(text[0]) for text in texts]]
        found = one + 0.1 * np.random.default_rng(1).standard_normal(one.shape).astype(np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    monkeypatch.setattr(real_vectors, "MiniLM", lambda: encode)
    monkeypatch.setattr(real_vectors, "EXPECTED", {"msrvtt": (VIDEOS, VIDEOS, (3, 6))})
    monkeypatch.setitem(real_vectors.SETTINGS, "msrvtt", {"optim.epochs": 1, "data.num_frames": 3})
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def test_every_video_is_searched_in_one_fold_and_has_one_task(repositories):
    main([str(repositories), "--make"])
    made = repositories / "ctvr-sets" / "msrvtt"
    searched, tasks = [], set()
    for fold in range(FOLDS):
        with (made / f"fold{fold}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        searched += [row["video"] for row in rows if row["split"] == "test"]
        tasks |= {(row["video"], row["task"]) for row in rows}
        assert {row["task"] for row in rows} == set("12345")
    assert sorted(searched) == sorted(f"video{i}" for i in range(VIDEOS))
    assert len(tasks) == VIDEOS
    by_topic = {}
    for video, task in tasks:
        by_topic.setdefault(int(video[5:]) % TASKS, set()).add(task)
    assert all(len(found) == 1 for found in by_topic.values())


def test_a_set_of_another_size_is_refused(repositories, monkeypatch):
    monkeypatch.setattr(real_vectors, "EXPECTED", {"msrvtt": (VIDEOS + 1, VIDEOS, (3, 6))})
    with pytest.raises(SystemExit, match="151"):
        main([str(repositories), "--make"])
    assert not (repositories / "ctvr-sets").exists()


@pytest.mark.slow
def test_one_command_prints_the_table(repositories, monkeypatch, capsys):
    monkeypatch.setattr(real_vectors, "SEEDS", 1)
    main([str(repositories), "--rows", "^sequential|^joint", "--runs", str(repositories / "runs")])
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("| row | R@1 | R@10 |")
    assert [line.split(" | ")[0] for line in lines] == [
        f"| {title}" for title in ROWS if title.startswith(("sequential", "joint"))
    ]
    assert "[" in next(line for line in lines if "sequential" in line)


def test_a_tie_counts_its_chance():
    assert hits(Rank(0, 0), 1) == 1
    assert hits(Rank(0, 1), 1) == 0.5
    assert hits(Rank(9, 1), 10) == 0.5
    assert hits(Rank(10, 5), 10) == 0


def test_an_interval_covers_the_mean_of_drawn_gaps():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        found = interval(1 + random.standard_normal((6, 1)) * 0.1 + random.standard_normal((6, 100)), draws=200)
        low, high = map(float, found.partition("[")[2].rstrip("]").split(", "))
        covered += low <= 1 <= high
    assert covered >= 80
