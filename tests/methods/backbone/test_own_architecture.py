"""Architectures in the user's files: every form gives open_clip's configuration, and each fault is one line."""

import copy
import gzip

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from ctvr.methods.backbone.descriptions import get_model_config, image_size
from ctvr.methods.backbone.load import brings_weights, check_backbone, describe_architecture, load_backbone
from ctvr.methods.backbone.own_architecture import is_own, read_architecture, tokenizer_digests
from ctvr.orchestrator.keys.run_key import describe_preprocessing, weights_digest
from tests.methods.backbone.test_huggingface import as_transformers
from tests.own_towers import CLIP, SIGLIP, write_json
from tests.refusing import refused

TEXTS = ["a red square", "a blue star that moves to the left and then to the right again"]
# CLIP of tests/own_towers.py as transformers writes it
THEIRS = {
    "model_type": "clip",
    "projection_dim": 16,
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "hidden_act": "gelu",
    },
    "text_config": {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 12,
        "hidden_act": "gelu",
    },
}


def features(clip):
    with torch.no_grad():
        frames = torch.linspace(-2, 2, 3 * clip.image_size**2).view(1, 1, 3, clip.image_size, -1)
        return clip.vision(frames)[0], clip.text(clip.tokenize(TEXTS))


def source_of(config):
    described = copy.deepcopy(config)
    kind = open_clip.CustomTextCLIP if described.pop("custom_text", False) else open_clip.CLIP
    source = kind(**described).eval()
    for parameter in source.parameters():
        parameter.data.normal_(std=0.1)
    return source


@pytest.mark.parametrize("form", ["plain", "open_clip_config", "folder", "transformers"])
def test_each_form_of_a_clip_computes_the_features_of_open_clips_model(form, tmp_path):
    source = source_of(CLIP)
    state = {name: value.contiguous() for name, value in source.state_dict().items()}
    save_file(as_transformers(state) if form == "transformers" else state, tmp_path / "model.safetensors")
    if form == "transformers":
        write_json(tmp_path / "config.json", THEIRS)
    elif form == "folder":
        write_json(tmp_path / "open_clip_config.json", {"model_cfg": CLIP, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3]}})
    else:
        write_json(tmp_path / "mine.json", CLIP if form == "plain" else {"model_cfg": CLIP})
    is_folder = form in ("folder", "transformers")
    name = str(tmp_path if is_folder else tmp_path / "mine.json")
    assert brings_weights(name) is is_folder
    clip = load_backbone(name, "shipped" if is_folder else str(tmp_path / "model.safetensors"))
    image, text = features(clip)
    frames = torch.linspace(-2, 2, 3 * 32**2).view(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(image, source.encode_image(frames), rtol=1e-4, atol=1e-5)
        tokens = open_clip.SimpleTokenizer(context_length=12)(TEXTS)
        torch.testing.assert_close(text, source.encode_text(tokens), rtol=1e-4, atol=1e-5)
    assert (image_size(name), clip.text.context_length) == (32, 12)
    assert clip.mean == ((0.1, 0.2, 0.3) if form == "folder" else clip.weight_settings.__class__().mean)


def test_a_siglip_in_a_file_has_its_tower_and_the_tokenizer_that_the_file_states(tmp_path):
    """The name contains `siglip`, by which open_clip would choose a tokenizer of transformers."""
    clip = load_backbone(write_json(tmp_path / "siglip.json", SIGLIP), "random")
    assert (type(clip.vision).__name__, type(clip.text).__name__) == ("TimmVision", "WholeText")
    assert clip.text(clip.tokenize(TEXTS)).shape == (2, 64)


def test_random_weights_depend_on_the_seed_only(tmp_path):
    name = write_json(tmp_path / "mine.json", CLIP)
    first, again, other = (load_backbone(name, "random", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.vision.proj, again.vision.proj)
    assert not torch.equal(first.vision.proj, other.vision.proj)


def test_a_published_siglip_of_transformers_is_open_clips(tmp_path):
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    vision = {**sizes, "image_size": 256, "patch_size": 16}
    config = {"model_type": "siglip", "vision_config": vision, "text_config": sizes}
    found = read_architecture(write_json(tmp_path / "config.json", config))
    expected = open_clip.get_model_config("ViT-L-16-SigLIP-256")
    assert found["vision_cfg"] == expected["vision_cfg"]
    assert found["text_cfg"] == expected["text_cfg"]


def test_heads_activation_and_tokenizer_change_the_digest_of_the_weights(tmp_path):
    weights = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, weights)
    name = str(tmp_path / "mine.json")

    def digest(**changes):
        config = copy.deepcopy(CLIP)
        for place, value in changes.items():
            group, _, field = place.rpartition("__")
            (config[group] if group else config)[field] = value
        write_json(tmp_path / "mine.json", config)
        return weights_digest(name, str(weights)), *describe_preprocessing(name, str(weights)).values()

    same = digest()
    assert same == digest()
    others = [digest(vision_cfg__head_width=16), digest(text_cfg__heads=8), digest(quick_gelu=True)]
    (tmp_path / "words.gz").write_bytes(b"1")
    others += [digest(text_cfg__tokenizer_kwargs={"bpe_path": "words.gz"})]
    (tmp_path / "words.gz").write_bytes(b"2")
    others += [digest(text_cfg__tokenizer_kwargs={"bpe_path": "words.gz"})]
    assert len({same, *others}) == 6
    assert describe_architecture(name)["text_cfg"] == get_model_config(name)["text_cfg"]


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.model", "sentencepiece.bpe.model", "tokenizer_config.json"])
def test_every_file_of_a_tokenizer_in_a_folder_is_in_its_digest(file, tmp_path):
    config = {**CLIP, "text_cfg": {**CLIP["text_cfg"], "hf_tokenizer_name": "someone/words"}}
    write_json(tmp_path / "open_clip_config.json", config)
    for name in (file, "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_text("1")
    (tmp_path / "checkpoints").mkdir()

    def digest():
        return tokenizer_digests(str(tmp_path), read_architecture(str(tmp_path)))

    before = digest()
    (tmp_path / "model.safetensors").write_text("2")  # the weights are not those of the tokenizer
    assert digest() == before
    (tmp_path / file).write_text("2")
    assert digest() != before
    assert tokenizer_digests(write_json(tmp_path / "mine.json", config), config) == []  # it uses that of the Hub


PACKED = gzip.compress(b"a b\nc d\n", mtime=0)
DAMAGED = {"plain": b"x", "cut": PACKED[:-9], "changed": PACKED[:10] + b"\xff" * 9}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_vocabulary_is_refused_in_one_line(kind, tmp_path):
    (tmp_path / "words.gz").write_bytes(DAMAGED[kind])
    text = {**CLIP["text_cfg"], "tokenizer_kwargs": {"bpe_path": "words.gz"}}
    name = write_json(tmp_path / "mine.json", {**CLIP, "text_cfg": text})
    refused(lambda: load_backbone(name, "random"), tmp_path / "words.gz", kind=ValueError)


def test_a_damaged_tokenizer_in_a_folder_is_refused_in_one_line_and_not_searched_on_the_hub(tmp_path, monkeypatch):
    def make(place, **options):
        raise Exception(f"expected value in {place}")  # as the package tokenizers does

    monkeypatch.setattr("open_clip.tokenizer.HFTokenizer", make)
    monkeypatch.setattr("ctvr.methods.backbone.own_model.fetch", lambda *given: pytest.fail("searched on the hub"))
    text = {**CLIP["text_cfg"], "hf_tokenizer_name": "someone/words"}
    write_json(tmp_path / "open_clip_config.json", {**CLIP, "text_cfg": text})
    write_json(tmp_path / "tokenizer.json", {})
    refused(lambda: load_backbone(str(tmp_path), "random"), tmp_path, "expected value", kind=ValueError)


@pytest.mark.parametrize("config", [CLIP, SIGLIP])
def test_a_tokenizer_of_transformers_gives_a_text_tower_that_reads_all_positions(config, tmp_path, monkeypatch):
    class Words:
        """A tokenizer of bytes whose padding is 0 and whose end is not its largest id."""

        tokenizer = range(300)

        def __init__(self, place, context_length, **options):
            self.length = context_length

        def __call__(self, texts):
            rows = [[*(1 + byte for byte in text.encode()), 1][: self.length] for text in texts]
            return torch.tensor([row + [0] * (self.length - len(row)) for row in rows])

    monkeypatch.setattr("open_clip.tokenizer.HFTokenizer", Words)
    write_json(
        tmp_path / "open_clip_config.json", {**config, "text_cfg": {**config["text_cfg"], "hf_tokenizer_name": "x"}}
    )
    write_json(tmp_path / "tokenizer.json", {})
    clip = load_backbone(str(tmp_path), "random")
    assert type(clip.text).__name__ == "WholeText"
    assert clip.text(clip.tokenize(TEXTS)).shape == (2, config["embed_dim"])


WITHOUT = {name: value for name, value in CLIP.items() if name != "text_cfg"}
TIMM = {"vision_cfg": {"image_size": 32, "timm_model_name": "hf-hub:someone/model"}}


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ([1], ["JSON"]),
        ({"a": 1}, ["embed_dim", "vision_cfg", "text_cfg"]),
        (WITHOUT, ["text_cfg"]),
        ({**CLIP, "embed_dim": "16"}, ["embed_dim", "'16'"]),
        ({**CLIP, "vision_cfg": 3}, ["vision_cfg", 3]),
        ({**CLIP, "vision_cfg": {"widht": 3}}, ["widht"]),
        ({**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "layers": 10**9}}, ["layers", 10**9]),
        ({**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "layers": [1, 1, 10**9, 1]}}, ["layers", 10**9]),
        ({**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "width": 10**9}}, ["width", 10**9]),
        ({**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "image_size": 10**9}}, ["image_size", 10**9]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "vocab_size": 10**9}}, ["vocab_size", 10**9]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "heads": 0}}, ["heads", 0]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "context_length": "long"}}, ["context_length", "'long'"]),
        ({**THEIRS, "text_config": {"num_hidden_layers": 10**8}}, ["num_hidden_layers", 10**8]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "tokenizer_kwargs": {"clean": "x"}}}, ["config.json"]),
        ({**CLIP, "vision_cfg": {**CLIP["vision_cfg"], "timm_model_name": "none_such"}}, ["none_such"]),
        ({**CLIP, "multimodal_cfg": {}}, ["multimodal_cfg"]),
        ({**CLIP, "text_cfg": {"hf_model_name": "roberta-base"}}, ["text_cfg.hf_model_name"]),
        ({**CLIP, **TIMM}, ["timm_model_name", "'hf-hub:someone/model'"]),
        ({**CLIP, "text_cfg": {"hf_tokenizer_name": "/etc"}}, ["hf_tokenizer_name", "'/etc'"]),
        ({**CLIP, "text_cfg": {"tokenizer_kwargs": {"trust_remote_code": True}}}, ["'trust_remote_code'"]),
        ({**CLIP, "text_cfg": {"tokenizer_kwargs": {"bpe_path": "../a"}}}, ["bpe_path", "'../a'"]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "vocab_size": 300}}, [300, 49408]),
        ({**CLIP, "text_cfg": {**CLIP["text_cfg"], "tokenizer_kwargs": {"bpe_path": "none.gz"}}}, ["none.gz"]),
        ({"model_type": "blip"}, ["'blip'"]),
        ({"model_type": "clip", "auto_map": {"AutoModel": "code.Model"}}, ["auto_map", "ctvr.backbones"]),
        ({**THEIRS, "vision_config": {"hidden_size": 33}}, ["hidden_size", "num_attention_heads"]),
        ({"model_type": "siglip", "vision_config": {"hidden_size": 33}}, ["hidden_size", 33]),
    ],
)
def test_a_file_that_is_not_an_architecture_is_refused_in_one_line(config, values, tmp_path):
    name = write_json(tmp_path / "config.json", config)
    refused(lambda: load_backbone(name, "random"), *values, kind=ValueError)


def test_a_path_without_an_architecture_is_refused_in_one_line(tmp_path):
    nothing = str(tmp_path / "none.json")
    refused(lambda: check_backbone(nothing, "random"), nothing, kind=ValueError)
    both = ["open_clip_config.json", "config.json"]
    refused(lambda: check_backbone(str(tmp_path), "random"), tmp_path, *both, kind=ValueError)
    name = write_json(tmp_path / "mine.json", CLIP)
    for weights in ("openai", "shipped"):
        refused(lambda weights=weights: check_backbone(name, weights), repr(weights), "random", kind=ValueError)
    write_json(tmp_path / "open_clip_config.json", CLIP)
    refused(lambda: load_backbone(str(tmp_path), "shipped"), "model.safetensors", kind=ValueError)
    save_file({"visual.conv1.weight": torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    refused(lambda: load_backbone(str(tmp_path), "shipped"), tmp_path, 84, kind=ValueError)


def test_a_folder_without_weights_needs_others(tmp_path):
    write_json(tmp_path / "open_clip_config.json", CLIP)
    name = f"{tmp_path}/"
    refused(lambda: check_backbone(name, "shipped"), str(tmp_path), "weights", "random", kind=ValueError)
    check_backbone(name, "random")
    assert load_backbone(name, "random").embed_dim == CLIP["embed_dim"]


def test_another_vocabulary_without_a_tokenizer_is_refused_before_the_hub_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("ctvr.methods.backbone.own_model.fetch", pytest.fail)
    theirs = {**THEIRS, "text_config": {**THEIRS["text_config"], "vocab_size": 300}}
    write_json(tmp_path / "config.json", theirs)
    for name in (f"{tmp_path}/", write_json(tmp_path / "copy.json", theirs)):
        refused(lambda name=name: load_backbone(name, "random"), name, "tokenizer.json", kind=ValueError)


def test_only_a_path_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B-32").mkdir()
    (tmp_path / "mine").mkdir()
    assert not is_own("ViT-B-32")
    assert not is_own("openai/clip-vit-base-patch32")
    assert is_own("./ViT-B-32")
    assert is_own(f"../{tmp_path.name}")
    refused(lambda: check_backbone("mine", "random"), "'mine'", "./mine", kind=ValueError)
