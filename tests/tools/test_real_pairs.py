"""Sets of two embedders and the count of intervals that hold, on drawn vectors in place of the real ones."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tools import real_pairs
from tools.real_pairs import main

pytestmark = pytest.mark.slow  # maps are fitted many times
ITEMS = 160


def drawn(name, keys, width):
    """Draw unit vectors that follow the last word of a caption or the name of a film, in a space of each embedder."""
    turn = np.random.default_rng(sum(map(ord, name))).standard_normal((32, width))
    made = []
    for key in keys:
        item = np.random.default_rng(int("".join(filter(str.isdigit, key.split()[-1])))).standard_normal(32)
        made.append((item + 0.4 * np.random.default_rng(len(key)).standard_normal(32)) @ turn)
    return np.array(made, np.float32)


@pytest.fixture(autouse=True)
def _encoders(monkeypatch):
    widths = {"minilm": 24, "mpnet": 40, "lite0": 24, "lite2": 24}

    def encoder(name):
        return lambda given: drawn(name, [getattr(each, "stem", each) for each in given], widths[name])

    monkeypatch.setattr(real_pairs, "encoder", encoder)
    monkeypatch.setattr(real_pairs, "MEASURED", {"captions": 60, "animations": 40})
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_captions_of_two_videos_are_left_out_and_others_search_the_first(tmp_path, capsys):
    file = tmp_path / "xpool/data/MSVD/captions_msvd.json"
    file.parent.mkdir(parents=True)
    said = {f"video{i}": ["the same", f"first {i}", f"a second {i}", f"one more {i}"] for i in range(ITEMS)}
    file.write_text(json.dumps(said))
    main([str(tmp_path), "--set", "captions", "--runs", str(tmp_path / "runs"), "--draws", "2"])
    printed = capsys.readouterr().out
    assert "R@10" in printed
    assert len((tmp_path / "runs/captions.csv").read_text().splitlines()) == 1 + 2 * ITEMS
    counts = [
        int(line.split("|")[2]) for line in printed.splitlines() if line.startswith("| map") and line.count("|") == 3
    ]
    assert counts
    assert all(0 <= count <= 2 for count in counts)
    assert "| verdict |" in printed


def test_films_are_searched_without_captions(tmp_path, capsys):
    folder = tmp_path / "exercises-dataset/videos"
    folder.mkdir(parents=True)
    for number in range(ITEMS):
        (folder / f"{number:04}.gif").write_bytes(b"")
    main([str(tmp_path), "--set", "animations", "--runs", str(tmp_path / "runs")])
    assert "overlap@10" in capsys.readouterr().out
    with np.load(tmp_path / "runs/animations-lite2.npz") as made:
        assert made["features"].shape == (ITEMS, 24)


def test_frames_of_a_film_are_spaced_and_scaled(tmp_path):
    shades = [Image.new("RGB", (6, 4), (20 * number,) * 3) for number in range(8)]
    shades[0].save(tmp_path / "film.gif", save_all=True, append_images=shades[1:])
    lite = object.__new__(real_pairs.EfficientNetLite)
    lite.__dict__["side"] = 5
    found = lite.frames(tmp_path / "film.gif")
    assert found.shape == (4, 3, 5, 5)
    assert (128 * found[:, 0, 2, 2] + 127).tolist() == [20, 60, 100, 140]
