import dataclasses
import json
import math
from pathlib import Path
from typing import Any
from unittest import mock

import open_clip
import pytest
import torch

from ctvr.methods.backbone.clip import Clip, record_tokens
from ctvr.methods.base import Batch, Task
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.layers.adapter_groups import RouterStack
from ctvr.methods.layers.losses.contrastive import contrastive, cross_task
from ctvr.methods.layers.pooling import mean_pool
from tests.methods.conftest import make_batch, make_small_clip, make_task, reducer_config
from tests.methods.released import floats, read, shape_of, transformers_clip
from tests.methods.steps import train_task

SMALL = {"rank": 4, "lora_alpha": 16.0, "dropout": 0.0}


def make(backbone: Clip | None = None, **settings) -> FrameFusionMoE:
    torch.manual_seed(0)
    return FrameFusionMoE(FrameFusionMoEConfig(**{**SMALL, **settings}), backbone or make_small_clip())


def randomise(method: FrameFusionMoE) -> FrameFusionMoE:
    """Give every parameter that the method has added a different value."""
    torch.manual_seed(1)
    for module in (method.ffa, method.tame):
        for parameter in module.parameters():
            parameter.data = parameter.data + 0.1 * torch.randn(parameter.shape)
    return method


def train(method: FrameFusionMoE, task: Task, batch: Batch, lr: float = 0.05) -> None:
    """Take two training steps on one batch, and store its videos as those that are searched."""
    train_task(method, task, [batch] * 2, lr)
    with torch.no_grad():
        method.on_gallery_stored(task, method.encode_video(batch.frames))


def learned(tasks: int = 2, **settings) -> FrameFusionMoE:
    method = make(**settings)
    for index in range(tasks):
        train(method, make_task(index), make_batch(seed=index))
    return method.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ffa_mix": "convex", "ffa_direction": "alternate", "ffa_placement": "deepest"},
        {"ffa_init": "zero_out", "alpha_init": 1.0},
        {"ffa_init": "torch"},
        {"ffa_output": False},
        {"use_prototypes": False, "first_task_bypass": False},
    ],
)
def test_untrained_it_is_clip(small_clip, batch, settings):
    method = make(small_clip, **settings)
    method.begin_task(make_task(0))
    with torch.no_grad():
        torch.testing.assert_close(method.encode_video(batch.frames), mean_pool(small_clip.vision(batch.frames)))
        expected = torch.nn.functional.normalize(small_clip.text(batch.tokens), dim=-1)
        for task in (None, 0, 1):
            torch.testing.assert_close(method.eval().encode_text(batch.tokens, task), expected)


def test_adapters_sit_at_the_named_end_and_fit_any_depth(small_clip):
    for count, placement, blocks in (
        (3, "shallowest", "012"),
        (3, "deepest", "123"),
        (10, "shallowest", "0123"),
        (10, "deepest", "0123"),
        (0, "deepest", ""),
    ):
        assert [*make(small_clip, ffa_layers=count, ffa_placement=placement).ffa] == [*blocks]


def test_odd_blocks_ask_the_next_frame_where_directions_alternate(small_clip):
    method = make(small_clip, ffa_direction="alternate", ffa_layers=3, ffa_placement="deepest")
    assert {name: block.direction for name, block in method.ffa.items()} == {"1": "next", "2": "previous", "3": "next"}
    assert {block.direction for block in make(small_clip).ffa.values()} == {"previous"}


def test_frames_of_a_still_video_keep_equal_features(batch):
    method = make(alpha_init=0.5)
    still = batch.frames[:, :1].expand(-1, 3, -1, -1, -1)
    frames = method.backbone.vision(still, method._vision_seams())
    torch.testing.assert_close(frames, frames[:, :1].expand_as(frames))
    one = method.backbone.vision(still[:, :1], method._vision_seams())
    torch.testing.assert_close(frames, one.expand_as(frames))


def test_with_previous_frames_as_queries_a_frame_never_sees_the_future(batch):
    method = randomise(make(alpha_init=0.5))
    changed = batch.frames.clone()
    changed[:, 2] += 1
    before, after = (method.backbone.vision(x, method._vision_seams()) for x in (batch.frames, changed))
    torch.testing.assert_close(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2], after[:, 2])


def test_experts_are_equal_after_task_1(batch):
    method = learned(tasks=1)
    assert all(len(adapter.experts.B) == 1 for block in method.tame for adapter in block.values())
    method.begin_task(make_task(1))
    for block in method.tame:
        for adapter in block.values():
            assert len(adapter.experts.B) == 10
            assert adapter.experts.B[0].abs().max() > 0
            assert all(torch.equal(b, adapter.experts.B[0]) for b in adapter.experts.B)
    before = [method.encode_text(batch.tokens, task) for task in (0, 1, 2)]
    for block in method.tame:
        for adapter in block.values():
            adapter.router.route.data.normal_()
    for task, features in enumerate(before):
        torch.testing.assert_close(method.encode_text(batch.tokens, task), features)
        torch.testing.assert_close(features, before[0])


def test_a_caption_has_a_feature_for_each_task_it_searches(batch):
    method = learned()
    assert method.declared.task_conditioned_text
    prototypes = [p.detach().clone() for p in method.prototypes]
    present = method.encode_text(batch.tokens)
    assert torch.equal(present, method.encode_text(batch.tokens, 1))
    method.prototypes[1].data.mul_(-30)
    assert not torch.allclose(method.encode_text(batch.tokens, 1), present, atol=1e-4)
    torch.testing.assert_close(method.prototypes[0], prototypes[0])


def test_captions_that_search_task_1_never_ask_the_router(batch):
    method = learned()
    first = method.encode_text(batch.tokens, 0)
    for block in method.tame:
        for adapter in block.values():
            adapter.router.route.data.normal_()
    assert torch.equal(method.encode_text(batch.tokens, 0), first)


def test_without_bypass_task_1_is_routed_as_any_other(batch):
    method = make(first_task_bypass=False)
    method.begin_task(make_task(0))
    assert {group["name"]: len(group["params"]) for group in method.param_groups()}["tame"] == 4 * 4 * (1 + 10 + 2)
    train(method, make_task(0), batch)
    assert not torch.equal(method.tame[0]["q"].experts.B[0], method.tame[0]["q"].experts.B[1])


def test_without_prototypes_a_caption_has_one_feature(batch):
    method = learned(use_prototypes=False)
    assert not method.declared.task_conditioned_text
    assert len(method.prototypes) == 0
    assert torch.equal(method.encode_text(batch.tokens, 0), method.encode_text(batch.tokens))


@pytest.mark.parametrize(("off", "tower"), [("use_ffa", "video"), ("use_tame", "text")])
def test_an_ablated_tower_stays_clip(batch, off, tower):
    method = learned(**{off: False})
    clip = method.backbone
    with torch.no_grad():
        video = torch.allclose(method.encode_video(batch.frames), mean_pool(clip.vision(batch.frames)), atol=1e-6)
        own = torch.nn.functional.normalize(clip.text(batch.tokens), dim=-1)
        text = torch.allclose(method.encode_text(batch.tokens, 0), own, atol=1e-6)
    assert (video, text) == (tower == "video", tower == "text")


def test_without_tame_one_adapter_without_a_router_serves_all_tasks(batch):
    """Preset `no-tame` equals one routed expert, whose gate is 1, and its text tower changes in every task."""
    override = {name.removeprefix("method."): value for name, value in FrameFusionMoE.PRESETS["no-tame"].items()}
    method = make(**override)
    train(method, make_task(0), batch)
    before = method.encode_text(batch.tokens, 0).detach()
    train(method, make_task(1), batch)
    assert not method.declared.text_is_frozen
    assert not method.declared.task_conditioned_text
    assert all(adapter.router is None for block in method.tame for adapter in block.values())
    after = method.encode_text(batch.tokens, 0)
    assert not torch.allclose(after, before, atol=1e-4)
    assert torch.equal(method.encode_text(batch.tokens, 1), after)
    assert method.counted_parameters()["trained"] < make(num_experts=1, top_k=1).counted_parameters()["trained"]
    for block in method.tame:
        for adapter in block.values():
            adapter.grow(1, 1)
    method.eval()
    torch.testing.assert_close(method.encode_text(batch.tokens, 0), after)


def test_only_the_prototype_of_the_current_task_moves():
    method = make()
    train(method, make_task(0), make_batch())
    before = [p.detach().clone() for p in method.prototypes]
    train(method, make_task(1), make_batch(seed=1), lr=1e-1)
    moved = [not torch.equal(p, old) for p, old in zip(method.prototypes, before)]
    assert moved == [False, True, False]
    clip = zip(method.backbone.state_dict().values(), make_small_clip().state_dict().values(), strict=True)
    assert all(torch.equal(now, pretrained) for now, pretrained in clip)


def test_each_task_has_its_rates(small_clip):
    method = make(small_clip, lr_text=1.0, lr_vision=2.0, lr_other=3.0, lr_text_first=4.0, lr_vision_first=5.0)
    for index, rates in ((0, {"tame": 4.0, "ffa": 5.0}), (1, {"tame": 1.0, "ffa": 2.0, "alpha_and_prototypes": 3.0})):
        method.begin_task(make_task(index))
        groups = method.param_groups()
        assert rates.items() <= {group["name"]: group["lr"] for group in groups}.items()


def test_task_1_has_no_cross_task_loss(batch):
    method = make()
    method.begin_task(make_task(0))
    torch.testing.assert_close(method.losses(batch)["contrastive"], contrastive(method.logits(batch)))
    assert list(method.losses(batch)) == ["contrastive"]


def references(method: FrameFusionMoE, videos: torch.Tensor) -> torch.Tensor:
    """Return the references of the cross-task loss of the current task in its next step."""
    return method._former.references(method._sources(method._task.index), videos)


def second_task(**settings) -> FrameFusionMoE:
    method = make(**settings)
    method.begin_task(make_task(0))
    method.on_gallery_stored(make_task(0), torch.nn.functional.normalize(torch.randn(5, 16), dim=-1))
    method.begin_task(make_task(1))
    return method.eval()


def test_equation_9(batch):
    method = second_task()
    logits, terms = method.logits(batch), method.losses(batch)
    references = method.scale() * method.encode_text(batch.tokens) @ method._galleries[0].mT
    torch.testing.assert_close(terms["contrastive"], 0.4 * contrastive(logits))
    torch.testing.assert_close(terms["cross_task"], 0.6 * cross_task(logits, references))
    one_direction = torch.nn.functional.cross_entropy(logits, torch.arange(6))
    assert terms["cross_task"] >= 0.6 * one_direction


def test_nothing_stored_makes_the_cross_task_loss_l_t2v(batch):
    method = make(beta=1.0)
    method.begin_task(make_task(1))
    expected = torch.nn.functional.cross_entropy(method.logits(batch), torch.arange(6))
    torch.testing.assert_close(method.losses(batch)["cross_task"], expected)


def test_beta_of_zero_never_touches_the_stored_features(batch):
    method = second_task(beta=0.0)
    assert list(method.losses(batch)) == ["contrastive"]


def test_references_are_the_videos_of_former_tasks_only(batch):
    method = make()
    features = torch.nn.functional.normalize(torch.randn(9, 16), dim=-1)
    for index in range(3):
        method.begin_task(make_task(index))
        assert torch.equal(references(method, features), features[: 3 * index])
        method.on_gallery_stored(make_task(index), features[3 * index : 3 * index + 3])


def test_references_setting_selects_all_or_the_next_batch():
    videos = torch.zeros(2, 16)
    assert [len(references(second_task(references=how), videos)) for how in ("all", "batch")] == [5, 2]


def test_training_videos_can_be_the_references_and_are_stored_once_each(batch):
    method = make(reference_source="train")
    method.begin_task(make_task(0))
    twice = dataclasses.replace(batch, video_ids=torch.tensor([0, 1, 2, 0, 1, 5]))
    method.end_task(make_task(0), [twice])
    assert torch.equal(method.train_features, method.encode_video(batch.frames)[[0, 1, 2, 5]])
    method.on_gallery_stored(make_task(0), torch.zeros(3, 16))
    method.begin_task(make_task(1))
    assert torch.equal(references(method, method.train_features), method.train_features)
    method.end_task(make_task(1), [batch])
    assert len(method.train_features) == 10
    assert len(references(method, method.train_features)) == 4
    assert "train_features" in method.state_dict()


def test_the_loss_of_the_code_is_a_sum_with_a_fixed_temperature(batch):
    method = make(loss_reduction="sum", logit_scale=4.60)
    method.begin_task(make_task(0))
    assert float(method.scale()) == pytest.approx(math.exp(4.60))
    torch.testing.assert_close(method.losses(batch)["contrastive"], 2 * contrastive(method.logits(batch)))


def test_similarities_and_losses_stay_float32_in_mixed_precision(batch):
    method = randomise(second_task())
    exact = method.losses(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = method.losses(batch)
    for name, term in mixed.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, exact[name], rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("preset", "num_tasks", "paper", "trained", "first"),
    [
        ("paper", 10, 46_801_933, 41_417_226, 26_769_418),  # table 1 prints 46.80M
        ("released", 10, 46_801_933, 41_417_226, 26_769_418),
        ("paper", 20, 46_807_053, 41_417_226, 26_769_418),
        ("paper-actnet", 10, 38_691_853, 38_031_884, 31_494_156),
        ("released-actnet", 10, 38_691_853, 38_031_884, 31_494_156),
    ],
)
def test_parameters_of_vit_b_32_are_those_of_the_paper(preset, num_tasks, paper, trained, first):
    settings = FrameFusionMoE.PRESETS[preset]
    config = {k.removeprefix("method."): v for k, v in settings.items() if k.startswith("method.")}
    with torch.device("meta"):
        source = open_clip.CLIP(**open_clip.get_model_config("ViT-B-32-quickgelu"))
        clip = Clip(source, lambda texts: torch.zeros(1), (0.5,) * 3, (0.5,) * 3)
        method = FrameFusionMoE(FrameFusionMoEConfig(**config), clip)
        method.begin_task(make_task(0, num_tasks))
    assert sum(p.numel() for p in clip.parameters()) == 151_277_313
    assert method.counted_parameters() == {"paper": paper, "trained": trained, "trained_first_task": first}


FIRST_BLOCKS = Path(__file__).parent / "fixtures" / "framefusion_first_blocks.npz"


def num_blocks(state: dict[str, torch.Tensor], tower: str = "vision_model") -> int:
    return sum(name.startswith(f"{tower}.encoder.layers.") and name.endswith(".mlp.fc1.bias") for name in state)


def released_clip(state: dict[str, torch.Tensor]) -> Clip:
    """Return the reference's CLIP, with as many blocks of each tower as the file holds."""
    vision, text = (64, num_blocks(state), 4), (48, num_blocks(state, "text_model"), 4)
    return transformers_clip(shape_of(vision, text, embed=32, image=32, patch=8, context=77, vocab=512), state)


def released_method(state: dict[str, torch.Tensor], **settings) -> FrameFusionMoE:
    """Return the method with preset `released` and the reference's weights."""
    preset = FrameFusionMoE.PRESETS["released"]
    config = {k.removeprefix("method."): v for k, v in preset.items() if k.startswith("method.")}
    config |= {"rank": 4, "lora_alpha": 16.0, "ffa_layers": num_blocks(state) - 2, **settings}
    method = FrameFusionMoE(FrameFusionMoEConfig(**config), released_clip(state)).eval()
    for index in (1, 0):  # the first one that is routed makes all experts
        method.begin_task(make_task(index, 10))
    own: dict[str, torch.Tensor] = {}
    if method.prototypes:
        own |= {f"prototypes.{i}": state[f"text_model.task_prototype.{i}"] for i in range(10)}
    for layer in method.ffa:
        other = f"vision_model.encoder.layers.{layer}.self_attn"
        own[f"ffa.{layer}.alpha"] = state[f"{other}.alpha"].reshape(())
        for place in ("q", "k", "v", "out"):
            for kind in ("weight", "bias"):
                theirs = state[f"{other}.frame_cross_attention.{place}_proj.{kind}"]
                own[f"ffa.{layer}.attention.{place}.{kind}"] = theirs
    for layer in range(num_blocks(state, "text_model")):
        for place in ("q", "k", "v", "out"):
            lora = f"text_model.encoder.layers.{layer}.self_attn.{place}_lora"
            adapter = f"tame.{layer}.{place}"
            own[f"{adapter}.router.route"] = state[f"{lora}.lora_route.weight"]
            own[f"{adapter}.router.noise"] = state[f"{lora}.w_noise.weight"]
            own[f"{adapter}.experts.A"] = state[f"{lora}.lora_A.weight"]
            own |= {f"{adapter}.experts.B.{i}": state[f"{lora}.lora_Bs.{i}.weight"] for i in range(10)}
    missing, unexpected = method.load_state_dict(own, strict=False)
    assert not unexpected
    assert all(name.startswith(("backbone.", "train_features")) for name in missing)
    return method


def as_state(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights that were stored exactly as float16."""
    named = {name.removeprefix("clipmodel."): value for name, value in tensors.items()}
    return {name: value.float() if value.is_floating_point() else value for name, value in named.items()}


@pytest.fixture(scope="module")
def state(shared):
    return as_state(read(shared / "reference" / "framefusion" / "ff_tiny_state.npz"))


@pytest.fixture(scope="module")
def io(shared):
    return read(shared / "reference" / "framefusion" / "ff_tiny_io.npz")


@pytest.fixture(scope="module")
def first_blocks():
    """Every clone has three blocks of the vision tower and one of the text tower."""
    found = read(FIRST_BLOCKS)
    return as_state(floats(found, "state/")), floats(found, "io/")


@pytest.fixture(scope="module")
def released(state):
    return released_method(state)


@pytest.mark.slow
def test_video_features_equal_the_released_code(compared, released, state, io):
    video = io["video"].float()
    with torch.no_grad():
        compared("framefusion_moe", "forward", released.encode_video(video), io["video_embed"])
        compared("framefusion_moe", "forward", released.encode_video(video[:, :1]), io["video_embed_T1"])
        long = video.reshape(1, 20, 3, 32, 32)[:, :12]
        compared("framefusion_moe", "forward", released.encode_video(long), io["video_embed_T12"])
        for count in (0, 4, 10, 12):
            method = released_method(state, ffa_layers=count)
            compared("framefusion_moe", "forward", method.encode_video(video), io[f"video_embed_applied{count}"])
        for block in method.ffa.values():
            block.alpha.zero_()
        compared("framefusion_moe", "forward", method.encode_video(video), io["video_embed_alpha0"])
    class_tokens_equal(compared, released, io)
    for task in (1, 2):
        gates_equal(compared, state, io, task)


def test_class_tokens_of_every_block_equal_the_released_code(compared, first_blocks):
    state, io = first_blocks
    class_tokens_equal(compared, released_method(state), io)


def class_tokens_equal(compared, method: FrameFusionMoE, io: dict[str, torch.Tensor]) -> None:
    tower, shape = method.backbone.vision, io["video"].shape[:2]
    with torch.no_grad():
        x, token_state = tower.embed(io["video"].float())
        compared("framefusion_moe", "forward", x[:, 0].unflatten(0, shape), io["vision_cls_hidden"][0])
        for layer, seams in enumerate(method._vision_seams()):
            token_state.layer = layer
            x = tower.blocks[layer](x, seams, token_state)
            compared("framefusion_moe", "forward", x[:, 0].unflatten(0, shape), io["vision_cls_hidden"][layer + 1])
        assert layer + 2 == len(io["vision_cls_hidden"])
        if "vision_cls_postln" in io:
            found = tower.ln_post(x[:, 0]).unflatten(0, shape)
            compared("framefusion_moe", "forward", found, io["vision_cls_postln"])


def test_text_features_of_every_prototype_equal_the_released_code(compared, released, state, io):
    with torch.no_grad():
        for padding in ("", "_77pad0"):
            for task in range(10):
                found = released.encode_text(io[f"input_ids{padding}"], task)
                compared("framefusion_moe", "forward", found, io[f"text_embed_protos{padding}"][task])
        method = released_method(state, use_prototypes=False)
        method.begin_task(make_task(1, 10))
        compared("framefusion_moe", "forward", method.encode_text(io["input_ids"]), io["text_embed_noproto"])
        method = released_method(state)
        for name, parameter in method.tame.named_parameters():
            if ".B." in name:
                parameter.zero_()
        compared("framefusion_moe", "forward", method.encode_text(io["input_ids"], 2), io["text_embed_loraB0"])


def test_gates_and_hidden_states_of_text_equal_the_released_code(compared, first_blocks):
    state, io = first_blocks
    for task in (1, 2):
        gates_equal(compared, state, io, task)


def gates_equal(compared, state: dict[str, torch.Tensor], io: dict[str, torch.Tensor], task: int) -> None:
    method = released_method(state)
    gates: list[torch.Tensor] = []
    hidden: list[torch.Tensor] = []
    tower, tokens = method.backbone.text, io["input_ids"]
    rows = torch.arange(len(tokens))
    for block in tower.blocks:
        block.register_forward_hook(lambda module, args, out: hidden.append(out[rows, tokens.argmax(dim=-1)].detach()))
    plain = RouterStack.gates

    def seen(*given: Any) -> torch.Tensor:
        gates.append(plain(*given))
        return gates[-1]

    with mock.patch.object(RouterStack, "gates", seen):
        method.encode_text(tokens, task)  # with gradients, or the last block makes one token of each caption
    found = torch.cat(gates, dim=1).detach().transpose(0, 1).unflatten(0, (len(hidden), 4))
    compared("framefusion_moe", "forward", found, io[f"gates_proto{task + 1}"])
    compared("framefusion_moe", "forward", torch.stack(hidden), io[f"text_eot_hidden_proto{task + 1}"][1:])


def test_losses_equal_the_released_code(compared, released, io, shared):
    expected = json.loads((shared / "reference" / "framefusion" / "ff_tiny.json").read_text())["losses"]
    batch = Batch(io["video"].float(), io["input_ids"], torch.arange(4), torch.zeros(4, dtype=torch.int64))
    with torch.no_grad():
        released.begin_task(make_task(0, 10))
        first = released.losses(batch)
        released.on_gallery_stored(make_task(0, 10), io["ref_video_embeds"])
        released.begin_task(make_task(1, 10))
        second = released.losses(batch)
    for found, theirs in (
        (first["contrastive"], expected["proto1"]["no_ref"]),
        (second["contrastive"], 0.4 * expected["proto2"]["nce_only"]),
        (second["cross_task"], 0.6 * expected["proto2"]["cross_only"]),
        (sum(second.values()), expected["proto2"]["ref_scale06"]),
    ):  # of hundreds: the share that they differ by
        compared("framefusion_moe", "loss", found / theirs, 1.0, 2e-5)


def test_a_shared_merging_plan_keeps_neighbouring_frames_aligned(small_clip, batch):
    """With equal frames a shared plan equals every frame's own plan, and FFA still reads the same positions."""
    method = make(small_clip, reducer=reducer_config("tome_shared", r=2))
    method.begin_task(make_task())
    with record_tokens() as states:
        features = method.encode_video(batch.frames)
    assert [tokens for _, _, tokens in states[-1].log] == [15, 13, 11, 9]
    assert torch.isfinite(features).all()
    assert not torch.allclose(features, make(small_clip).encode_video(batch.frames))


def test_reducer_that_differs_by_frame_is_refused(small_clip):
    with pytest.raises(ValueError, match="frames"):
        make(small_clip, reducer=reducer_config("tome"))
    for name in ("tome", "evit", "tempme", "testa"):  # nothing to align
        method = make(small_clip, reducer=reducer_config(name, num_frames=4), use_ffa=False)
        trained = {id(p) for group in method.param_groups() for p in group["params"]}
        assert {id(p) for p in method.reducer.parameters()} <= trained


def test_temporal_attention_is_counted_in_the_cost(small_clip, batch):
    with record_tokens() as states:
        FrameFusionMoE(FrameFusionMoEConfig(rank=4), small_clip).encode_video(batch.frames)
    groups, tokens, width = 6 * 3, 17, 32
    assert states[-1].extra_macs == 4 * groups * (4 * tokens * width**2 + 2 * tokens**2 * width)


@pytest.mark.parametrize("alpha", [4.0, 16.0])
def test_the_experts_are_scaled_by_alpha_over_rank(small_clip, alpha):
    """The factor is lambda of eq. 6."""
    method = make(small_clip, rank=4, lora_alpha=alpha)
    scales = {module.scale for module in method.modules() if isinstance(getattr(module, "scale", None), float)}
    assert scales == {alpha / 4}
