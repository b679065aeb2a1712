"""The shipped tiny CLIP, and the command that trains it."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import load_file

from ctvr.orchestrator.synthetic import cvlm
from ctvr.orchestrator.synthetic import stream as shapes
from tools import train_stem_clip
from tools import train_tiny_clip as tiny_clip

BACKBONES = Path(__file__).parents[2] / "methods" / "backbone"
SHIPPED = BACKBONES / "tiny_clip"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def tokenizer_of(folder):
    return SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=tiny_clip.CONTEXT_LENGTH)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of(SHIPPED)


def check_command(tool, argv, folder):
    """Run a command twice, compare both outputs, and return their config."""
    for name in "ab":
        assert tool.main([*argv, str(folder / name)]) == 0
    assert sorted(p.name for p in (folder / "a").iterdir()) == ["bpe.txt.gz", "config.json", "weights.safetensors"]
    assert config_of(folder / "a") == config_of(folder / "b")
    return config_of(folder / "a")


def captions():
    first = [c for _, item in shapes.plan(0) for c in item["captions"]]
    return first + [c for *_, item in cvlm._plan(0) for c in item["captions"]]


@pytest.mark.parametrize(("name", "most"), [("tiny_clip", 2_100_000), ("tiny_clip_stem", 2_500_000)])
def test_the_shipped_weights_are_those_of_the_config(name, most):
    content = (BACKBONES / name / "weights.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == config_of(BACKBONES / name)["sha256"]
    assert len(content) < most


def test_the_shipped_weights_load_and_retrieve_unseen_pictures(tokenizer):
    model = tiny_clip.build(config_of(SHIPPED)["model"])
    state = load_file(SHIPPED / "weights.safetensors")
    assert {v.dtype for v in state.values()} == {torch.float16}
    assert "attn_mask" not in state
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    assert set(missing) <= {"attn_mask"}
    assert not unexpected
    images, tokens = tiny_clip.picture_pool(tokenizer, 200, seed=123, progress=False)
    r1, r5 = tiny_clip.recall(model, images, tokens)
    assert r1 > 60  # of 200; chance is 0.5
    assert r5 > 90


@pytest.mark.parametrize(("name", "tool"), [("tiny_clip", tiny_clip), ("tiny_clip_stem", train_stem_clip)])
def test_the_shipped_tokenizer_is_the_one_the_command_makes(name, tool, tmp_path):
    tiny_clip.write_bpe(tmp_path / "bpe.txt.gz", tool.lexicon())
    made, shipped = (gzip.decompress((f / "bpe.txt.gz").read_bytes()) for f in (tmp_path, BACKBONES / name))
    assert made == shipped
    assert tokenizer_of(BACKBONES / name).vocab_size == config_of(BACKBONES / name)["model"]["text_cfg"]["vocab_size"]


def test_embedded_captions_tokenize_as_with_the_clip_vocabulary(tokenizer):
    full = SimpleTokenizer()
    for caption in captions():
        pieces = tokenizer.encode(caption)
        assert len(pieces) + 2 <= tiny_clip.CONTEXT_LENGTH
        assert len(pieces) == len(full.encode(caption))


def test_any_text_encodes_and_decodes(tokenizer):
    text = "gorilla xylophone"
    assert tokenizer.decode(tokenizer.encode(text)).strip() == text


def test_stills_repeat_for_a_seed():
    (first, caption), (again, same) = (tiny_clip.still(np.random.default_rng(5), 32) for _ in range(2))
    assert np.array_equal(first, again)
    assert caption == same


def test_relations_and_positions_in_captions_are_true():
    def at(x, y):
        return tiny_clip.Sprite("circle", x, y, 0.1, np.zeros(3))

    assert tiny_clip._relation(at(0.2, 0.5), at(0.8, 0.6)) == "to the left of"
    assert tiny_clip._relation(at(0.5, 0.2), at(0.6, 0.8)) == "above"
    told = {tiny_clip._position(np.random.default_rng(s), at(0.1, 0.9)) for s in range(30)}
    assert told == {"on the left", "at the bottom", "at the bottom left"}


@pytest.mark.slow
def test_the_command_writes_a_folder_that_loads_and_repeats(tmp_path):
    argv = ["--steps", "3", "--pool", "256", "--out"]
    assert check_command(tiny_clip, argv, tmp_path)["seed"] == 0
