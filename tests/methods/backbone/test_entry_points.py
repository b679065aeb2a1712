"""Entry points `ctvr.backbones`: the towers compute what the package's encoders compute, and each fault is one line."""

import importlib
import sys

import pytest
import torch
from safetensors.torch import save_file

from ctvr.methods.backbone.blocks import BlockSeams
from ctvr.methods.backbone.load import brings_weights, check_backbone, load_backbone, tags_of
from ctvr.methods.settings import SettingError
from tests.own_towers import CODE, write_package
from tests.refusing import refused

TEXTS = ["a red square", "a blue star that moves to the left and then to the right again", ""]
MODEL = """
import open_clip

class Clip(open_clip.CLIP):
    def __init__(self):
        super().__init__(
            16, {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 8, "layers": 3},
            {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3})
        self.image_size, self.tokenize = 32, open_clip.SimpleTokenizer(context_length=12)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package from code that follows the one of tests/own_towers.py, with entry points; return its module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(code="", **points):
        write_package(tmp_path, CODE + code, **points)
        importlib.invalidate_caches()
        sys.modules.pop("tiny_towers", None)

    yield write
    sys.modules.pop("tiny_towers", None)


@pytest.mark.parametrize(("name", "blocks"), [("bag", (0, 0)), ("hooked", (3, 2))])
def test_the_towers_compute_what_the_encoders_of_the_package_compute(name, blocks, package, tmp_path):
    package(bag="Bag", hooked="Hooked")
    assert brings_weights(name)
    source = getattr(importlib.import_module("tiny_towers"), name.title())().eval()
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    clip = load_backbone(name, str(tmp_path / "weights.safetensors"))
    assert (len(clip.vision.blocks), len(clip.text.blocks)) == blocks
    frames = torch.randn(2, 3, 3, 32, 32)
    with torch.no_grad():
        images = source.encode_image(frames.flatten(0, 1)).unflatten(0, (2, 3))
        torch.testing.assert_close(clip.vision(frames), images, rtol=1e-5, atol=1e-6)
        tokens = clip.tokenize(TEXTS)
        torch.testing.assert_close(clip.text(tokens), source.encode_text(source.tokenize(TEXTS)), rtol=1e-5, atol=1e-6)
        alone = torch.cat([clip.text(clip.tokenize([text])) for text in TEXTS])
        torch.testing.assert_close(alone, clip.text(tokens), rtol=1e-5, atol=1e-6)
    assert (clip.mean, clip.std, clip.image_size) == ((0.5,) * 3, (0.25,) * 3, 32)


def test_each_tower_has_only_the_weights_that_its_encoder_reads(package):
    package(hooked="Hooked")
    clip = load_backbone("hooked", "shipped")
    tensors = {name: value.shape for name, value in clip.named_parameters()}
    assert not [name for name in tensors if "pixels" in name]  # neither encoder reads it
    assert [name for name in tensors if "words" in name] == ["text.source.words.weight"]
    assert {name.partition(".source.")[2] for name in tensors if name.startswith("vision.source")} == {
        f"{layer}.{kind}" for layer in ("patches", "out") for kind in ("weight", "bias")
    }
    clip.text(clip.tokenize(["a"])).sum().backward()
    assert all(parameter.grad is None for parameter in clip.vision.parameters())


@torch.no_grad()
def test_hooks_act_in_the_blocks_of_both_towers(package):
    package(hooked="Hooked")
    clip = load_backbone("hooked", "shipped")
    for tower, given in ((clip.vision, torch.randn(1, 2, 3, 32, 32)), (clip.text, clip.tokenize(["a red square"]))):
        doubled = [BlockSeams(mlp=lambda y, out, state: 2 * out)] * len(tower.blocks)
        assert not torch.allclose(tower(given, doubled), tower(given), atol=1e-4)
    frames = torch.randn(1, 2, 3, 32, 32)
    expected, stored = clip.vision(frames), clip.vision.prefix(frames, 2)
    clip.vision.entry = 2
    torch.testing.assert_close(clip.vision(stored), expected, rtol=1e-5, atol=1e-6)


def test_an_entry_point_may_return_a_model_of_open_clip(package):
    package(MODEL, whole="Clip")
    clip = load_backbone("whole", "shipped")
    assert clip.vision.is_plain
    assert type(clip.text).__name__ == "TextTower"
    again = load_backbone("whole", "shipped")
    assert torch.equal(clip.vision.proj, again.vision.proj)  # random numbers of the package are drawn from one seed


def test_a_model_of_open_clip_with_a_tokenizer_of_transformers_reads_all_positions(package):
    code = (
        MODEL
        + """
class Words(open_clip.SimpleTokenizer):
    tokenizer = range(49408)

def model():
    made = Clip()
    made.tokenize = Words(context_length=12)
    return made
"""
    )
    package(code, whole="model")
    assert type(load_backbone("whole", "shipped").text).__name__ == "WholeText"


FAULTS = {
    **{
        f"other {encoder}": (
            f"{MODEL}\nclass wrong(Clip):\n    def {encoder}(self, given, normalize=False):\n"
            f"        return super().{encoder}(given) + 1\n",
            ["open_clip", "torch.nn.Module"],
        )
        for encoder in ("encode_image", "encode_text")
    },
    "module": ("def wrong():\n    import none_such\n", ["none_such", "ModuleNotFoundError"]),
    "raises": ("def wrong():\n    return 1 / 0\n", ["ZeroDivisionError", "line"]),
    "number": ("def wrong():\n    return 3\n", ["int", "torch.nn.Module"]),
    "lacks": ("def wrong():\n    return nn.Linear(2, 2)\n", ["encode_image", "tokenize", "image_size"]),
    "widths": (
        "class wrong(Bag):\n    def encode_text(self, ids):\n        return self.words(ids).mean(dim=1)[:, :5]\n",
        [(1, 16), (1, 5)],
    ),
    "lengths": (
        "class wrong(Bag):\n    def tokenize(self, captions):\n"
        "        return torch.ones(len(captions), max(map(len, captions)), dtype=torch.int64)\n",
        [(2, 20)],
    ),
    "gradients": (
        "class wrong(Bag):\n    @torch.no_grad()\n    def encode_image(self, images):\n"
        "        return super().encode_image(images)\n",
        ["images", "torch.no_grad()"],
    ),
    "fails": (
        "class wrong(Bag):\n    def encode_image(self, images):\n        return images.nothing\n",
        ["AttributeError", "line"],
    ),
    "shared": (
        "class wrong(Bag):\n    def encode_text(self, ids):\n"
        "        return super().encode_text(ids) + self.pixels(torch.zeros(1, 3072))\n",
        ["pixels.bias"],
    ),
    "blocks of both": (
        "class wrong(Hooked):\n    def __init__(self):\n        super().__init__()\n"
        "        self.text_blocks = self.image_blocks\n",
        ["image_blocks"],
    ),
    "half": ("class wrong(Bag):\n    image_blocks = ()\n", ["image_blocks", "embed_image", "pool_image"]),
    "unequal": (
        "class wrong(Hooked):\n    def pool_image(self, tokens):\n        return self.out(tokens[:, 0])\n"
        "    def encode_image(self, images):\n        return self.out(self.embed_image(images).mean(dim=1))\n",
        ["image_blocks", "embed_image", "pool_image"],
    ),
    "blocks": (
        "class wrong(Hooked):\n    def __init__(self):\n        super().__init__()\n"
        "        self.image_blocks = nn.ModuleList([nn.Linear(16, 16)])\n",
        ["image_blocks", "Linear"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_that_offers_no_backbone_is_refused_in_one_line(fault, package):
    code, values = FAULTS[fault]
    package(code, wrong="wrong")
    refused(lambda: load_backbone("wrong", "shipped"), "wrong", "tiny_towers:wrong", *values, kind=SettingError)


def test_a_module_that_cannot_be_imported_is_refused_with_its_line(package):
    package("\nraise OSError('no disk')\n", wrong="Bag")
    refused(lambda: load_backbone("wrong", "shipped"), "OSError", "tiny_towers:Bag", "no disk", kind=SettingError)


def test_a_name_of_open_clip_or_of_two_packages_is_refused_with_both_owners(package, tmp_path):
    package(**{"ViT-B-32": "Bag", "tiny-clip": "Bag", "bag": "Bag"})
    for name, owner in (("ViT-B-32", "open_clip"), ("tiny-clip", "ctvr")):
        refused(lambda name=name: check_backbone(name, "random"), name, "tiny_towers", owner, kind=SettingError)
    write_package(tmp_path, name="other_towers", bag="Bag")
    importlib.invalidate_caches()
    refused(lambda: check_backbone("bag", "shipped"), "bag", "tiny_towers", "other_towers", kind=SettingError)


def test_only_its_own_weights_or_a_fitting_file_are_accepted(package, tmp_path):
    package(bag="Bag")
    for weights in ("openai", "random"):
        refused(
            lambda weights=weights: check_backbone("bag", weights), "bag", repr(weights), "shipped", kind=ValueError
        )
    save_file({"pixels.weight": torch.zeros(16, 3072)}, tmp_path / "some.safetensors")
    refused(lambda: load_backbone("bag", str(tmp_path / "some.safetensors")), "bag", "pixels.bias", kind=ValueError)


def test_an_unknown_name_lists_the_entry_points(package):
    package(bag="Bag")
    refused(lambda: tags_of("bagg"), "'bagg'", "bag", kind=SettingError)
