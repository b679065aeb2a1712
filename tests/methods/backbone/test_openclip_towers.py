"""timm towers, and text read at its last position, on architectures of this test: nothing is downloaded."""

import copy
import json
from functools import partial

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from timm.layers import HybridEmbed
from timm.models import register_model
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import nn

from ctvr.methods import METHODS, find_method
from ctvr.methods.backbone.blocks import BlockSeams
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Batch, Task
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import load_clip, make_method
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refused

VISION = {"image_size": 160, "timm_model_name": "test_vit", "timm_proj": "none", "timm_pool": "map"}
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 48, "heads": 2, "layers": 2}
SIGLIP = {"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
KINDS = {
    "attentive": (64, VISION, {**TEXT, **SIGLIP}),
    "token": (32, {**VISION, "timm_pool": "token", "timm_proj": "linear"}, TEXT),
    "mean": (32, {**VISION, "timm_pool": "avg", "timm_proj": None}, {**TEXT, "pool_type": "last"}),
    "convolutions": (32, {**VISION, "timm_model_name": "test_resnet", "timm_pool": "avg", "timm_proj": None}, TEXT),
    "rotary": (32, {**VISION, "timm_model_name": "ctvr_pe", "timm_proj": None}, TEXT),
    "eva02": (
        32,
        {**VISION, "timm_model_name": "ctvr_eva02", "timm_pool": "token", "timm_proj": None},
        {**TEXT, "no_causal_mask": True},
    ),
    "post": (32, {**VISION, "timm_model_name": "ctvr_post", "timm_pool": "token", "timm_proj": None}, TEXT),
    "stem": (
        32,
        {**VISION, "timm_model_name": "ctvr_stem", "timm_pool": "token", "timm_proj": None},
        {**TEXT, "pool_type": "eos", "eos_id": 320},  # the word "a": not the largest id, and not in every caption
    ),
}


SMALL = {"img_size": 160, "patch_size": 16, "embed_dim": 64, "depth": 2, "num_heads": 2, "ref_feat_shape": (7, 7)}
SMALL |= {"use_rot_pos_emb": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
EVA02 = {"qkv_fused": False, "mlp_ratio": 8 / 3, "swiglu_mlp": True, "scale_mlp": True, "scale_attn_inner": True}
PE = {"attn_type": "rope", "use_pre_transformer_norm": True, "rope_grid_offset": 1.0, "rope_grid_indexing": "xy"}


def _kept(given):
    return {name: value for name, value in given.items() if not name.startswith(("pretrained", "cache_dir"))}


@register_model
def ctvr_eva02(pretrained: bool = False, **given):
    """timm's eva02_base_patch16_clip_224, but small, and with factors of each channel."""
    return Eva(**{**SMALL, **EVA02, "init_values": 0.1, **_kept(given)})


@register_model
def ctvr_post(pretrained: bool = False, **given):
    """Build a small form of timm's eva02_enormous_patch14_clip_224 (EVA02-E): norms after attention and MLP."""
    return Eva(**{**SMALL, "use_post_norm": True, "use_rot_pos_emb": False, **_kept(given)})


@register_model
def ctvr_pe(pretrained: bool = False, **given):
    """timm's vit_pe_core_base_patch16_224, but small."""
    return Eva(**{**SMALL, **PE, "attn_pool_num_heads": 2, "attn_pool_mlp_ratio": 4.0, **_kept(given)})


@register_model
def ctvr_stem(pretrained: bool = False, **given):
    """timm's vit_base_mci_224 (MobileCLIP2-B), but small."""
    stem = ConvStem(channels=(8, 8, 64), stride=(4, 2, 2), kernel_size=(4, 2, 2), padding=0, act_layer=nn.GELU)
    layer = partial(HybridEmbed, backbone=stem, patch_size=1, proj=False)
    shape = {"img_size": 160, "patch_size": 1, "embed_dim": 64, "depth": 2, "num_heads": 2, "no_embed_class": True}
    return VisionTransformer(embed_layer=layer, **shape, **_kept(given))


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("architectures")
    for kind, (width, vision, text) in KINDS.items():
        described = {"embed_dim": width, "custom_text": True, "vision_cfg": vision, "text_cfg": text}
        (folder / f"ctvr-{kind}.json").write_text(json.dumps(described))
    open_clip.add_model_config(folder)
    yield
    for kind in KINDS:
        del open_clip.factory._MODEL_CONFIGS[f"ctvr-{kind}"]


@pytest.mark.parametrize("kind", ["attentive", "token", "mean", "rotary", "eva02", "stem"])
@torch.no_grad()
def test_with_its_seams_off_a_tower_is_open_clips_own(kind, tmp_path):
    source = open_clip.create_model(f"ctvr-{kind}", pretrained=None).eval()
    for parameter in source.parameters():  # weights as they come give features of 1e-6, and attention to all alike
        parameter.normal_(std=1.5 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.5)
    weights = {name: value.clone().contiguous() for name, value in source.state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    clip = load_backbone(f"ctvr-{kind}", str(tmp_path / "weights.safetensors"))
    frames = torch.randn(2, 3, 3, 160, 160)
    expected = source.encode_image(frames.flatten(0, 1)).unflatten(0, (2, 3))
    assert expected.std() > 0.1
    scale = float(expected.abs().max())
    torch.testing.assert_close(clip.vision(frames), expected, rtol=1e-5, atol=1e-5 * scale)
    half = len(clip.vision.blocks) // 2
    stored = clip.vision.prefix(frames, half)
    clip.vision.entry = half
    torch.testing.assert_close(clip.vision(stored), expected, rtol=1e-5, atol=1e-5 * scale)
    texts = ["a red square", "a blue star that moves to the left and then to the right again and stops there", "x"]
    expected = source.encode_text(open_clip.get_tokenizer(f"ctvr-{kind}")(texts))
    near = {"rtol": 1e-5, "atol": 1e-5 * float(expected.abs().max())}
    torch.testing.assert_close(clip.text(clip.tokenize(texts)), expected, **near)
    alone = torch.cat([clip.text(clip.tokenize([text])) for text in texts])  # however captions are cut together
    torch.testing.assert_close(alone, expected, **near)
    assert clip.embed_dim == expected.shape[1]
    doubled = [BlockSeams(mlp=lambda y, out, state: 2 * out)] * len(clip.vision.blocks)
    clip.vision.entry = 0
    assert not torch.allclose(clip.vision(frames, doubled), clip.vision(frames), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ctvr-convolutions", "the image tower of {} is timm's ResNet, in whose blocks methods cannot act"),
        ("ctvr-post", "the blocks of the image tower of {} are not plain pre-norm blocks with biases"),  # as EVA02-E's
        ("MobileCLIP2-S0", "the image tower of {} is timm's FastVit, in whose blocks methods cannot act"),
    ],
)
def test_a_tower_without_such_blocks_is_refused_in_one_line(name, what):
    refused(lambda: load_backbone(name, "random"), f"{what.format(name)}. Use another", kind=ValueError)


@pytest.mark.parametrize(
    ("words", "setting", "values"),
    [
        ("clip_vip", "method", "clip_vip ctvr-attentive class_embedding"),
        ("lwf method.base=prompt", "method", "lwf"),
        ("lora method.reducer.name=tome", "method.reducer.name", "CLIP's"),
    ],
)
def test_a_method_whose_seams_it_cannot_serve_is_refused_in_one_line(words, setting, values):
    given = dict(word.split("=") for word in f"method={words} backbone.name=ctvr-attentive".split())
    experiment = resolve({"stream": "x", "backbone.weights": "random", **given})
    refused(lambda: make_method(experiment, load_clip(experiment.backbone)), *values.split(), settings=(setting,))


AGNOSTIC = [
    name for name, cls in zip(METHODS, map(find_method, METHODS)) if cls.capabilities(cls.Config()).backbone_agnostic
]


ATTENTIVE = {"stream": "x", "backbone.name": "ctvr-attentive", "backbone.weights": "random"}


@pytest.fixture(scope="module")
def attentive(architectures):
    return load_clip(resolve({"method": "zero_shot", **ATTENTIVE}).backbone)


@pytest.mark.parametrize("name", AGNOSTIC)
def test_a_method_for_any_tower_takes_a_step_on_one_without_class_token(name, attentive):
    experiment = resolve({"method": name, **ATTENTIVE})
    clip = copy.deepcopy(attentive)
    method = make_method(experiment, clip).train()
    tokens = clip.tokenize(["a red square", "a blue star"])
    for index in range(2):
        batch = Batch(
            torch.randn(2, 2, 3, 160, 160),
            tokens,
            torch.tensor([0, 1]),
            torch.tensor([0, 1]),
            unaugmented_video_ids=(0, 1),
        )
        method.begin_task(Task(index, f"task {index}", 2, (index,), 2))
        groups = method.param_groups()
        loss = sum(method.losses(batch).values())
        assert loss.isfinite()
        if groups:
            loss.backward()
            assert any(p.grad is not None and p.grad.abs().max() > 0 for group in groups for p in group["params"])
        method.end_task(Task(index, f"task {index}", 2, (index,), 2), [batch])


@pytest.mark.slow
def test_methods_run_on_a_siglip_architecture(tmp_path):
    from tests.small_stream import write_stream

    manifest = str(write_stream(tmp_path / "small", num_tasks=2, train=2, searched=1, has_val=False))
    stream = load_stream(manifest, tmp_path)
    given = {"stream": manifest, "backbone.name": "ctvr-attentive", "backbone.weights": "random", "data.num_frames": 2}
    given |= {"optim.epochs": 1}
    for method in ("zero_shot", "framefusion_moe"):
        own = {"method.num_experts": 2, "method.rank": 2} if method == "framefusion_moe" else {}
        done = execute(resolve({**given, "method": method, **own}, stream.settings), RunPaths(tmp_path), stream=stream)
        assert len(done.record.own) == 2
    assert len(done.method.ffa) == 6  # the depth of the tower
    assert any(block.alpha.abs().max() > 0 for block in done.method.ffa.values())  # it was trained


def test_a_missing_package_is_named_in_one_line(monkeypatch):
    def missing(*given: object, **named: object) -> None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr(open_clip, "create_model", missing)
    with pytest.raises(ValueError, match="ctvr-token needs the package transformers: pip install transformers"):
        load_backbone("ctvr-token", "random")
