"""`ctvr plot`: pictures whose bytes depend on the model alone, and one-line errors."""

import numpy as np
import pytest
from PIL import Image

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.pages.frames import GAP, SIDE, TOP, merged_patches
from tests.refusing import missing_from


def test_a_picture_has_a_row_for_each_thing_and_is_the_same_again(learned, tmp_path, capsys):
    files = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.pdf"]
    for file in files:
        assert main(["plot", "attention", "framefusion_moe", "--runs", str(learned), "--out", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(file) for file in files]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[2].read_bytes().startswith(b"%PDF")
    height = 2 * (TOP + 3 * (TOP + SIDE + GAP))  # two videos: frames, between frames, within frames
    picture = Image.open(files[0])
    assert picture.height == height
    video = next((learned / "small/videos").glob("*.mp4"))
    words = ["plot", "attention", "zero_shot", "--inputs", str(video), "--runs", str(learned), "--out", str(files[0])]
    assert main(words) == 0
    assert Image.open(files[0]).height == TOP + 2 * (TOP + SIDE + GAP)


def test_expert_weights_stand_over_the_frames_of_each_video(learned, tmp_path, capsys):
    file = tmp_path / "gates.png"
    assert main(["plot", "gates", "framefusion_moe", "--runs", str(learned), "--out", str(file)]) == 2
    assert not missing_from(capsys.readouterr().err, "framefusion_moe", "gates", "camoe")


def test_queries_that_moved_are_drawn_the_same_again(learned, tmp_path):
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for file in files:
        assert main(["plot", "drift", "framefusion_moe", "--runs", str(learned), "--out", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert Image.open(files[0]).width > 800


def test_patches_of_one_token_have_one_colour_and_others_stay():
    frames = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    tokens = np.arange(8).reshape(2, 4)
    tokens[1, 3] = tokens[0, 0]
    before = frames.copy()
    drawn = merged_patches(frames, tokens, 2)
    assert np.array_equal(frames, before)
    assert np.array_equal(drawn[0, :20, :20], drawn[1, 20:, 20:])
    mean = np.stack([frames[0, :20, :20], frames[1, 20:, 20:]]).reshape(-1, 3).mean(axis=0).round()
    assert np.array_equal(drawn[0, 10, 10], mean)
    assert len(np.unique(drawn[0, :2, :20].reshape(-1, 3), axis=0)) == 1  # the border
    assert np.array_equal(drawn[0, 20:], frames[0, 20:])
    assert np.array_equal(drawn[1, :20], frames[1, :20])


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["attention", "zero_shot", "--out", "a.jpg"], "--out a.jpg"),
        (["attention", "zero_shot", "--count", "0"], "--count 1 0"),
        (["merges", "zero_shot", "--block", "2"], "--block"),
        (["scores", "zero_shot", "--inputs", "x.mp4"], ""),
        (["drift", "zero_shot", "--inputs", "x.mp4"], ""),
        (["drift", "zero_shot", "--count", "0"], "--count 1 0"),
        (["merges", "zero_shot", "--out", "nowhere/a.png"], "nowhere"),
        (["merges", "zero_sho"], "model.json"),
        (["attention", "zero_shot", "--inputs", "none.mp4"], "none.mp4"),
    ],
)
def test_a_mistake_is_one_line(learned, words, values, capsys):
    assert main(["plot", *words, "--runs", str(learned)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert not missing_from(said[0], *values.split())
