"""timm towers and text read at its last place, on architectures of this test's own: nothing is fetched."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch

from methods import METHODS, find_method
from methods.backbone.blocks import BlockSeams
from methods.backbone.load import load_backbone
from methods.base import Batch, Task
from orchestrator.errors import ConfigError
from orchestrator.learning.assemble import load_clip, make_method
from orchestrator.learning.resolve import resolve
from orchestrator.learning.run import Places, execute
from orchestrator.streams.load import load_stream

VISION = {"image_size": 160, "timm_model_name": "test_vit", "timm_proj": "none", "timm_pool": "map"}
TEXT = {"context_length": 12, "vocab_size": 49408, "width": 48, "heads": 2, "layers": 2}
SIGLIP = {"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
KINDS = {
    "attentive": (64, VISION, {**TEXT, **SIGLIP}),
    "token": (32, {**VISION, "timm_pool": "token", "timm_proj": "linear"}, TEXT),
    "mean": (32, {**VISION, "timm_pool": "avg", "timm_proj": None}, {**TEXT, "pool_type": "last"}),
    "convolutions": (32, {**VISION, "timm_model_name": "test_resnet", "timm_pool": "avg", "timm_proj": None}, TEXT),
    "rotary": (32, {**VISION, "timm_model_name": "vit_pe_core_tiny_patch16_384", "timm_proj": None}, TEXT),
}


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


@pytest.mark.parametrize("kind", ["attentive", "token", "mean"])
@torch.no_grad()
def test_with_its_seams_off_a_tower_is_open_clips_own(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        source = open_clip.create_model(f"ctvr-{kind}", pretrained=None).eval()
    clip = load_backbone(f"ctvr-{kind}", "random")
    frames = torch.randn(2, 3, 3, 160, 160)
    expected = source.encode_image(frames.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(clip.vision(frames), expected, rtol=1e-5, atol=1e-5)
    stored = clip.vision.prefix(frames, 4)
    clip.vision.entry = 4
    torch.testing.assert_close(clip.vision(stored), expected, rtol=1e-5, atol=1e-5)
    texts = ["a red square", "a blue star that moves to the left and then to the right again and stops there", "x"]
    expected = source.encode_text(open_clip.get_tokenizer(f"ctvr-{kind}")(texts))
    torch.testing.assert_close(clip.text(clip.tokenize(texts)), expected, rtol=1e-5, atol=1e-5)
    alone = torch.cat([clip.text(clip.tokenize([text])) for text in texts])  # however captions are cut together
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)
    assert clip.embed_dim == expected.shape[1]
    doubled = [BlockSeams(mlp=lambda y, out, state: 2 * out)] * 6
    clip.vision.entry = 0
    assert not torch.allclose(clip.vision(frames, doubled), clip.vision(frames), atol=1e-3)


@pytest.mark.parametrize(("kind", "what"), [("convolutions", "timm's ResNet"), ("rotary", "timm's Eva")])
def test_a_tower_without_such_blocks_is_refused_in_one_line(kind, what):
    with pytest.raises(ValueError, match=f"image tower of ctvr-{kind} is {what}, which has no seams. Use another"):
        load_backbone(f"ctvr-{kind}", "random")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "xpool"}, "method: xpool reads parts of CLIP's own towers, and ctvr-attentive has others. Choose"),
        ({"method": "lwf", "method.base": "prompt"}, "lwf reads parts of CLIP's own towers"),
        ({"method": "lora", "method.reducer": "tome"}, "reducer=tome: tokens are merged around CLIP's class token"),
    ],
)
def test_a_method_whose_seams_it_cannot_serve_is_refused_in_one_line(settings, message):
    experiment = resolve({"stream": "x", "backbone.name": "ctvr-attentive", "backbone.weights": "random", **settings})
    with pytest.raises(ConfigError, match=message):
        make_method(experiment, load_clip(experiment.backbone))


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).any_tower])
def test_a_method_for_any_tower_takes_a_step_on_one_without_class_token(name):
    given = {"stream": "x", "method": name, "backbone.name": "ctvr-attentive", "backbone.weights": "random"}
    experiment = resolve(given)
    clip = load_clip(experiment.backbone)
    method = make_method(experiment, clip).train()
    tokens = clip.tokenize(["a red square", "a blue star"])
    for index in range(2):
        batch = Batch(
            torch.randn(2, 2, 3, 160, 160), tokens, torch.tensor([0, 1]), torch.tensor([0, 1]), plain_videos=(0, 1)
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
        done = execute(resolve({**given, "method": method, **own}, stream.settings), Places(tmp_path), stream=stream)
        assert len(done.record.own) == 2
    assert len(done.method.ffa) == 6  # the depth of the tower
    assert any(block.alpha.abs().max() > 0 for block in done.method.ffa.values())  # it was trained


def test_a_missing_package_is_named_in_one_line(monkeypatch):
    def missing(*given: object, **named: object) -> None:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr(open_clip, "create_model", missing)
    with pytest.raises(ValueError, match="ctvr-token needs the package transformers: pip install transformers"):
        load_backbone("ctvr-token", "random")
