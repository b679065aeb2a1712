import copy
import hashlib
import shutil

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from ctvr.methods.backbone import load as module
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.settings import SettingError
from tests.methods.conftest import CONTEXT, VOCABULARY
from tests.refusing import refused


def make_source(quick_gelu=True, layers=3):
    torch.manual_seed(3)
    source = open_clip.CLIP(
        embed_dim=16,
        quick_gelu=quick_gelu,
        vision_cfg={"layers": layers, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32},
        text_cfg={"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": 24, "heads": 3, "layers": 2},
    )
    for parameter in source.parameters():
        parameter.data.normal_(0, 0.2)
    return source.eval()


def as_clip(source):
    return Clip(copy.deepcopy(source), lambda texts: torch.zeros(1), (0.5,) * 3, (0.5,) * 3).eval()


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# ----------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("quick_gelu", [True, False])
def test_both_towers_equal_open_clip(quick_gelu, batch):
    source = make_source(quick_gelu)
    clip = as_clip(source)
    with torch.no_grad():
        close(clip.vision(batch.frames).flatten(0, 1), source.encode_image(batch.frames.flatten(0, 1)))
        close(clip.text(batch.tokens), source.encode_text(batch.tokens))
    assert float(clip.logit_scale.detach()) == pytest.approx(float(source.logit_scale.detach()))


@pytest.mark.slow
def test_vit_b_32_equals_open_clip():
    name = "ViT-B-32-quickgelu"
    torch.manual_seed(5)
    source = open_clip.create_model(name, pretrained=None).eval()
    clip = as_clip(source)
    frames = torch.randn(2, 1, 3, 224, 224)
    tokens = open_clip.get_tokenizer(name)(["a dog runs", "a cat sleeps on a very soft and very warm sofa"])
    with torch.no_grad():
        close(clip.vision(frames)[:, 0], source.encode_image(frames[:, 0]))
        close(clip.text(tokens), source.encode_text(tokens))


def test_every_word_feature_ends_with_the_caption_s_own(small_clip, batch):
    words, eot = small_clip.text.hidden(batch.tokens)
    assert torch.equal(eot, batch.tokens.argmax(dim=1))
    close(words[torch.arange(6), eot], small_clip.text(batch.tokens))


# ---------------------------------------------------------------------------------------- loading


def test_the_shipped_backbone_loads_and_reads_captions():
    clip = load_backbone("tiny-clip", "shipped")
    tokens = clip.tokenize(["a red square slides to the left", "a kite"])
    assert tokens.shape == (2, clip.text.context_length)
    frames = torch.zeros(1, 2, 3, clip.image_size, clip.image_size)
    assert clip.vision(frames).shape == (1, 2, clip.embed_dim)
    assert clip.text(tokens).shape == (2, clip.embed_dim)
    assert not clip.training


def test_random_weights_depend_on_the_seed_alone():
    one, two, other = (load_backbone("tiny-clip", "random", seed).vision.proj for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.slow
def test_a_local_file_loads(tmp_path):
    config = module.json.loads((module.SHIPPED["tiny-clip"] / "config.json").read_text())
    source = open_clip.CLIP(**config["model"])
    torch.save({"state_dict": {f"module.{n}": v for n, v in source.state_dict().items()}}, tmp_path / "w.pt")
    save_file({n: v.contiguous().half() for n, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    sha256 = hashlib.sha256((tmp_path / "w.pt").read_bytes()).hexdigest()
    exact = load_backbone("tiny-clip", str(tmp_path / "w.pt"), sha256=sha256)
    half = load_backbone("tiny-clip", str(tmp_path / "w.safetensors"))
    assert torch.equal(exact.vision.proj, source.visual.proj)
    close(half.vision.proj, source.visual.proj, 1e-3)
    assert half.vision.proj.dtype == torch.float32


UNKNOWN = {  # name and weights -> correction of the name, values in the text
    ("ViT-Z-99", "random"): ("ViT-S-32", ""),
    ("openai/clip-vit-large-patch14-336", "random"): ("ViT-L-14-336-quickgelu", ""),
    ("google/siglip-base-patch16-224", "random"): ("ViT-B-16-SigLIP", ""),
    ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "random"): ("ViT-H-14", ""),
    ("ViT-L/14@336px", "random"): ("ViT-L-14-336", ""),
    ("tiny_clip", "random"): ("tiny-clip", ""),
    ("ViT-B-32-quickgelu", "opanai"): ("", "'opanai' openai"),
    ("tiny-clip", "openai"): ("", "shipped"),
    ("tiny-clip", "{}/gone.pt"): ("", "gone.pt"),
    ("tiny-clip", "{}/other.safetensors"): ("", "1 visual.nothing"),
}


@pytest.mark.parametrize(("name", "weights"), UNKNOWN)
def test_an_unknown_name_or_file_is_refused_in_one_line(name, weights, tmp_path):
    save_file({"visual.nothing": torch.zeros(2)}, tmp_path / "other.safetensors")
    meant, values = UNKNOWN[name, weights]
    kind = SettingError if meant else FileNotFoundError if "gone" in weights else ValueError
    fields = {"write": f"<name>={meant}"} if meant else {}
    refused(lambda: load_backbone(name, weights.format(tmp_path)), *values.split(), kind=kind, **fields)


@pytest.mark.parametrize("name", module.SHIPPED)
def test_a_damaged_shipped_file_is_noticed(name, tmp_path, monkeypatch):
    folder = tmp_path / "tiny_clip"
    shutil.copytree(module.SHIPPED[name], folder)
    raw = bytearray((folder / "weights.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(raw)
    monkeypatch.setitem(module.SHIPPED, name, folder)
    with pytest.raises(ValueError, match=r"damaged .* Install the package again"):
        load_backbone(name, "shipped")


def test_a_tower_without_blocks_is_refused():
    source = make_source()
    source.visual = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="image tower is a Linear"):
        Clip(source, lambda texts: torch.zeros(1), (0.5,) * 3, (0.5,) * 3)
