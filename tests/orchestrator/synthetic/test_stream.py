"""The embedded stream: its manifest, and the probe of temporal order."""

import hashlib
import json
import re

import numpy as np
import pytest

from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.synthetic import stream as shapes
from ctvr.orchestrator.synthetic import video_files
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, draw_scene, with_articles
from tests.refusing import refuses

SPLITS = ("train", "val", "test")


@pytest.fixture
def manifest(monkeypatch, tmp_path):
    """Return the manifest of a number of tasks, without rendering."""
    monkeypatch.setattr(shapes, "render_files", lambda *_: "")
    return lambda num_tasks=10, seed=0: shapes.render_stream(tmp_path, num_tasks, seed)


def items(manifest, split):
    return [item for task in manifest["tasks"] for item in task[split]]


@pytest.mark.parametrize("num_tasks", [5, 10, 20])
def test_twenty_categories_are_spread_evenly_over_the_tasks(manifest, num_tasks):
    tasks = manifest(num_tasks)["tasks"]
    assert [task["name"] for task in tasks] == [f"task_{n:02d}" for n in range(1, num_tasks + 1)]
    per_task = 20 // num_tasks
    for task in tasks:
        assert len(task["categories"]) == per_task
        assert [len(task[split]) for split in SPLITS] == [16 * per_task, 8 * per_task, 24 * per_task]
        assert {item["category"] for split in SPLITS for item in task[split]} == set(task["categories"])
    order = [c for task in tasks for c in task["categories"]]
    assert order == [CATEGORIES[i].name for i in np.random.default_rng(0).permutation(20)]


def test_every_number_of_tasks_shares_the_same_videos(manifest):
    per_count = [[item["path"] for split in SPLITS for item in items(manifest(n), split)] for n in (5, 10, 20)]
    assert sorted(per_count[0]) == sorted(per_count[1]) == sorted(per_count[2])
    assert all(path.startswith("shapes-v1-seed0/") for path in per_count[0])


def test_the_manifest_is_accepted_as_a_stream_with_a_validation_split(manifest, tmp_path):
    stream = parse_manifest(json.loads(json.dumps(manifest())), "shapes-10", tmp_path)
    assert stream.has_val
    assert stream.protocol == "ctvr"
    assert stream.settings["backbone.name"] == "tiny-clip"


def test_no_caption_occurs_twice_in_any_split(manifest):
    for seed in (0, 1):
        captions = [c for split in SPLITS for item in items(manifest(seed=seed), split) for c in item["captions"]]
        assert len(captions) == 960
        assert len(set(captions)) == len(captions)


def test_captions_use_the_right_article(manifest):
    captions = [c for split in SPLITS for item in items(manifest(), split) for c in item["captions"]]
    assert not [c for c in captions if re.search(r"\ba [aeiou]|\ban [^aeiou]|\ba a\b", c)]
    assert with_articles("a orange ring near a red star") == "an orange ring near a red star"


def test_another_seed_makes_other_scenes_of_the_same_categories(manifest):
    first, second = manifest(seed=0), manifest(seed=1)
    assert [t["categories"] for t in first["tasks"]] == [t["categories"] for t in second["tasks"]]
    assert first["tasks"][0]["test"][0]["captions"] != second["tasks"][0]["test"][0]["captions"]


@pytest.mark.parametrize("num_tasks", [0, 3, 40])
def test_an_unknown_number_of_tasks_names_the_known_ones(tmp_path, num_tasks):
    with refuses("shapes-5", "shapes-10", "shapes-20", where="stream"):
        shapes.render_stream(tmp_path, num_tasks)


def test_pixels_and_captions_are_those_of_version_1():
    """If this fails on purpose, raise shapes.VERSION; if not, this machine renders another stream."""
    assert shapes.VERSION == 1
    told = hashlib.sha256(repr([item for _, item in shapes.plan(0)]).encode()).hexdigest()
    scenes = [draw_scene(index, np.random.default_rng([0, index])) for index in range(len(CATEGORIES))]
    painted = hashlib.sha256(b"".join(s.render(False, 6, 48).tobytes() for s in scenes)).hexdigest()
    assert (told[:16], painted[:16]) == ("b008b36dd5ba16ea", "bd14fc2e1725c69e")


@pytest.mark.slow
def test_rendered_clip_has_the_same_bytes_every_time():
    """Dark, smooth clips have many ties that an encoder must break."""
    chosen = ("test/daylight_00f.mp4", "test/daylight_02f.mp4", "train/daylight_02f.mp4", "train/daylight_04f.mp4")
    scenes = {clip.path: clip.scene for clip, _ in shapes.plan(0)}
    rng = np.random.default_rng(0)
    held: list[np.ndarray] = []
    for path in chosen:
        frames = scenes[path].render(False, video_files.FRAMES, video_files.SIZE)
        found = set()
        for _ in range(25):
            held = [*held[-12:], rng.integers(0, 255, rng.integers(1_000, 400_000), dtype=np.uint8)]
            found.add(video_files.encode(frames))
        assert len(found) == 1, path
