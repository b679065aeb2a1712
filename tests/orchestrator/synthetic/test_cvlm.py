"""The second embedded stream: five data sets."""

import hashlib
import json

import numpy as np
import pytest

from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.synthetic import cvlm as shapes_cvlm
from ctvr.orchestrator.synthetic.cvlm import DATA_SETS, draw_shot

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


def test_pixels_and_captions_are_those_of_version_1(manifest):
    """If this fails on purpose, raise shapes_cvlm.VERSION; if not, this machine renders another stream."""
    assert shapes_cvlm.VERSION == 1
    told = hashlib.sha256(json.dumps(manifest["tasks"]).encode()).hexdigest()
    takes = [draw_shot(d, a, np.random.default_rng([0, d, a])) for d in range(5) for a in range(4)]
    painted = hashlib.sha256(b"".join(t.render(False, 6, 48).tobytes() for t in takes)).hexdigest()
    assert (told[:16], painted[:16]) == ("54eda22801ce347e", "0867886079fb4e15")
