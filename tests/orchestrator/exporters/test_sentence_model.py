"""Features of the script for sentence-transformers equal `encode`."""

import numpy as np
import pytest
import yaml
from PIL import Image

from ctvr.orchestrator.cli.main import main
from tests.orchestrator.exporters.running import FRAMES, assert_equal, captions_of, frames_of, run_script
from tests.orchestrator.exporters.tiny_models import sentence_folder

pytest.importorskip("transformers", minversion="5")
pytestmark = pytest.mark.slow


def encode(model, inputs):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model, device="cpu").encode(inputs, convert_to_tensor=True)


def test_captions_and_frames_of_a_model_with_images_equal_encode(table, tmp_path):
    pytest.importorskip("sentence_transformers", minversion="6")
    file, videos = table
    model, out = sentence_folder(tmp_path / "model", has_images=True), tmp_path / "features"
    words = ("--model", model, "--table", file, "--videos", videos, "--out", out, "--num-frames", FRAMES)
    done = run_script("sentence-transformers", tmp_path, *words)
    assert done.returncode == 0, done.stderr
    video = min(videos.glob("*.mp4"))
    frames, _ = frames_of(video)
    assert_equal(np.load(out / f"{video.stem}.npy"), encode(model, [Image.fromarray(each) for each in frames]))
    assert_equal(np.load(out / "texts.npy"), encode(model, captions_of(file)))


def test_a_model_of_text_embeds_captions_for_the_videos_of_another(table, tmp_path):
    pytest.importorskip("sentence_transformers", minversion="6")
    file, videos = table
    model, out = sentence_folder(tmp_path / "model", has_images=False), tmp_path / "features"
    words = ("--model", model, "--table", file, "--out", out)
    refused = run_script("sentence-transformers", tmp_path, *words, "--videos", videos)
    assert (refused.returncode, "--videos" in refused.stderr.splitlines()[-1]) == (2, True)
    done = run_script("sentence-transformers", tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert_equal(np.load(out / "texts.npy"), encode(model, captions_of(file)))
    card = yaml.safe_load((out / "features.yaml").read_text())
    assert (card["normalisation"], card["width"], "frames" in card) == ("unit", 32, False)
    other = tmp_path / "other"
    other.mkdir()
    for video in videos.glob("*.mp4"):
        np.save(other / f"{video.stem}.npy", np.ones((2, 8), np.float32))
    given = [f"table={file}", f"features={other}", f"text={out / 'texts.npy'}", "--name", "mine"]
    assert main(["streams", "import", "features", *given, "--runs", str(tmp_path / "runs")]) == 0
