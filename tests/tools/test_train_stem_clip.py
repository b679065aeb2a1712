"""The tiny CLIP with a convolutional stem, and the command that trains it."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ctvr.orchestrator.synthetic import worlds
from tests.tools.test_train_tiny_clip import BACKBONES, check_command, config_of, tokenizer_of
from tools import stem_pictures as pictures
from tools import train_stem_clip as stem

SHIPPED = BACKBONES / "tiny_clip_stem"


@pytest.fixture(scope="module")
def config():
    return config_of(SHIPPED)


@pytest.mark.slow
def test_the_shipped_towers_see_every_class_of_words(config):
    model = stem.build(config["model"])
    state = {name: value.float() for name, value in load_file(SHIPPED / "weights.safetensors").items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"attn_mask"}
    assert not unexpected
    found = stem.word_accuracy(model, tokenizer_of(SHIPPED), count=300, seed=123)
    # chance: shape 10, position 11.1, color 10, size 50, place 5; measured 80.6, 99.6, 97.6, 96.6, 99.8 on others
    wanted = {"shape": 74, "position": 80, "colour": 90, "size": 80, "place": 80}
    assert {name for name, least in wanted.items() if found[name] < least} == set(), found


@pytest.mark.slow
def test_an_untrained_tower_is_at_chance(config):
    torch.manual_seed(0)
    found = stem.word_accuracy(stem.build(config["model"]), tokenizer_of(SHIPPED), count=100)
    assert found["shape"] < 30
    assert found["position"] < 30


@pytest.mark.parametrize("name", pictures.CLASSES)
def test_captions_of_a_group_differ_only_in_one_word_class(name):
    words = {word for value in pictures.CLASSES[name] for word in value.split()} | {"an", "a", "on"}
    words |= {word for value in pictures.CLASSES["shape"] for word in value.split()} if name == "size" else set()
    for seed in range(20):
        shown, captions = pictures.make_group(np.random.default_rng(seed), name)
        assert len(shown) == len(captions)
        assert len(set(captions)) == len(captions)
        assert len({tuple(word for word in text.split() if word not in words) for text in captions}) == 1


def test_positions_and_sizes_in_captions_are_true():
    rng = np.random.default_rng(0)
    for _ in range(50):
        thing = pictures.Thing.draw(rng)
        sprite, text = thing.sprite(rng, 0.2), thing.words({"position", "size"})
        assert ("top" in text) == (sprite.y < 0.36)
        assert ("right" in text) == (sprite.x > 0.64)
        assert ("large" in text) == (sprite.radius > 0.16)


def test_captions_of_a_clip_and_its_reversal_have_opposite_directions():
    clips, captions = pictures.make_clips(np.random.default_rng(1))
    assert len(clips) == 3
    for (forward, backward), one, other in zip(worlds.MOVES, captions[::2], captions[1::2]):
        assert one.endswith(forward)
        assert other == one.removesuffix(forward) + backward


@pytest.mark.slow
def test_the_command_writes_a_folder_that_loads_and_repeats(tmp_path):
    argv = ["--first", "3", "--second", "5", "--pool", "200", "--out"]
    assert set(check_command(stem, argv, tmp_path)["held_out"]) == {"pictures", *pictures.CLASSES}
