"""The second embedded stream: five data sets."""

import hashlib
import json
import re

import numpy as np
import pytest

from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.synthetic import cvlm as shapes_cvlm
from ctvr.orchestrator.synthetic.cvlm import DATA_SETS, CameraStyle, draw_shot
from ctvr.orchestrator.synthetic.drawing import BACKGROUNDS
from ctvr.orchestrator.synthetic.motion import MOTIONS

SPLITS = ("train", "val", "test")


@pytest.fixture
def manifest(monkeypatch, tmp_path):
    monkeypatch.setattr(shapes_cvlm, "render_files", lambda *_: "")
    return shapes_cvlm.render_cvlm(tmp_path)


def test_each_task_is_a_whole_data_set_over_its_own_categories(manifest, tmp_path):
    stream = parse_manifest(json.loads(json.dumps(manifest)), "shapes-cvlm", tmp_path)
    assert stream.protocol == "cvlm"
    assert stream.has_val
    assert [task.name for task in stream.tasks] == [source.name for source in DATA_SETS]
    assert len(stream.categories) == 20
    for task in stream.tasks:
        assert [len(getattr(task, split)) for split in SPLITS] == [64, 32, 64]
        assert {item.category for item in task.train} == set(task.categories)


def test_paragraphs_have_one_caption_and_the_others_several(manifest):
    counts = {t["name"]: {len(i["captions"]) for split in SPLITS for i in t[split]} for t in manifest["tasks"]}
    assert counts == {
        "vatex-like": {3}, "activitynet-like": {1}, "msrvtt-like": {3}, "didemo-like": {1}, "msvd-like": {4},
    }  # fmt: skip


def test_no_caption_of_a_data_set_occurs_twice_and_articles_are_right(manifest):
    for task in manifest["tasks"]:
        captions = [c for split in SPLITS for item in task[split] for c in item["captions"]]
        assert len(set(captions)) == len(captions)
        assert not [c for c in captions if re.search(r"\ba [aeiou]|\ban [^aeiou]|\ba a\b|[A-Z]", c)]


def test_data_sets_share_no_place_and_every_motion_occurs_once():
    places = [place for source in DATA_SETS for place in source.places]
    assert sorted(places) == sorted(BACKGROUNDS)
    assert sorted(action.motion for source in DATA_SETS for action in source.actions) == sorted(MOTIONS)


def test_a_plain_look_changes_nothing():
    frames = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), np.uint8)
    assert np.array_equal(CameraStyle().develop(frames, np.random.default_rng(0)), frames)


def test_looks_do_what_they_say():
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 256, (3, 24, 24, 3), np.uint8)
    grey = CameraStyle(saturation=0.0).develop(frames, rng)
    assert np.array_equal(grey[..., 0], grey[..., 1])
    coarse = CameraStyle(pixel=3).develop(frames, rng)
    assert np.array_equal(coarse[:, 0::3], coarse[:, 2::3])
    boxed = CameraStyle(letterbox=0.25).develop(frames, rng)
    assert not boxed[:, :6].any()
    assert not boxed[:, 18:].any()
    assert np.array_equal(boxed[:, 6:18], frames[:, 6:18])
    still = np.repeat(frames[:1], 8, axis=0)
    assert len({f.tobytes() for f in CameraStyle(shake=0.1).develop(still, rng)}) > 1


def test_pixels_and_captions_are_those_of_version_1(manifest):
    """If this fails on purpose, raise shapes_cvlm.VERSION; if not, this machine renders another stream."""
    assert shapes_cvlm.VERSION == 1
    told = hashlib.sha256(json.dumps(manifest["tasks"]).encode()).hexdigest()
    takes = [draw_shot(d, a, np.random.default_rng([0, d, a])) for d in range(5) for a in range(4)]
    painted = hashlib.sha256(b"".join(t.render(False, 6, 48).tobytes() for t in takes)).hexdigest()
    assert (told[:16], painted[:16]) == ("54eda22801ce347e", "0867886079fb4e15")
