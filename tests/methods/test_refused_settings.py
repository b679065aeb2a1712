"""An invalid value of a method's setting is refused in one line with its name, the bound and the value."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ctvr.methods import find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig, FrameTransformer
from ctvr.methods.drift_adapter import DescentConfig, LowRankConfig, MlpConfig, ProcrustesConfig
from ctvr.methods.images.bmu_moco import ImageBMUConfig
from ctvr.methods.images.progressive import ImageProgressiveConfig
from ctvr.methods.lambda_orthogonality import RelaxedConfig, StrictConfig
from ctvr.methods.layers.lora import LoRA
from ctvr.methods.layers.losses.distillation import RelationConfig
from ctvr.methods.layers.losses.etf import simplex_etf
from ctvr.methods.layers.reduction.merge import plan_bipartite
from ctvr.methods.layers.replay.queues import KeyQueue
from ctvr.methods.layers.temporal import CrossFrameAttention
from ctvr.methods.settings import SettingError
from ctvr.methods.structalign.adapters import LoRAExperts
from tests.methods.conftest import make_batch, reducer_config
from tests.refusing import refused

# Just outside the bounds
OUTSIDE = {
    "adapter": "bottleneck=0",
    "base_moco": "m=1.5 tau=0 queue_size=0 lr=-1.0",
    "bmu_moco": "m_hat=-0.1 method_start_task=0",
    "camoe": "num_frames=0 temperature=0.0 lr=-1.0",
    "cclip": "merge=1.5 rank=0 dropout=1.0 temperature=0.0 weight=-1.0",
    "clip4clip": "lr=-1.0 lr_head=-1.0 sim_layers=0 sim_eps=0.0 start_scale=0.0",
    "clip_vip": "lr=-1.0 num_proxies=-1 temporal_size=0",
    "co2l": "weight=-1.0 kappa=0.0 kappa_teacher=0.0 buffer_size=-1",
    "co2l_moco": "weight=-1.0 kappa=0.0",
    "ctp": "cross_weight=-1.0 temperature=0.0 queue_size=0 m=1.5",
    "dar": "rank=0 margin=-0.1 tau=0.0 lr=-1.0",
    "der": "alpha=-1",
    "dgl": "lr=-1.0 num_prompts=0 num_frames=0",
    "drift_adapter": "pairs=0",
    "dsl": "weight=-1.0 test_temperature=0.0",
    "er_ring": "ratio=-1",
    "ewc": "weight=-1.0 decay=1.5",
    "framefusion_moe": "beta=1.5 rank=0 ffa_layers=-1 dropout=1.0 lr_text=-1.0",
    "lambda_orthogonality": "pairs=0",
    "lora": "lr=-1.0 rank=0",
    "lpi": "rank=0 align_temperature=0.0 task_weight=-1.0 similar_above=2.0",
    "lump": "alpha=0.0 buffer_size=-1",
    "lump_moco": "alpha=0.0",
    "lwf": "weight=-1.0 temperature=0.0",
    "lwf_moco": "alpha=-1.0 tau=0.0",
    "moe_adapter": "lr=-1.0 bottleneck=0 dropout=1.0 frozen_per_task=-1",
    "mv_adapter": "lr_bias=-1.0 tied=-1 num_frames=0 num_words=2",
    "plevu": "lr=-1.0 postfix=-1 heads=0 tau=0.0",
    "prompt": "num_prompts=0",
    "qdc": "video_weight=-1.0",
    "structalign": "lambda1=-1.0 tau2=0.0",
    "tempme": "rank=0 lr_clip=-1.0",
    "umt": "lr=-1.0 rerank=-1 num_words=1",
    "umt_qa": "answers=0 k=0 answer_words=1 lr=-1.0",
    "vop": "lr=-1.0 num_prompts=0 suffix=-1",
    "vr_lwf": "weight=-1.0 temperature=0.0 sentences=0",
    "xbt": "noise=-0.1 pairs=0 lr=0.0",
    "xpool": "lr_head=-1.0 dropout=1.0 max_scale=0.5",
    "zscl": "weight=-1.0 l2=-1.0 temperature=0.0 average_every=-1 reference_texts=0",
}
PARTS = {
    ProcrustesConfig: "ridge=-1.0",
    LowRankConfig: "rank=0",
    MlpConfig: "hidden=0 lr=0.0",
    DescentConfig: "steps=0",
    RelaxedConfig: "relative_threshold=-1.0",
    StrictConfig: "contrastive_weight=-1.0 steps=0",
    RelationConfig: "weight=-1.0 kappa=0.0",
    ImageBMUConfig: "m_hat=1.2",
    ImageProgressiveConfig: "alpha=0",
}
# Cases that depend on more than one setting, or have a separate remedy: the setting at fault, a part of what is said
TOGETHER: list[tuple[str, dict[str, Any], str, str]] = [
    ("bmu_ensemble", {"ensemble_weights": (0.5, 0.0, 0.0)}, "ensemble_weights", "must be >= 0 and sum to 1"),
    ("bmu_ensemble", {"ensemble_weights": (1.5, -0.5, 0.0)}, "ensemble_weights", "must be >= 0 and sum to 1"),
    ("bmu_moco", {"use_local": False, "use_global": False}, "use_local", "one must compute keys"),
    ("cclip", {"places": ()}, "places", "Use some of q, k, v"),
    ("clip4clip", {"min_scale": 300.0}, "min_scale", "between 0 and max_scale=200"),
    ("clip4clip", {"reducer": reducer_config("testa"), "mask_missing": True}, "mask_missing", "name=testa merges"),
    ("dar", {"places": ()}, "places", "Use some of q, k, v"),
    ("framefusion_moe", {"num_experts": 0}, "num_experts", "use_tame=false"),
    ("framefusion_moe", {"top_k": 11}, "top_k", "num_experts=10 experts, got 11. Use top_k=10, or more"),
    ("framefusion_moe", {"top_k": 0}, "top_k", "num_experts=10 experts, got 0. Use top_k=1"),
    ("framefusion_moe", {"ffa_init": "zero_out", "ffa_output": False}, "ffa_init", "ffa_output=true"),
    ("lpi", {"depth": 10}, "depth", "<= layers, got 10 and 9"),
    ("lwf", {"weight": -1.0}, "weight", "Use weight=0 to train `clip4clip` without distillation"),
    ("moe_adapter", {"top_k": 30}, "top_k", "num_experts=22 experts, got 30"),
    ("mv_adapter", {"bottleneck": 9}, "bottleneck", "a multiple of heads, got 9 and 2"),
    ("structalign", {"num_experts": 1}, "top_k", "num_experts=1 experts, got 2. Use top_k=1"),
    ("structalign", {"swap_heads": True}, "swap_heads", "needs pseudo=clip"),
    ("structalign", {"pair_weight": 0.5, "pseudo": "shared"}, "pair_weight", "needs pseudo=clip; pseudo=shared"),
    ("umt", {"reducer": reducer_config("tome")}, "reducer.name", "Use attends=frame"),
    ("umt_qa", {"reducer": reducer_config("tempme")}, "reducer.name", "Use attends=frame"),
]
# What a method or a layer is built of, by a part of what is said
BUILT: dict[str, Callable[[Clip], object]] = {
    "no part called 'text.tokens'": lambda clip: built("cclip", clip, trained=("text.tokens",)).param_groups(),
    "heads=5 do not divide the joint embedding's 16": lambda clip: built("plevu", clip, heads=5),
    "15 words and the two ends do not fit the 16 tokens": lambda clip: built("vr_lwf", around(clip), length=15),
    "gone is neither `embedded` nor a folder": lambda clip: built("zscl", around(clip), reference="/gone"),
    "rank of LoRA must be >= 1, got 0": lambda clip: LoRA(0, 1.0, 8, 8),
    "num_experts=4 experts, got 5": lambda clip: LoRAExperts(4, 5, 3, 1.0, 8, 8),
    "rank": lambda clip: LoRAExperts(4, 2, 0, 1.0, 8, 8),
    "at least 2": lambda clip: simplex_etf(1, 8),
    "etf_num_classes <= 8": lambda clip: simplex_etf(9, 8),
    "queue_size must be >= 1, got 0": lambda clip: KeyQueue(0, 3),
    "ffa_output=true": lambda clip: CrossFrameAttention(16, 4, has_output=False, init="zero_out"),
    "text blocks of width 32, but frame features have 16 dimensions": lambda clip: FrameTransformer(clip.text, 16),
    "for 3 blocks, but the tower has 4": lambda clip: clip.vision(make_batch().frames, [None] * 3),
    "r=0 to disable": lambda clip: plan_bipartite(torch.ones(1, 5, 8), -1),
}


def built(name: str, inner: object, **settings: Any) -> Any:
    cls = find_method(name)
    return cls(cls.Config(**settings), inner)  # type: ignore[call-arg]


def around(clip: Clip) -> Clip4Clip:
    return Clip4Clip(Clip4ClipConfig(), clip)


def number(text: str) -> float:
    return float(text) if "." in text else int(text)


@pytest.mark.parametrize("owner", [*OUTSIDE, *PARTS], ids=lambda owner: getattr(owner, "__name__", owner))
def test_a_value_outside_its_bound_is_refused_with_the_bound(owner):
    config = find_method(owner).Config if owner in OUTSIDE else owner
    for setting, value in (word.split("=") for word in (OUTSIDE | PARTS)[owner].split()):
        refused(lambda: config(**{setting: number(value)}), value, kind=SettingError, settings=[setting])  # noqa: B023


@pytest.mark.wording
@pytest.mark.parametrize(("name", "settings", "setting", "said"), TOGETHER)
def test_settings_that_do_not_fit_each_other_are_refused_with_the_remedy(name, settings, setting, said):
    with pytest.raises(SettingError) as error:
        find_method(name).Config(**settings)
    assert error.value.settings("")[0] == setting
    assert said in str(error.value)


@pytest.mark.wording
@pytest.mark.parametrize("said", BUILT)
def test_what_cannot_be_built_is_refused_in_one_line(small_clip, said):
    refused(lambda: BUILT[said](small_clip), said, kind=ValueError)
