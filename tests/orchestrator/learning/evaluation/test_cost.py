import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ctvr.methods import METHODS, find_method
from ctvr.methods.adapter import Adapter, AdapterConfig
from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.lora import Lora, LoraConfig
from ctvr.methods.qdc import QDC, QDCConfig
from ctvr.methods.tempme import TempMe, TempMeConfig
from ctvr.methods.zero_shot import ZeroShot, ZeroShotConfig
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.learning.evaluation.cost import measure, query_cost, trained_parameters, video_cost
from ctvr.orchestrator.method_checks.subject import Subject
from tests.methods.conftest import make_batch, make_small_clip, make_task, reducer_config

B32, B16 = "ViT-B-32-quickgelu", "ViT-B-16-quickgelu"
KEYS = {
    "cost/trained_parameters",
    "cost/paper_parameters",
    "cost/video_gmacs",
    "cost/tokens_out",
    "cost/stored_floats_per_video",
    "cost/videos_per_second",
    "cost/peak_memory_mb",
}


@pytest.mark.parametrize(
    ("name", "backbone", "printed", "tokens", "parameters"),
    [  # TempMe (arXiv:2409.01156), tables 1, 2 and 4; parameters: exact counts, which the tables round
        ("zero_shot", B32, 53.0, 600, 0),
        ("lora", B32, 53.0, 600, 491_520),
        ("prompt", B32, 58.2, 660, 76_800),
        ("adapter", B32, 53.1, 600, 261_312),
        ("tome", B32, 40.2, 12 * 26, 491_520),
        ("tempme", B32, 34.8, 97, 507_648),
        ("evit", B32, 37.2, 12 * 21, 491_520),
        ("sta", B32, 35.7, 12 * 22, 491_520),
        ("diffrate", B32, 36.8, 12 * 20, 491_520),
        ("testa", B32, 40.6, 7 * 26, 491_520 + 98_304 + 4),
        ("evit", B16, 139.5, 12 * 72, 491_520),  # not printed: computed by hand, with the norms
        ("diffrate", B16, 138.5, 12 * 49, 491_520),
        ("lora", B16, 211.3, 12 * 197, 491_520),
        ("prompt", B16, 216.8, 12 * 202, 76_800),
        ("adapter", B16, 211.7, 12 * 197, 261_312),
        ("tome", B16, 144.4, 12 * 77, 491_520),
        ("tempme", B16, 121.4, 127, 507_648),
    ],
)
def test_multiply_adds_tokens_and_parameters_are_the_papers(name, backbone, printed, tokens, parameters):
    method, found = estimate(name, backbone=backbone)
    assert found.macs / 1e9 == pytest.approx(printed, rel=0.005)
    assert found.tokens_out == tokens
    assert trained_parameters(method) == parameters


@pytest.mark.parametrize(
    ("backbone", "width", "depth", "patch", "size", "joint"),
    [
        (B16, 768, 12, 16, 224, 512),
        ("ViT-L-14-quickgelu", 1024, 24, 14, 224, 768),
        ("ViT-L-14-336-quickgelu", 1024, 24, 14, 336, 768),
    ],
)
def test_multiply_adds_of_larger_towers_are_those_of_their_arithmetic(backbone, width, depth, patch, size, joint):
    """The multiply-adds of a frame are the patch convolution, 12 N D^2 + 2 N^2 D per block, and the projection."""
    patches = (size // patch) ** 2
    tokens = patches + 1
    frame = patches * width * 3 * patch**2 + depth * (12 * tokens * width**2 + 2 * tokens**2 * width) + width * joint
    found = estimate("zero_shot", backbone=backbone)[1]
    assert found.macs == pytest.approx(12 * frame, rel=1e-3)
    assert found.tokens_out == 12 * tokens


@pytest.mark.parametrize(
    ("settings", "printed"),
    [  # tables 9 and 10
        ({"reducer.r": 0, "reducer.keep_cross": 100, "reducer.keep_intra": 100}, 54.3),
        ({"reducer.join_clips": False}, 34.7),
        ({"reducer.clip_blocks": (8, 9), "reducer.clip_groups": (3, 4)}, 35.4),
        ({"reducer.clip_blocks": (8,), "reducer.clip_groups": (12,)}, 37.0),
        ({"reducer.clip_blocks": (8, 9), "reducer.clip_groups": (2, 2)}, 35.4),
        ({"reducer.clip_blocks": (8,), "reducer.clip_groups": (3,)}, 36.8),
        ({"reducer.clip_blocks": (6, 8, 10)}, 31.9),
        ({"reducer.clip_blocks": (3, 6, 9)}, 25.8),
        ({"reducer.clip_blocks": (0, 4, 8)}, 18.1),
    ],
)
def test_every_ablation_of_the_paper_has_its_multiply_adds(settings, printed):
    rel = 0.01 if "reducer.join_clips" in settings else 0.006  # the paper does not give that schedule
    assert estimate("tempme", settings)[1].macs / 1e9 == pytest.approx(printed, rel=rel)


@pytest.mark.parametrize(
    ("name", "printed", "tokens", "parameters"),
    [("lora", 276.7, 64 * 50, 491_520), ("tome", 208.5, 64 * 26, 491_520), ("tempme", 180.3, 500, 556_032)],
)
def test_64_frames_agree_once_all_frames_are_embedded(name, printed, tokens, parameters):
    """The paper's counter embeds the patches of 12 frames only."""
    method, found = estimate(name, {"reducer.num_frames": 64} if name == "tempme" else {}, frames=64)
    unseen = 52 * 49 * 768 * 3 * 32**2
    assert (found.macs - unseen) / 1e9 == pytest.approx(printed, rel=0.005)
    assert found.tokens_out == tokens
    assert trained_parameters(method) == parameters


def test_all_of_clip_is_151_million_parameters_and_the_temperature_is_one():
    assert trained_parameters(estimate("clip4clip")[0]) == 151_277_313
    assert trained_parameters(estimate("clip4clip", {"train_scale": False})[0]) == 151_277_312


def test_the_formula_is_what_torch_counts():
    """The linear layers, convolution and attention of a tower that joins clips and of a plain one are compared.

    The formula, like the papers, counts unused tokens of the last block, which a tower does not compute.
    """
    frames, width = torch.randn(2, 4, 3, 32, 32), 32

    def unread(groups: int, classes: int, attended: int, passed: int) -> int:
        asking = (attended - classes) * (2 * width**2 + 2 * attended * width)
        return 2 * groups * (asking + (passed - classes) * 8 * width**2)

    merging = TempMe(TempMeConfig(reducer=reducer_config("tempme", num_frames=4), adaptation="none"), make_small_clip())
    with record_tokens() as states, torch.no_grad():
        merging.encode_video(frames)
    groups, attended, passed = states[0].log[-1]
    assert groups == 1
    assert attended > passed > 4
    for method, spared in (
        (ZeroShot(ZeroShotConfig(), make_small_clip()), unread(4, 1, 17, 17)),
        (Adapter(AdapterConfig(), make_small_clip()), 0),
        (merging, unread(1, 4, attended, passed)),
    ):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            method.encode_video(frames)
        readout = 2 * 4 * 32 * 16  # not in the formula, as in the paper
        matching = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0) // 2  # likewise
        executed = counter.get_total_flops() // 2
        assert video_cost(method, frames).macs * 2 + readout + matching - spared == executed


def test_multiply_adds_grow_with_the_frames_and_not_with_the_batch():
    method = Lora(LoraConfig(reducer=reducer_config("tome")), make_small_clip())
    one, two = torch.randn(1, 3, 3, 32, 32), torch.randn(2, 6, 3, 32, 32)
    assert video_cost(method, two).macs == 2 * video_cost(method, one).macs


def test_seams_that_are_no_clip_are_counted_once_for_each_video():
    clip = make_small_clip()
    frames = torch.randn(2, 3, 3, 32, 32)
    plain, adapted = ZeroShot(ZeroShotConfig(), clip), Adapter(AdapterConfig(), clip)
    assert video_cost(adapted, frames).macs - video_cost(plain, frames).macs == 3 * 17 * 4 * 2 * 32 * 8


def test_measuring_gives_every_key_and_leaves_the_mode_alone():
    method = Clip4Clip(Clip4ClipConfig(), make_small_clip()).train()
    found = measure(method, torch.randn(1, 3, 3, 32, 32), seconds=0.01)
    assert set(found) == KEYS
    assert all(value > 0 for value in found.values())
    assert found["cost/stored_floats_per_video"] == 16
    assert found["cost/tokens_out"] == 3 * 17
    assert method.training


def test_a_method_may_define_the_count_of_its_paper():
    method = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    method.paper_parameters = lambda: 7
    assert measure(method, torch.randn(1, 2, 3, 32, 32), seconds=0.0)["cost/paper_parameters"] == 7


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).domain == "videos"])
def test_query_cost_of_every_method_is_counted(name):
    try:
        method = Subject.of(name).make()
    except ValueError as error:
        pytest.skip(str(error))
    for index in range(2):
        method.begin_task(make_task(index))
    found = query_cost(method, make_batch().tokens[:1], 2)
    assert found["cost/query_passes"] in (1, 2)
    assert found["cost/query_gmacs"] > 0


def test_query_cost_counts_a_pass_for_each_task():
    tokens = make_batch().tokens[:1]
    plain = Clip4Clip(Clip4ClipConfig(), make_small_clip())
    prompted = FrameFusionMoE(FrameFusionMoEConfig(), make_small_clip())
    prompted.begin_task(make_task(0))
    once, often = (query_cost(method, tokens, 5) for method in (plain, prompted))
    assert (once["cost/query_passes"], often["cost/query_passes"]) == (1, 5)
    assert often["cost/query_gmacs"] > 5 * once["cost/query_gmacs"]  # plus the experts
    tower = plain.backbone.text
    length, width, depth = tokens.shape[1], tower.width, len(tower.blocks)
    linear = 12 * length * width**2  # per block: projections and an MLP of 4 D; the last may compute one token only
    most = depth * (linear + 2 * length**2 * width) + width * 16
    assert (depth - 1) * linear < once["cost/query_gmacs"] * 1e9 <= most
    assert query_cost(prompted, tokens, 10)["cost/query_gmacs"] == pytest.approx(2 * often["cost/query_gmacs"])


def test_a_query_that_is_moved_to_each_task_passes_the_tower_once():
    tokens, plain = make_batch().tokens[:1], Clip4Clip(Clip4ClipConfig(), make_small_clip())
    moved = QDC(QDCConfig(), Clip4Clip(Clip4ClipConfig(), make_small_clip()))
    for index in range(5):
        moved.begin_task(make_task(index))
    assert query_cost(moved, tokens, 5) == query_cost(plain, tokens, 5)  # subtracting drifts multiplies nothing
