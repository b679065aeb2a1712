import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch

from ctvr.methods.backbone.clip import BlockSeams, Clip, TokenState, record_tokens
from ctvr.methods.layers.reduction.config import REDUCERS
from ctvr.methods.layers.reduction.plan import Step
from ctvr.methods.layers.reduction.reducers import (
    Reducer,
    combine,
    default_r,
    make_reducer,
    spread_factors,
    tempme_steps,
    tome_schedule,
    tome_steps,
)
from ctvr.methods.lora import LoraConfig
from ctvr.methods.settings import SettingError
from ctvr.orchestrator.config import build, flatten
from tests.methods.conftest import reducer_config
from tests.methods.layers.reduction.token_log import token_log
from tests.refusing import refused, refuses

FIXTURES = Path(__file__).parents[2] / "fixtures"


def tempme(tokens=50, blocks=12, **settings):
    config = reducer_config("tempme", **settings)
    return token_log(tempme_steps(config, blocks, tokens), tokens, config.num_frames)


def small(clip, name, **settings):
    return make_reducer(reducer_config(name, **settings), clip.vision)


def encode(clip, reducer, frames):
    with torch.no_grad():
        return clip.vision(frames, reducer.seams())


# ------------------------------------------------------------------------------------- schedules


def test_vit_b_32_and_12_frames_take_the_path_of_the_paper():
    within = [(12, n, n - 2) for n in range(50, 34, -2)]
    assert tempme() == [*within, (6, 48, 44), (3, 62, 56), (1, 118, 107), (1, 107, 97)]


def test_vit_b_16_and_64_frames_take_the_paths_of_the_paper():
    assert tempme(tokens=197)[-4:] == [(6, 141, 113), (3, 136, 109), (1, 197, 158), (1, 158, 127)]
    assert tempme(num_frames=64)[-4:] == [(16, 96, 87), (4, 244, 220), (1, 616, 555), (1, 555, 500)]
    assert tempme(tokens=197, num_frames=64)[-1] == (1, 830, 664)


def test_a_tower_without_class_tokens_merges_what_one_with_them_does():
    """UMT has no class tokens; the same patches have the same rates."""
    for patches in (49, 64, 65, 196):
        config = reducer_config("tempme", num_frames=12)
        with_class, without = tempme_steps(config, 12, patches + 1), tempme_steps(config, 12, patches, classes=0)
        assert default_r(12, patches, 0) == default_r(12, patches + 1)
        assert [step.intra for step in without[:8]] == [step.intra for step in with_class[:8]]
    assert [step.intra for step in tome_steps(3, 9, 4, classes=0)] == [4, 2, 1]
    assert [step.intra for step in tome_steps(3, 9, 4)] == [4, 2, 1]


def test_tomes_schedules_are_those_of_its_code_a_number_a_list_or_a_pair(compared):
    """The table is that of parse_r in facebookresearch/ToMe."""
    table = json.loads((FIXTURES / "recipes_released.json").read_text())["tome"]["parse_r"]
    assert len(table) > 60
    for row in table:
        blocks, r = row["layers"], row["r"]
        is_pair = isinstance(r, list) and len(r) == 2 and isinstance(r[1], float)
        found = tome_schedule(blocks, *r) if is_pair else tome_schedule(blocks, r)
        compared("tome", "recipe", found, row["out"][:blocks], 0.0)  # beyond the last block its code uses none
    assert [step.intra for step in tome_steps(4, 17, (5, 0, 4))] == [5, 0, 4, 0]


def test_a_list_and_an_inflection_are_settings(small_clip):
    made = build(LoraConfig, {"reducer.name": "tome", "reducer.r": "5,0,4"}, "method")
    assert made.reducer.r == (5, 0, 4)
    assert build(LoraConfig, {"reducer.name": "tome", "reducer.r": "3"}, "method").reducer.r == 3
    assert build(LoraConfig, flatten(made), "method") == made
    steps = make_reducer(reducer_config("tome", r=2, inflection=-1), small_clip.vision).steps
    assert [step.intra for step in steps] == [4, 2, 1, 0]


def test_tome_leaves_26_and_77_tokens_of_each_frame():
    assert token_log(tome_steps(12, 50, 2), 50, 12)[-1] == (12, 28, 26)
    assert token_log(tome_steps(12, 197, 10), 197, 12)[-1][2] == 77


@pytest.mark.parametrize(
    ("settings", "groups", "tokens"),
    [
        ({"clip_blocks": (8, 9), "clip_groups": (3, 4)}, 1, 134),
        ({"clip_blocks": (8,), "clip_groups": (12,)}, 1, 189),
        ({"clip_blocks": (8, 9), "clip_groups": (2, 2)}, 3, 46),
        ({"clip_blocks": (8,), "clip_groups": (3,)}, 4, 49),
        ({"clip_blocks": (6, 8, 10)}, 1, 90),
        ({"clip_blocks": (3, 6, 9)}, 1, 76),
        ({"clip_blocks": (0, 4, 8)}, 1, 64),
        ({"num_frames": 18}, 1, 144),
        ({"join_clips": False}, 12, 9),
        ({"r": 0, "keep_cross": 100, "keep_intra": 100}, 1, 600),
        ({"num_frames": 1}, 1, 26),
    ],
)
def test_every_schedule_of_the_paper_ends_with_its_tokens(settings, groups, tokens):
    assert tempme(**settings)[-1][::2] == (groups, tokens)


def test_shallow_towers_join_all_frames_before_their_last_block():
    log = tempme(tokens=17, blocks=4, num_frames=8)
    assert [groups for groups, _, _ in log] == [8, 4, 1, 1]


@pytest.mark.parametrize(
    ("frames", "factors"), [(12, (2, 2, 3)), (64, (4, 4, 4)), (18, (2, 3, 3)), (8, (2, 2, 2)), (7, (7,)), (1, ())]
)
def test_frames_are_spread_over_the_blocks_as_evenly_as_they_factor(frames, factors):
    assert spread_factors(frames, 3) == factors


CONFIGS: list[tuple[str, dict[str, object], str, str]] = [  # reducer, its settings, the one at fault, part of the fault
    ("tempme", {"r": -1}, "r", "r=0"),
    ("tempme", {"keep_cross": 0}, "keep_cross", "0 100]"),
    ("tempme", {"clip_groups": (5, 2)}, "clip_groups", "num_frames=12"),
    ("tempme", {"clip_blocks": (9, 8)}, "clip_blocks", ""),
    ("tempme", {"num_frames": 0}, "num_frames", ""),
    ("testa", {"r_frames": -1}, "r_frames", "r_frames=0"),
    ("testa", {"temporal_rank": 0}, "temporal_rank", "1 0"),
    ("diffrate", {"prune_to": (17, 9)}, "prune_to", "2"),
    ("diffrate", {"search_macs": 3.0, "prune_to": (17, 9), "merge_to": (17, 9)}, "search_macs", ""),
    ("diffrate", {"search_macs": 0.0}, "search_macs", "0 0.0"),
    ("diffrate", {"lr_rates": 0.1}, "lr_rates", "search_macs"),
    ("evit", {"keep_rate": 0.0}, "keep_rate", "0 1] 0.0"),
    ("evit", {"anneal_steps": -1}, "anneal_steps", "0 -1"),
    ("sta", {"stages": (2, 1)}, "stages", ""),
    ("tome", {"r": (5, 0, 4), "inflection": 0.5}, "r", ""),
    ("tome", {"inflection": 2}, "inflection", "[-1 1] 2"),
]


@pytest.mark.parametrize(("name", "settings", "setting", "values"), CONFIGS)
def test_settings_of_a_reducer_out_of_range_are_refused(name, settings, setting, values):
    with refuses(*values.split(), kind=SettingError) as error:
        reducer_config(name, **settings)
    assert error.value.settings("")[0] == setting


ALL = "tome tome_shared tempme sta testa"
VALUES: list[tuple[dict[str, object], str, tuple[str, ...], str]] = [  # values, setting at fault, correction, names
    ({"reducer.name": "tempme", "reducer.r": "5,0,4"}, "r", (), "3"),
    ({"reducer.name": "evitt"}, "name", ("method.reducer.name=evit",), "'evitt'"),
    ({"reducer.name": "tome", "reducer.r": -1}, "r", (), "-1 method.reducer.r=0"),
    ({"reducer.keep": 1}, "keep", (), "'keep_rate'"),
    *(
        ({"reducer.name": name, f"reducer.{setting}": 1}, setting, (), owners)
        for name, setting, owners in (
            ("tome", "keep_cross", "tempme"),
            ("tome", "keep_rate", "evit"),
            ("tome", "r_frames", "testa"),
            ("tome", "search_step", "diffrate"),
            ("evit", "r", ALL),
            ("evit", "inflection", "tome tome_shared"),
            ("none", "num_frames", "tempme"),
        )
    ),
]


@pytest.mark.parametrize(("values", "setting", "write", "named"), VALUES)
def test_mistakes_in_a_group_name_the_setting_as_it_was_typed(values, setting, write, named):
    settings = (f"method.reducer.{setting}",)
    refused(lambda: build(LoraConfig, values, "method"), *named.split(), settings=settings, write=write)


def test_a_group_is_written_by_its_name():
    refused(lambda: build(LoraConfig, {"reducer": "evit"}, "method"), "method.reducer.name=none|tome")
    refused(lambda: build(LoraConfig, {"reducr.name": "evit"}, "method"), write=("method.reducer.name=evit",))


SCHEDULES: dict[str, Callable[[Clip], object]] = {
    "reducer.merge_to 2 4": lambda clip: small(clip, "diffrate", prune_to=(17, 9), merge_to=(17, 9)),
    "reducer.r=3,4 reducer.name=sta 3": lambda clip: small(clip, "sta", r=(3, 4)),
    "reducer.r_frames=3,4 reducer.name=testa 1": lambda clip: small(clip, "testa", r_frames=(3, 4)),
    "0..3": lambda clip: small(clip, "evit", stages=(3, 6)),
    "clip_groups": lambda clip: tempme(clip_blocks=(8, 9)),
    "blocks 0..3 8": lambda clip: tempme(blocks=4, clip_blocks=(8,), clip_groups=(12,)),
    "reducer.num_frames=8": lambda clip: encode(
        clip, small(clip, "tempme", num_frames=12), torch.randn(1, 8, 3, 32, 32)
    ),
    "0": lambda clip: combine([BlockSeams(between=len)], [BlockSeams(between=len)]),
    "2 1": lambda clip: combine([BlockSeams(between=len)], [BlockSeams(between=len)] * 2),
}


@pytest.mark.parametrize("values", SCHEDULES)
def test_a_schedule_that_does_not_fit_the_tower_is_refused(small_clip, values):
    refused(lambda: SCHEDULES[values](small_clip), *values.split(), kind=ValueError)


# ------------------------------------------------------------------------------------- behavior


def test_the_tower_logs_what_the_schedule_says(small_clip):
    frames = torch.randn(2, 8, 3, 32, 32)
    for settings in (
        {"name": "tempme", "num_frames": 8},
        {"name": "tome", "r": 3},
        {"name": "tome_shared"},
        {"name": "evit", "keep_rate": 0.6},
        {"name": "evit", "fuse": False},
        {"name": "sta", "r": (3, 0, 5)},
        {"name": "diffrate"},
        {"name": "testa"},
        {"name": "testa", "stages": (0, 2), "r_frames": (2, 9), "one_class": True},
    ):
        reducer = small(small_clip, **settings)
        with record_tokens() as states:
            features = encode(small_clip, reducer, frames)
        assert states[0].log == token_log(reducer.steps, small_clip.vision.num_tokens, 8)
        assert features.shape == (2, 8, 16)


NOTHING = {
    "none": {},
    "tome": {"r": 0},
    "tome_shared": {"r": 0},
    "tempme": {"r": 0, "keep_cross": 100, "keep_intra": 100, "join_clips": False},
    "evit": {"keep_rate": 1.0},
    "sta": {"r": 0},
    "diffrate": {"prune_to": (17,) * 4, "merge_to": (17,) * 4},
    "testa": {"r": 0, "r_frames": 0},
}


def test_every_reducer_is_tried():
    assert list(NOTHING) == list(REDUCERS)


@pytest.mark.parametrize("name", NOTHING)
def test_a_reducer_that_merges_and_joins_nothing_is_plain_clip(small_clip, name):
    frames = torch.randn(2, 4, 3, 32, 32)
    out = encode(small_clip, small(small_clip, name, num_frames=4, **NOTHING[name]), frames)
    torch.testing.assert_close(out, small_clip.vision(frames), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in NOTHING if name != "none"])
def test_videos_do_not_see_each_other(small_clip, name):
    frames = torch.randn(3, 6, 3, 32, 32)
    reducer = small(small_clip, name, num_frames=6)
    together = encode(small_clip, reducer, frames)
    apart = torch.cat([encode(small_clip, reducer, frames[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)


def test_tome_keeps_frames_apart_and_tempme_does_not(small_clip):
    torch.manual_seed(0)  # in 3 of 100 draws sta keeps the same patches of a frame whatever the others show
    frames = torch.randn(1, 4, 3, 32, 32)
    other = frames.clone()
    other[0, 1:] = torch.randn(3, 3, 32, 32)
    for name, independent in (("tome", True), ("evit", True), ("diffrate", True), ("sta", False), ("tempme", False)):
        reducer = small(small_clip, name, num_frames=4)
        same = torch.equal(encode(small_clip, reducer, frames)[0, 0], encode(small_clip, reducer, other)[0, 0])
        assert same == independent


def test_shared_merging_of_a_still_video_equals_merging_frame_by_frame(small_clip):
    still = torch.randn(2, 1, 3, 32, 32).expand(2, 5, 3, 32, 32)
    torch.testing.assert_close(
        encode(small_clip, small(small_clip, "tome_shared", r=3), still),
        encode(small_clip, small(small_clip, "tome", r=3), still),
    )


def test_shared_merging_gives_all_frames_the_same_sizes(small_clip):
    with record_tokens() as states:
        encode(small_clip, small(small_clip, "tome_shared", r=3), torch.randn(2, 5, 3, 32, 32))
    sizes = states[0].sizes.unflatten(0, (2, 5))
    assert torch.equal(sizes, sizes[:, :1].expand_as(sizes))
    assert not torch.equal(sizes[0], sizes[1])


def test_class_tokens_come_back_one_for_each_frame_in_temporal_order(small_clip):
    """With attention and MLP switched off, a class token leaves unchanged, except for its position in the video."""
    for block in small_clip.vision.blocks:
        for module in (block.attn.out, block.mlp.c_proj):
            torch.nn.init.zeros_(module.weight)
            torch.nn.init.zeros_(module.bias)
    small_clip.vision.ln_post = torch.nn.Identity()
    small_clip.vision.proj = torch.nn.Parameter(torch.eye(32))
    reducer = small(small_clip, "tempme", num_frames=12, clip_blocks=(1, 2), clip_groups=(3, 4))
    with torch.no_grad():
        reducer.positions["1"].copy_(torch.arange(12.0)[:, None].expand(12, 32))
    out = encode(small_clip, reducer, torch.randn(2, 12, 3, 32, 32))
    steps = out - out[:, :1]
    torch.testing.assert_close(steps, torch.arange(12.0)[None, :, None].expand(2, 12, 32), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in NOTHING if name != "none"])
def test_every_reducer_works_on_towers_of_bfloat16(small_clip, name):
    reducer = small(small_clip, name, num_frames=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert encode(small_clip, reducer, torch.randn(2, 4, 3, 32, 32)).isfinite().all()


def test_sizes_add_up_to_the_patches_of_all_joined_frames(small_clip):
    with record_tokens() as states:
        encode(small_clip, small(small_clip, "tempme", num_frames=8), torch.randn(2, 8, 3, 32, 32))
    assert states[0].sizes.sum(1).flatten().tolist() == [8.0 * 17, 8.0 * 17]
    assert states[0].sizes[:, :8].eq(1).all()


def test_merged_duplicates_attend_like_the_tokens_they_stand_for(small_clip):
    """A class token sees no difference between n equal patches and one patch of size n (ToMe, eq. 1)."""
    attention = small_clip.vision.blocks[0].attn
    y = torch.randn(2, 5, 32)
    sizes = torch.tensor([1.0, 3.0, 1.0, 2.0, 1.0])
    long = y.repeat_interleave(sizes.long(), dim=1)
    with torch.no_grad():
        short, _ = attention(y, BlockSeams(), TokenState(2, sizes=sizes[None, :, None].expand(2, -1, -1)))
        full, _ = attention(long, BlockSeams(), TokenState(2))
        flat, _ = attention(y, BlockSeams(), TokenState(2, sizes=sizes[None, :, None], proportional=False))
        plain, _ = attention(y, BlockSeams(), TokenState(2))
    torch.testing.assert_close(short[:, 0], full[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(flat, plain, rtol=0, atol=0)


def test_positions_start_at_zero_and_change_nothing(small_clip):
    frames = torch.randn(2, 6, 3, 32, 32)
    with_positions = small(small_clip, "tempme", num_frames=6)
    without = small(small_clip, "tempme", num_frames=6, positions="none")
    assert [tuple(p.shape) for p in with_positions.parameters()] == [(6, 32), (3, 32)]
    assert list(without.parameters()) == []
    torch.testing.assert_close(encode(small_clip, with_positions, frames), encode(small_clip, without, frames))


def test_the_released_code_adds_positions_only_where_it_merges(small_clip):
    settings = {"name": "tempme", "num_frames": 6, "r": 0, "keep_cross": 100, "keep_intra": 100}
    assert list(small(small_clip, **settings, positions="merging").parameters()) == []
    assert len(list(small(small_clip, **settings, positions="always").parameters())) == 2


def test_a_clip_block_equals_the_released_code(compared):
    """Block 8 of the released TempMe (width 64, 12 frames) reads the clip of the first two frames.

    Both merges, sizes and positions are compared. The authors' code made the outputs with random weights (LoRA is
    merged into them here).
    """
    with np.load(FIXTURES / "tempme_block8.npz") as file:
        weights = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
    with np.load(FIXTURES / "tempme_released.npz") as file:
        given = {name: torch.from_numpy(file[f"block8/{name}"]) for name in ("in", "in_size", "out", "out_size")}
    vision = {"layers": 1, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 56}
    text = {"context_length": 8, "vocab_size": 10, "width": 16, "heads": 1, "layers": 1}
    source = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text, quick_gelu=True)
    low, high = weights.pop("attn.TVPt_LoRA_a"), weights.pop("attn.TVPt_LoRA_b")
    positions = weights.pop("TVPt_Video_Positional_embedding")[0, :, 0]
    weights["attn.in_proj_weight"] += high @ low
    source.visual.transformer.resblocks[0].load_state_dict(weights)
    block = Clip(source, lambda texts: torch.empty(0), (0.5,) * 3, (0.5,) * 3).vision.blocks[0]
    reducer = Reducer([Step(group=2, cross=20, intra=4)], 64, num_frames=2, positions="always")
    state = TokenState(batch=1, frames=2, sizes=given["in_size"][..., None])
    with torch.no_grad():
        reducer.positions["0"].copy_(positions)
        out = block(given["in"], reducer.seams()[0], state)
    compared("tempme", "forward", out, given["out"])
    compared("tempme", "forward", state.sizes[..., 0], given["out_size"], 0.0)


# --------------------------------------------------------------------------------------- combine


def test_combined_seams_run_in_order_and_undo_in_reverse():
    def note(name):
        return lambda *args: (trace.append(name), args[-2])[1]

    trace: list[str] = []
    outer = [BlockSeams(before=note("a before"), after=note("a after"), q=note("a q"))]
    inner = [BlockSeams(before=note("b before"), after=note("b after"), q=note("b q"))]
    both = combine(outer, inner)[0]
    x = torch.zeros(1)
    both.before(x, None)
    both.after(x, None)
    both.q(x, x, None)
    assert trace == ["a before", "b before", "b after", "a after", "b q", "a q"]


def test_combined_seams_have_the_parts_of_both():
    seams = combine([BlockSeams(wants_keys=True, between=len)], [None])[0]
    assert seams.wants_keys
    assert seams.between is len


@pytest.mark.parametrize(
    ("name", "fits"),
    [("none", True), ("tome_shared", True), *((name, False) for name in ("tome", "tempme", "evit", "sta", "testa"))],
)
def test_cross_frame_attention_refuses_reducers_that_move_tokens(small_clip, name, fits):
    cross_frame = [BlockSeams()] * 2 + [BlockSeams(needs_alignment=True)] * 2
    reducer = small(small_clip, name, num_frames=4)
    if fits:
        assert len(combine(reducer.seams(), cross_frame)) == 4
    else:
        with pytest.raises(ValueError, match="reducer.name=tome_shared"):
            combine(reducer.seams(), cross_frame)
