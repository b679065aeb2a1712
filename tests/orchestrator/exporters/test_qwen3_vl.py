"""Features of the script for Qwen3-VL-Embedding equal a direct call; frames are resized as by qwen-vl-utils."""

import numpy as np
import pytest
import torch
import yaml

from ctvr.orchestrator.exporters.qwen3_vl import INSTRUCTION, LEAST, MOST, SIDE, TOTAL, fitting_size
from tests.orchestrator.exporters.running import FRAMES, assert_equal, captions_of, frames_of, run_script
from tests.orchestrator.exporters.tiny_models import qwen_folder


@pytest.mark.parametrize("shape", [(64, 64), (240, 320), (360, 640), (1080, 1920), (2160, 3840), (33, 1000)])
@pytest.mark.parametrize("num_frames", [1, 4, 12, 64])
def test_sides_are_multiples_and_pixels_are_within_the_limits(num_frames, shape):
    high, wide = fitting_size(num_frames, *shape)
    most = max(min(MOST, TOTAL / max(num_frames, 2) * 2), LEAST * 1.05)
    assert high % SIDE == wide % SIDE == 0
    assert LEAST <= high * wide <= most
    assert abs(np.log(high / wide) - np.log(shape[0] / shape[1])) < 0.4


@pytest.mark.parametrize(("shape", "expected"), [((240, 320), (320, 448)), ((360, 640), (352, 640))])
def test_sizes_are_those_that_smart_resize_gives(shape, expected):
    """240 x 320 grows by sqrt(131072 / 76800), rounded up; 360 x 640 is within the limits, so it is rounded."""
    assert fitting_size(12, *shape) == expected


@pytest.mark.slow
def test_features_equal_the_last_hidden_state_of_a_conversation(table, tmp_path):
    transformers = pytest.importorskip("transformers", minversion="5")
    file, videos = table
    model, out = qwen_folder(tmp_path / "model"), tmp_path / "features"
    words = ("--model", model, "--table", file, "--videos", videos, "--out", out, "--num-frames", FRAMES)
    asked = ("--instruction", "the video of", "--precision", "float32")
    done = run_script("qwen3-vl", tmp_path, *words, *asked)
    assert done.returncode == 0, done.stderr
    network = transformers.Qwen3VLForConditionalGeneration.from_pretrained(model).eval()
    processor = transformers.AutoProcessor.from_pretrained(model)

    def last(instruction, content, **given):
        system = {"role": "system", "content": [{"type": "text", "text": instruction}]}
        messages = [system, {"role": "user", "content": [content]}]
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=[text], return_tensors="pt", **given)
        with torch.no_grad():
            states = network(**inputs, output_hidden_states=True).hidden_states[-1]
        return torch.nn.functional.normalize(states[:, -1], dim=-1)  # one conversation, so without padding

    captions = captions_of(file)
    expected = torch.cat([last("the video of", {"type": "text", "text": each}) for each in captions])
    assert_equal(np.load(out / "texts.npy"), expected)
    video = min(videos.glob("*.mp4"))
    frames, seconds = frames_of(video)
    high, wide = fitting_size(FRAMES, *frames.shape[1:3])
    clip = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    clip = torch.nn.functional.interpolate(clip, (high, wide), mode="bicubic", antialias=True)
    clip = clip.clamp(0, 255).round().to(torch.uint8)
    rate = 1 / float(seconds[1] - seconds[0])
    places = [round(float(each) * rate) for each in seconds]
    about = {"fps": rate, "frames_indices": places, "total_num_frames": places[-1] + 1}
    settings = {"do_resize": False, "do_sample_frames": False, "video_metadata": [about]}
    assert_equal(np.load(out / f"{video.stem}.npy"), last(INSTRUCTION, {"type": "video"}, videos=[clip], **settings))
    card = yaml.safe_load((out / "features.yaml").read_text())
    assert (card["normalisation"], card["dtype"], card["prompt"]) == (
        "unit",
        "float32",
        "system: the video of user: {}",
    )
