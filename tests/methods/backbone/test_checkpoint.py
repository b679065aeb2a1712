"""The common forms of a checkpoint load as the same weights, for every kind of tower."""

import argparse
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from open_clip import CLIP
from open_clip.model import CustomTextCLIP
from safetensors.torch import save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ctvr.methods.backbone.architectures import TINY_FOLDER
from ctvr.methods.backbone.checkpoint import check, files_of, fitted, read_checkpoint, without_prefix
from ctvr.methods.backbone.inert import read
from ctvr.methods.backbone.load import are_here, is_path
from ctvr.orchestrator.keys.run_key import weights_digest
from tests.methods.backbone.test_huggingface import as_transformers
from tests.methods.backbone.test_openclip_towers import SIGLIP, TEXT, VISION, _kept
from tests.refusing import refused

State = dict[str, Tensor]
SOURCE = Path("weights.pt")


def clip() -> nn.Module:
    return CLIP(**json.loads((TINY_FOLDER / "config.json").read_text())["model"])


@register_model
def ctvr_siglip(pretrained: bool = False, **given):
    """timm's vit_base_patch16_siglip_224, but small."""
    return VisionTransformer(
        **{**_kept(given), "img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2, "class_token": False}
    )


def siglip() -> nn.Module:
    return CustomTextCLIP(
        32,
        {**VISION, "image_size": 32, "timm_model_name": "ctvr_siglip"},
        {**TEXT, "vocab_size": 64, "width": 32, **SIGLIP},
    )


def of_its_own_text() -> nn.Module:
    return CustomTextCLIP(**json.loads((TINY_FOLDER / "config.json").read_text())["model"])


TOWERS: dict[str, Callable[[], nn.Module]] = {"clip": clip, "siglip": siglip, "custom": of_its_own_text}


@pytest.fixture(scope="module", params=TOWERS)
def state(request) -> State:
    torch.manual_seed(1)
    made = TOWERS[request.param]().state_dict()
    return {name: torch.randn_like(value) if value.is_floating_point() else value for name, value in made.items()}


def before(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def zeros(state: State) -> State:
    return {name: torch.zeros_like(value) for name, value in state.items()}


def inside(word: str, state: State) -> State:
    """Return a wrapper around the image tower alone."""
    return {
        name.replace("visual.", f"visual.{word}.", 1) if name.startswith("visual.") else name: value
        for name, value in state.items()
    }


def halves(state: State) -> State:
    return {name: value.half() if value.is_floating_point() else value for name, value in state.items()}


FORMS: dict[str, Callable[[State], object]] = {
    "plain": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3},
    "training of open_clip": lambda s: {"epoch": 3, "state_dict": before("module.", s), "optimizer": {"x": {"y": 1}}},
    "compiled": lambda s: {"state_dict": before("_orig_mod.", s)},
    "compiled in parallel": lambda s: before("module._orig_mod.", s),
    "Lightning": lambda s: {"state_dict": before("model.", s), "hyper_parameters": {"lr": 1}},
    "CLIP4Clip": lambda s: {**before("clip.", s), "loss_fct.x": torch.zeros(1)},
    "CLIP4Clip in parallel, with its heads": lambda s: {
        **before("module.clip.", s),
        "module.transformerClip.resblocks.0.ln_1.weight": torch.zeros(3),
        "module.frame_position_embeddings.weight": torch.zeros(77, 3),
    },
    "X-Pool": lambda s: {
        "config": argparse.Namespace(huggingface=False),
        "state_dict": {**before("clip.", s), "pool_frames.cross_attn.q_proj.weight": torch.zeros(3, 3)},
    },
    "one prefix": lambda s: before("any_name.", s),
    "several prefixes": lambda s: {"state_dict": before("module.model.clip_model.", s)},
    "DeepSpeed": lambda s: {"module": s, "dp_world_size": 1},
    "FSDP": lambda s: inside("_fsdp_wrapped_module", s),
    "activation checkpoints": lambda s: inside("_checkpoint_wrapped_module", s),
    "average beside": lambda s: {"model": s, "model_ema": zeros(s)},
    "average before": lambda s: {"state_dict_ema": zeros(s), "state_dict": s},
    "average inside": lambda s: {**s, **before("ema.", zeros(s))},
    "average alone": lambda s: {"state_dict_ema": s, "epoch": 1},
    "averaged by torch": lambda s: {**before("module.", s), "n_averaged": torch.tensor(3)},
    "teacher": lambda s: {"state_dict": {**before("teacher.", zeros(s)), **before("model.", s)}},
    "twice the same": lambda s: {**before("a.", s), **before("b.", s)},
    "OpenAI's attributes": lambda s: {**s, "input_resolution": torch.tensor(64), "context_length": torch.tensor(77)},
    "old buffers": lambda s: {**s, "attn_mask": torch.full((2, 2), float("-inf"))},
    "transformers": lambda s: before("model.", as_transformers(s)),
    "one length more": lambda s: {**s, "logit_scale": s["logit_scale"].reshape(1)},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_the_same_weights(state, form):
    file = io.BytesIO()
    torch.save(FORMS[form](state), file)
    found = fitted(without_prefix(read(file.getvalue()), SOURCE), state, SOURCE, "tower")
    assert found.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in found.items())


def test_text_below_its_own_name_or_at_the_root_is_the_same(state):
    other = {name.removeprefix("text."): value for name, value in state.items()}
    assert all(torch.equal(value, state[name]) for name, value in fitted(other, state, SOURCE, "tower").items())
    plain = clip().state_dict()
    custom = {name if name.startswith(("visual.", "logit_scale")) else f"text.{name}": plain[name] for name in plain}
    assert all(torch.equal(value, plain[name]) for name, value in fitted(custom, plain, SOURCE, "tower").items())


def test_the_chosen_weights_are_reported(state, caplog):
    without_prefix(before("model.", state) | before("model_ema.", state), SOURCE)
    assert "weights.pt: has weights twice; 'model' is read, 'model_ema' is not." in caplog.text
    without_prefix(before("clip.", state) | {"head.x": torch.zeros(1)}, SOURCE)
    assert "weights.pt: outside 'clip', head.x is not read (1 in all)." in caplog.text


def test_different_weights_of_equal_standing_are_refused(state):
    both = before("a.", state) | before("b.", zeros(state))
    refused(lambda: without_prefix(both, SOURCE), "different weights under 'a' and under 'b'", kind=ValueError)


def test_a_checkpoint_that_does_not_fit_is_one_line_with_both_shapes(state):
    name = next(each for each in state if each.startswith("visual."))
    without = {each: value for each, value in state.items() if each != name}
    more = {**without, "other": torch.zeros(1)}
    refused(lambda: fitted(without, state, SOURCE, "tower"), name, "0", kind=ValueError)
    refused(lambda: fitted(more, state, SOURCE, "tower"), name, "1", "other", kind=ValueError)
    position = next(each for each in state if each.endswith(("visual.positional_embedding", "pos_embed")))
    longer = {**state, position: torch.cat([state[position]] * 2, dim=-2)}
    shapes = f"{tuple(longer[position].shape)} in the file and {tuple(state[position].shape)} in tower"
    refused(lambda: fitted(longer, state, SOURCE, "tower"), shapes, kind=ValueError)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(state, number):
    name = next(each for each in state if state[each].ndim == 2)
    broken = {**state, name: state[name].clone()}
    broken[name][0, 0] = number
    wide = {**state, name: torch.full(state[name].shape, 1e300, dtype=torch.float64)}  # infinite in float32
    whole = {**state, name: state[name].to(torch.int8)}
    for wrong, held in ((broken, "NaN or infinite"), (wide, "NaN or infinite"), (whole, "torch.int8 values. Use")):
        refused(partial(check, wrong, state, SOURCE, "tower"), f"{name} contains {held}", kind=ValueError)


def test_a_missing_temperature_is_initialised_and_reported(state, caplog):
    without = {name: value for name, value in state.items() if name != "logit_scale"}
    assert torch.equal(fitted(without, state, SOURCE, "tower")["logit_scale"], state["logit_scale"])
    assert "weights.pt: has no logit_scale; the temperature of tower is a new one." in caplog.text


def in_shards(folder: Path, state: State) -> Path:
    folder.mkdir()
    names, where = sorted(state), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: state[name].contiguous() for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


def test_sharded_checkpoint_has_one_digest_of_all_files(tmp_path, state):
    index = in_shards(tmp_path / "shards", halves(state))
    for path in (index, index.parent):
        found = read_checkpoint(path)
        assert found.keys() == state.keys()
        assert all(value.dtype != torch.float16 for value in found.values())
        assert is_path(str(path))
        assert are_here("ViT-B-32", str(path))
    first = weights_digest("ViT-B-32", str(index.parent))
    assert first == weights_digest("ViT-B-32", str(index))
    with pytest.raises(ValueError, match="has 2 files, but sha256 applies to one. Omit it"):
        read_checkpoint(index, "0" * 64)
    save_file({"other": torch.zeros(1)}, index.parent / "model-00002-of-00002.safetensors")
    assert first != weights_digest("ViT-B-32", str(index))
    (index.parent / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match="00002-of-00002.safetensors: no such weights file, but model.safetensors"
    ):
        read_checkpoint(index)
    assert weights_digest("ViT-B-32", str(index))


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": f"{'9' * 300}.safetensors"}}))
    for path in (index, tmp_path / ("9" * 300)):
        with pytest.raises(FileNotFoundError, match="no such weights file"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "is not an index of weights"),
        ("[1]", "is not an index of weights"),
        ("no json", "is not an index of weights"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "lists '../x.safetensors', which is not a file in its folder"),
        ('{"weight_map": {}}', "its weight_map is empty"),
        ('{"weight_map": {"a": "x.bin"}}', "lists 'x.bin', a pickle. Convert"),
    ],
)
def test_an_index_that_is_none_is_one_line(tmp_path, text, reason):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(lambda: files_of(tmp_path), reason, kind=ValueError)


def test_a_folder_without_weights_says_what_is_looked_for(tmp_path):
    refused(lambda: files_of(tmp_path), "the folder does not contain model.safetensors", kind=ValueError)


def test_a_part_of_a_checkpoint_and_an_adapters_folder_are_called_so(tmp_path, state):
    folder = in_shards(tmp_path / "shards", halves(state)).parent
    part = folder / "model-00001-of-00002.safetensors"
    refused(lambda: fitted(read_checkpoint(part), state, part, "it"), "part 1 of 2", "index.json", kind=ValueError)
    (folder / "model.safetensors.index.json").unlink()
    refused(lambda: files_of(folder), part.name, "model.safetensors.index.json", kind=ValueError)
    (folder / "adapter_config.json").write_text("{}")
    refused(lambda: files_of(folder), "contains an adapter (LoRA)", kind=ValueError)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth.tar", "w.ckpt", "pytorch_model.bin.2", "a/b", "~/x"])
def test_a_path_is_recognised_as_a_file(name):
    assert is_path(name)


@pytest.mark.parametrize("name", ["openai", "laion2b_s34b_b79k", "random", "shipped", "dfn2b.5"])
def test_a_tag_is_not_recognised_as_a_file(name):
    assert not is_path(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {"base_model.model.visual.proj.lora_A.weight": torch.zeros(2, 2)}, "contains an adapter (LoRA)"),
        (lambda state: {n: v for n, v in state.items() if n.startswith("visual.")}, "It lacks a complete text tower"),
        (lambda state: {n: v for n, v in state.items() if not n.startswith("visual.")}, "It lacks the image tower"),
    ],
)
def test_a_part_of_the_weights_is_called_what_it_is(state, change, message, caplog):
    refused(lambda: fitted(change(state), state, SOURCE, "it"), message, kind=ValueError)
    assert not caplog.text


def test_a_head_next_to_both_towers_is_dropped_and_reported(state, caplog):
    found = fitted({**state, "classifier.weight": torch.zeros(2, 2)}, state, SOURCE, "it")
    assert found.keys() == state.keys()
    assert "outside the towers, classifier.weight is not read (1 in all)" in caplog.text
    more = {**state, "visual.more": torch.zeros(2, 2)}
    refused(lambda: fitted(more, state, SOURCE, "it"), "1 tensor is unknown, such as visual.more", kind=ValueError)
