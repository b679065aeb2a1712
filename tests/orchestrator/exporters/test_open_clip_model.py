"""Features of the script for open_clip rank as ctvr's zero_shot on the videos, and are imported as they are."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.exporters.running import FRAMES, captions_of, run_script
from tests.orchestrator.exporters.tiny_models import open_clip_folder


def ranks(stream, runs):
    found = load_stream(stream, runs)
    given = {"method": "zero_shot", "stream": str(stream), "data.num_frames": FRAMES}
    return execute(resolve(given, found.settings), RunPaths(runs), stream=found).record.ranks


@pytest.mark.slow
def test_imported_features_of_a_script_give_the_ranks_of_the_videos(few, table, tmp_path, capsys):
    file, videos = table
    out, runs = tmp_path / "features", tmp_path / "runs"
    words = ("--model", open_clip_folder(tmp_path / "tiny"), "--table", file, "--videos", videos, "--out", out)
    done = run_script("open-clip", tmp_path, *words, "--num-frames", FRAMES)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    printed = done.stdout.split("ctvr ")[1].replace("NAME", "mine").split()
    assert main([*printed, "--runs", str(runs)]) == 0
    assert main(["streams", "check", "mine", "--features", str(out), "--runs", str(runs)]) == 0
    assert "equal" in capsys.readouterr().out
    assert ranks("mine", runs) == ranks(few, runs)


@pytest.mark.slow
def test_the_card_states_what_was_used_and_files_have_their_forms(table, tmp_path):
    file, videos = table
    out, model = tmp_path / "features", open_clip_folder(tmp_path / "tiny")
    words = ("--model", model, "--table", file, "--videos", videos, "--out", out, "--num-frames", 2)
    mixed = ("--precision", "bfloat16", "--normalize", "unit", "--prompt", "a video of {}", "--sampling", "linspace")
    done = run_script("open-clip", tmp_path, *words, *mixed)
    assert done.returncode == 0, done.stderr
    card = yaml.safe_load((out / "features.yaml").read_text())
    assert (card["embedder"], card["width"], card["normalisation"]) == ("tiny", 96, "unit")
    assert (card["prompt"], card["dtype"]) == ("a video of {}", "bfloat16 (autocast)")
    assert card["frames"].startswith("2, linspace")
    assert card["weights"].startswith("sha256:")
    assert {"torch", "open_clip_torch", "av"} <= set(card["libraries"])
    clips = [np.load(each) for each in out.glob("*.npy") if each.name != "texts.npy"]
    assert {(each.shape, str(each.dtype)) for each in clips} == {((2, 96), "float32")}
    texts = np.load(out / "texts.npy")
    assert texts.shape == (len(captions_of(file)), 96)
    for vectors in (*clips, texts):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert sorted(each.name for each in Path(out).iterdir() if each.name.startswith(".")) == []
