"""Features of the script for CLIP and SigLIP of transformers equal direct calls of the model."""

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests.orchestrator.exporters import tiny_models
from tests.orchestrator.exporters.running import FRAMES, assert_equal, captions_of, frames_of, run_script

transformers = pytest.importorskip("transformers", minversion="5")
pytestmark = pytest.mark.slow
KINDS = {
    "CLIPModel": (tiny_models.clip_folder, {"padding": True}),
    "SiglipModel": (tiny_models.siglip_folder, {"padding": "max_length"}),
    "Siglip2Model": (tiny_models.siglip2_folder, {"padding": "max_length"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_a_direct_call(kind, table, tmp_path):
    file, videos = table
    write, padding = KINDS[kind]
    model, out = write(tmp_path / "model"), tmp_path / "features"
    words = ("--model", model, "--table", file, "--videos", videos, "--out", out, "--num-frames", FRAMES)
    done = run_script("transformers-clip", tmp_path, *words)
    assert done.returncode == 0, done.stderr
    towers = getattr(transformers, kind).from_pretrained(model).eval()
    processor = transformers.AutoProcessor.from_pretrained(model)
    video = min(videos.glob("*.mp4"))
    frames, _ = frames_of(video)
    captions = captions_of(file)
    with torch.no_grad():
        images = processor.image_processor(images=[Image.fromarray(each) for each in frames], return_tensors="pt")
        texts = processor(text=captions, truncation=True, max_length=16, return_tensors="pt", **padding)
        assert_equal(np.load(out / f"{video.stem}.npy"), towers.get_image_features(**images).pooler_output)
        assert_equal(np.load(out / "texts.npy"), towers.get_text_features(**texts).pooler_output)
    card = yaml.safe_load((out / "features.yaml").read_text())
    assert (card["embedder"], card["normalisation"], card["dtype"]) == ("model", "none", "float32")
    assert card["libraries"]["transformers"] == transformers.__version__


def test_files_that_lack_a_weight_are_refused_by_its_name(table, tmp_path):
    from safetensors.torch import load_file, save_file

    file, videos = table
    model, weights = tiny_models.clip_folder(tmp_path / "model"), tmp_path / "model" / "model.safetensors"
    state = load_file(weights)
    del state["visual_projection.weight"]
    save_file(state, weights, {"format": "pt"})
    words = ("--model", model, "--table", file, "--videos", videos, "--out", tmp_path / "features")
    done = run_script("transformers-clip", tmp_path, *words)
    assert done.returncode == 2
    assert "visual_projection.weight" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "features").exists()
