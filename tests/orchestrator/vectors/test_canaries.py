"""The canary inputs: the same on every machine, and each with the partner by which a cause is recognized."""

import hashlib
import json

import numpy as np
import pytest

from ctvr.orchestrator.vectors.canaries import (
    CLIPS,
    PROMPTED,
    RIM,
    SIZE,
    STATIC,
    TEXTS,
    TWINS,
    VERSION,
    WIDE,
    clips,
    write_canaries,
)
from tests.refusing import refuses

PIXELS = {
    1: "a3ca64f2f0d2552811948bede330dcea158f1555ef77d000ed8daacd9fc4971a"
}  # digest by version: stored vectors are of these pixels


def test_inputs_of_a_version_never_change():
    digest = hashlib.sha256(b"".join(each.tobytes() for each in clips().values()))
    digest.update(json.dumps(TEXTS).encode())
    assert digest.hexdigest() == PIXELS[VERSION]


def test_there_are_32_distinct_inputs():
    made = clips()
    assert tuple(made) == CLIPS
    assert len(CLIPS) == len(TEXTS) == 16
    assert len({each.tobytes() for each in made.values()}) == len(set(TEXTS.values())) == 16
    assert all(each.dtype == np.uint8 and each.shape[::3] == (24, 3) for each in made.values())


def test_each_clip_has_the_property_by_which_a_cause_is_recognised():
    made = clips()
    for name, twin in TWINS.items():
        assert (made[name][..., ::-1] == made[twin]).all()
    assert np.ptp(made["grey"]) == 0
    assert {name for name in CLIPS if (made[name] == made[name][:1]).all()} == set(STATIC)
    assert (made["halves"][::-1] == made["halves_back"]).all()
    inner = slice(RIM, SIZE - RIM)
    assert (made["border"][:, inner, inner] == made["scene_a"][:, inner, inner]).all()
    left = (WIDE - SIZE) // 2
    assert (made["wide"][:, :, left : left + SIZE] == made["wide_border"][:, :, left : left + SIZE]).all()
    for prompted, (plain, prompt) in PROMPTED.items():
        assert TEXTS[prompted] == prompt.format(TEXTS[plain])


def test_written_inputs_are_those_that_are_compared(tmp_path):
    folder = tmp_path / "canaries"
    report = write_canaries(folder)
    assert "np.savez" in report
    assert json.loads((folder / "texts.json").read_text(encoding="utf-8")) == TEXTS
    for name, frames in clips().items():
        assert (np.load(folder / "videos" / f"{name}.npy") == frames).all()
        assert (folder / "videos" / f"{name}.mp4").stat().st_size > 0
    with refuses(where="canaries", remedy=True):
        write_canaries(folder)


def test_clips_cannot_be_changed_for_others():
    with pytest.raises(ValueError, match="read-only"):
        clips()["grey"][0, 0, 0] = 0
