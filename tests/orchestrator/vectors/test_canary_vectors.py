"""The reader of canaries.npz: rows by id, and one line for everything that is not 32 finite vectors."""

import pickle

import numpy as np
import pytest

from ctvr.orchestrator.vectors.canaries import CLIPS, TEXTS
from ctvr.orchestrator.vectors.canary_vectors import read_canaries
from tests.refusing import refuses

VIDEOS = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


def given(**changes):
    whole = {"video_ids": np.array(CLIPS), "videos": VIDEOS, "text_ids": np.array([*TEXTS]), "texts": VIDEOS + 1}
    return {name: array for name, array in {**whole, **changes}.items() if array is not None}


def test_rows_are_found_by_their_ids(tmp_path):
    order = np.random.default_rng(1).permutation(16)
    np.savez(tmp_path / "canaries.npz", **given(video_ids=np.array(CLIPS)[order], videos=VIDEOS[order]))
    found = read_canaries(tmp_path / "canaries.npz")
    assert (found.sides["videos"] == VIDEOS).all()
    assert (found.sides["texts"] == VIDEOS + 1).all()


def test_a_set_without_captions_has_videos_only(tmp_path):
    np.savez(tmp_path / "canaries.npz", **given(text_ids=None, texts=None))
    assert set(read_canaries(tmp_path / "canaries.npz").sides) == {"videos"}


def replaced(row, value):
    made = VIDEOS.copy()
    made[row] = value
    return made


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"video_ids": None}, ["video_ids"]),
        ({"texts": None}, ["texts"]),
        ({"videos": None, "video_ids": None}, ["videos"]),
        ({"more": VIDEOS}, ["more"]),
        ({"video_ids": np.arange(16)}, ["video_ids"]),
        ({"video_ids": np.array(CLIPS[:15]), "videos": VIDEOS[:15]}, [CLIPS[15]]),
        ({"video_ids": np.array([*CLIPS[:15], CLIPS[0]])}, [CLIPS[0]]),
        ({"video_ids": np.array([*CLIPS[:15], "mine"])}, ["mine"]),
        ({"videos": VIDEOS[:15]}, ["16", "15"]),
        ({"videos": VIDEOS[:, None]}, ["videos"]),
        ({"videos": VIDEOS[:, :0]}, ["videos"]),
        ({"videos": VIDEOS.astype("U8")}, ["videos"]),
        ({"videos": replaced(2, np.nan)}, [CLIPS[2]]),
        ({"videos": replaced(2, np.inf)}, [CLIPS[2]]),
        ({"videos": replaced(3, 0)}, [CLIPS[3]]),
        ({"videos": VIDEOS.astype(np.float64) * 1e300}, [CLIPS[0]]),
    ],
)
def test_wrong_vectors_are_refused(tmp_path, changes, values):
    np.savez(tmp_path / "canaries.npz", **given(**changes))
    with refuses(*values, where="canaries.npz", remedy=True):
        read_canaries(tmp_path / "canaries.npz")


def test_mixed_widths_and_pickles_are_refused(tmp_path):
    file = tmp_path / "canaries.npz"
    mixed = np.empty(16, object)
    mixed[:] = [np.ones(3 + n % 2) for n in range(16)]
    np.savez(file, **given(videos=mixed))
    with refuses(where="canaries.npz", remedy=True):
        read_canaries(file)
    file.write_bytes(pickle.dumps(given()))
    with refuses(where="canaries.npz", remedy=True):
        read_canaries(file)
    (tmp_path / "canaries.pkl").write_bytes(b"\x80\x04c__builtin__\neval\n.")
    with refuses(where="canaries.pkl", remedy=True):
        read_canaries(tmp_path / "canaries.pkl")


def test_infinite_numbers_stay_where_a_diagnosis_explains_them(tmp_path):
    np.savez(tmp_path / "canaries.npz", **given(videos=replaced(2, np.inf)))
    assert np.isinf(read_canaries(tmp_path / "canaries.npz", permit_infinite=True).sides["videos"]).sum() == 4
