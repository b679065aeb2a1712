"""The presets `original` train as the released codes did: optimizers, rates, decay, bounds (tests/methods/fixtures)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch

from ctvr.methods import CONFIGURATIONS, METHODS, find_method
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method, ParamGroup, Recipe
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.clip_vip import CLIPViP, CLIPViPConfig
from ctvr.methods.xpool import XPool, XPoolConfig
from ctvr.orchestrator.learning.training.optimizer import lr_factor, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import make_small_clip
from tests.methods.released import tiny_clip

FIXTURES = Path(__file__).parents[2] / "methods" / "fixtures"
FILE = np.load(FIXTURES / "recipes_released.npz")
FACTS = json.loads((FIXTURES / "recipes_released.json").read_text())
ROWS = (
    "clip4clip",
    "xpool",
    "clip_vip",
    "zscl",
    "lwf",
    "vr_lwf",
    "moe_adapter",
    "er_ring",
    "der",
    "co2l",
    "lump",
    "tome",
    "umt",
    "umt_qa",
)


def optim_of(name: str, **changed: Any) -> OptimConfig:
    """Return `optim.*` of a preset `original`, at the sizes of a fixture."""
    settings = presets_of(name)["original"]
    found = {key.removeprefix("optim."): value for key, value in settings.items() if key.startswith("optim.")}
    return OptimConfig(**{**found, **changed})


def factors(optim: OptimConfig, steps: int, per_epoch: int | None = None) -> list[float]:
    return [lr_factor(step, steps, per_epoch or steps, True, optim) for step in range(steps)]


@pytest.mark.parametrize("name", ROWS)
def test_an_original_is_a_legal_recipe_whose_every_value_names_its_place(name):
    recipe = presets_of(name)["original"]
    assert isinstance(recipe, Recipe)
    assert "@" in recipe.release or name == "tome"  # ToMe's release has no recipe of its own
    method = CONFIGURATIONS.get(name, (name, ""))[0]
    assert {key for key in recipe if not recipe.sources.get(key)} <= {"method.reducer.name"}, method
    made = resolve({"method": name, "stream": "any"}, presets=["original"]).settings
    for key, value in recipe.items():
        assert made[key] == (list(value) if isinstance(value, tuple) else value), key


def test_originals_have_what_the_first_ones_lacked():
    """Audit the rows: zscl.sh and its relatives, CLIP-ViP's optimizer, and the settings that replay omits."""
    for name in ("zscl", "lwf", "vr_lwf", "moe_adapter"):
        found = presets_of(name)["original"]
        assert (found["optim.eps"], found["optim.grad_clip"], found["data.batch_size"]) == (1e-8, None, 64), name
        assert name == "moe_adapter" or found["base.train_scale"] is False, name  # it trains no tower
    assert [presets_of("zscl")["original"][f"method.{name}"] for name in ("l2", "average_every")] == [1.0, 100]
    clip4clip = presets_of("clip4clip")["original"]
    told = (
        "optim.epochs",
        "data.batch_size",
        "data.num_frames",
        "data.max_tokens",
        "method.sim_eps",
        "optim.grad_clip",
    )
    assert [clip4clip[name] for name in told] == [5, 128, 12, 32, 1e-12, 1.0]
    vip = presets_of("clip_vip")["original"]
    assert (vip["optim.name"], vip["optim.betas"], vip["optim.final_lr"]) == ("adamw_hf", (0.9, 0.98), 1e-8)
    alpha, weight = presets_of("der")["original"]["method.alpha"], presets_of("co2l")["original"]["method.weight"]
    assert (alpha * 512 / 2, weight * 0.5 / 0.07) == pytest.approx((0.3, 1.0))  # as their codes weigh them
    for name in ("er_ring", "der", "co2l", "lump"):
        recipe = presets_of(name)["original"]
        assert any("memory is written after every step" in line for line in recipe.left_out), name


def test_preset_original_of_umt_equals_the_release():
    wanted = {
        "optim.eps": 1e-8,
        "optim.decay_parameters": "no_vectors",  # the temperature, without a dimension, decays
        "optim.warmup_from": "zero",
        "optim.least": 0.01,
        "data.sampling": "random",
    }
    for name in ("umt", "umt_qa"):
        made = resolve({"method": name, "stream": "any"}, presets=["original"]).settings
        assert {key: made[key] for key in wanted} == wanted, name


# ------------------------------------------------------------------------------------- optimizers


def test_weights_after_every_step_are_those_of_the_released_optimizer(compared):
    for name, changed, key, after in (
        ("clip4clip", {"warmup": 0.25}, "bert_adam", "cosine"),
        ("xpool", {"warmup": 0.0, "schedule": "constant"}, "adamw_hf", "after"),
    ):
        weight = torch.nn.Parameter(torch.from_numpy(FILE[f"{key}/p0"]).clone())
        module = torch.nn.ParameterDict({"weight": weight})
        optim = optim_of(name, **changed)
        optimizer = make_optimizer([ParamGroup(name="g", params=[weight], lr=0.05)], optim, module)
        grads = FILE[f"{key}/grads"]
        for step, (gradient, expected) in enumerate(zip(grads, FILE[f"{key}/{after}"], strict=True)):
            weight.grad = torch.from_numpy(gradient).clone()
            set_learning_rates(optimizer, lr_factor(step, len(grads), len(grads), True, optim), optim.final_lr)
            optimizer.step()
            compared(name, "steps", weight, expected, 1e-6)


def test_steps_of_lump_are_descent_with_momentum_that_decays_every_weight(compared):
    """The released gradient of the second step is compared; the first step follows from the weights before and after
    it.
    """
    optim, lr = optim_of("lump"), 3 * 6 / 256
    start, *after, second = (torch.from_numpy(FILE[f"lump/{name}"]) for name in ("start", "step0", "step1", "grad1"))
    weight = torch.nn.Parameter(start.clone())
    optimizer = make_optimizer([ParamGroup(name="g", params=[weight], lr=lr)], optim)
    for gradient, expected in zip(((start - after[0]) / lr - optim.weight_decay * start, second), after, strict=True):
        weight.grad = gradient.clone()
        set_learning_rates(optimizer, lr_factor(0, 10, 10, True, optim))
        optimizer.step()
        compared("lump", "steps", weight, expected)


# ------------------------------------------------------------------------------------- rates


def test_the_rate_of_every_step_is_that_of_the_released_schedule(compared):
    for name, key, scale, per_epoch in (
        ("clip4clip", "clip4clip/schedule_20", 1.0, None),
        ("xpool", "xpool/schedule_2_of_20", 1.0, None),
        ("zscl", "zscl/schedule_1000_100", 1.0, None),
        ("lwf", "zscl/schedule_1000_100", 1.0, None),
        ("vr_lwf", "zscl/schedule_1000_100", 1.0, None),
        ("moe_adapter", "zscl/schedule_1000_100", 1.0, None),
        ("co2l", "co2l/schedule", 0.5, 2),
    ):
        table = FILE[key]
        steps = 20 if len(table) == 21 else len(table)  # two tables go one step beyond the end
        found = [scale * factor for factor in factors(optim_of(name), steps, per_epoch)]
        compared(name, "schedule", np.array(found), table[:steps], 1e-12)


def test_mocos_cosine_is_that_of_every_epochs_first_step():
    """No row uses it; version 1 divides by ten at epochs 120 and 160, for which we have no schedule."""
    table, optim = FILE["moco/v2_cos"], OptimConfig(schedule="cosine", warmup=0.0)
    for per_epoch in (1, 5):
        found = [
            0.03 * lr_factor(per_epoch * epoch, 200 * per_epoch, per_epoch, True, optim) for epoch in range(0, 200, 5)
        ]
        assert found == pytest.approx(table, abs=1e-12)


def test_clip_vip_counts_its_steps_from_one_and_ends_at_its_own_least_rate():
    steps, warm = 300, 3
    optim = optim_of("clip_vip")
    released = [
        k / warm if k < warm else (1 + math.cos(math.pi * (k - warm) / (steps - warm))) / 2 for k in range(1, 301)
    ]
    assert factors(optim, steps) == pytest.approx(released, abs=1e-12)
    module = torch.nn.Linear(1, 1)
    optimizer = make_optimizer([ParamGroup(name="g", params=list(module.parameters()), lr=1e-6)], optim, module)
    set_learning_rates(optimizer, factors(optim, steps)[-1], optim.final_lr)
    assert {group["lr"] for group in optimizer.param_groups} == {1e-8}


def test_umts_rates_never_fall_below_a_hundredth_and_start_there():
    """The authors' scheduler gives step / warm, then half a cosine over the rest, both at least 0.01."""
    steps, warm = 30, 3
    released = [
        s / warm if s < warm else (1 + math.cos(math.pi * (s - warm) / (steps - warm))) / 2 for s in range(steps)
    ]
    assert factors(optim_of("umt"), steps) == pytest.approx([max(0.01, factor) for factor in released], abs=1e-12)


# ------------------------------------------------------------------------------------- decay, frozen parts, bounds


@pytest.mark.parametrize("name", ["umt", "umt_qa"])
def test_umt_decays_all_but_vectors_so_its_temperature_too(name):
    method = find_method(name)(find_method(name).Config(), make_small_clip())
    names = {id(parameter): key for key, parameter in method.named_parameters()}
    optimizer = make_optimizer(method.param_groups(), optim_of(name), method)
    decayed = {names[id(p)]: g["weight_decay"] == 0.02 for g in optimizer.param_groups for p in g["params"]}
    assert all(is_decayed == (method.get_parameter(key).ndim != 1) for key, is_decayed in decayed.items())
    if name == "umt":
        assert decayed["backbone.temp"]
    assert all(group["eps"] == 1e-8 for group in optimizer.param_groups)


def released_shape() -> Clip:
    return tiny_clip(FACTS["clip4clip"]["shape"])


def method_of(name: str, config: Any, cls: Any, **changed: Any) -> Method:
    settings = presets_of(name)["original"]
    own = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    made: Method = cls(config(**{**own, **changed}), released_shape())
    return made


def our_name(theirs: str) -> str:
    """Return our name of a parameter of the authors' CLIP4Clip."""
    name = theirs.replace("transformerClip.resblocks", "header.blocks")
    name = name.replace("frame_position_embeddings.weight", "header.positions")
    name = name.replace("clip.visual.", "backbone.vision.").replace("transformer.resblocks", "blocks")
    name = name.replace("clip.logit_scale", "backbone.logit_scale").replace("clip.", "backbone.text.")
    name = name.replace("in_proj_", "in_").replace("out_proj", "out").replace("text.text_projection", "text.proj")
    return name


def test_clip4clip_parameter_groups_equal_the_release(compared):
    method = method_of("clip4clip", Clip4ClipConfig, Clip4Clip, sim_header="seqTransf", sim_layers=2)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    found = {}
    for group in make_optimizer(method.param_groups(), optim_of("clip4clip"), method).param_groups:
        found |= {names[id(p)]: (group["weight_decay"], group["peak"]) for p in group["params"]}
    frozen = {our_name(name) for name in FACTS["clip4clip"]["frozen"]}
    groups = FACTS["clip4clip"]["optimizer_groups"]
    rates = {0.0002: 1e-7, 0.002: 1e-4}  # those of the run, and those of the command
    expected = {our_name(name): (g["weight_decay"], rates[g["lr"]]) for g in groups for name in g["names"]}
    assert frozen <= set(expected)
    trained = {name: value for name, value in expected.items() if name not in frozen}
    assert set(found) == set(trained)
    for name, value in trained.items():
        compared("clip4clip", "recipe", torch.tensor(found[name]), torch.tensor(value), 0.0)


def test_vit_b_32_counts_of_frozen_and_trained_weights():
    """The counts are those of ArrowLuo/CLIP4Clip@508ffa3 at --freeze_layer_num 0; no weights are created."""
    with torch.device("meta"):
        source = open_clip.CLIP(**open_clip.get_model_config("ViT-B-32-quickgelu"))
        clip = Clip(source, lambda texts: torch.zeros(1), (0.5,) * 3, (0.5,) * 3)
    settings = presets_of("clip4clip")["original"]
    own = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    own |= {"start_scale": None}
    method = Clip4Clip(Clip4ClipConfig(**own), clip)
    trained = sum(p.numel() for group in method.param_groups() for p in group["params"])
    total = sum(p.numel() for p in clip.parameters())
    assert (total, trained, total - trained) == (151_277_313, 123_540_993, 27_736_320)


def test_weight_decay_of_xpool_and_clip_vip_equals_the_releases(compared):
    xpool = method_of("xpool", XPoolConfig, XPool)
    groups = make_optimizer(xpool.param_groups(), optim_of("xpool"), xpool).param_groups
    released = FACTS["xpool"]["optimizer_groups"]
    for group, theirs in zip(groups, released, strict=True):
        found = [len(group["params"]), group["weight_decay"]]
        compared("xpool", "recipe", found, [theirs["n"], theirs["weight_decay"]], 0.0)
    vip = method_of("clip_vip", CLIPViPConfig, CLIPViP, lr_scale=1e-5)
    names = {id(parameter): name for name, parameter in vip.named_parameters()}
    groups = make_optimizer(vip.param_groups(), optim_of("clip_vip"), vip).param_groups
    free = {names[id(p)] for g in groups if not g["weight_decay"] for p in g["params"]}
    assert free == {name for name in names.values() if name.endswith("bias")} | {"backbone.logit_scale"}
    assert sorted({g["peak"] for g in groups}) == [1e-6, 1e-5]  # the temperature may have its own rate


def test_a_group_may_have_its_own_rule_and_a_rule_by_names_needs_them():
    matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    groups = [ParamGroup(name="g", params=[matrix, bias], lr=1.0, decay="all")]
    (group,) = make_optimizer(groups, OptimConfig(decay_parameters="no_bias")).param_groups
    assert (len(group["params"]), group["weight_decay"]) == (2, 0.2)
    with pytest.raises(ValueError, match=r"optim\.decay_parameters: no_bias selects by parameter names"):
        make_optimizer([ParamGroup(name="g", params=[bias], lr=1.0)], OptimConfig(decay_parameters="no_bias"))


def test_the_temperature_begins_and_is_bounded_as_released(compared):
    for name, config, cls in (("clip4clip", Clip4ClipConfig, Clip4Clip), ("xpool", XPoolConfig, XPool)):
        method: Any = method_of(name, config, cls)
        for start, kept in FACTS[name]["logit_scale_after_a_step"].items():
            method.backbone.logit_scale.data.fill_(float(start.removeprefix("from_")))
            method.after_step()
            compared(name, "recipe", method.backbone.logit_scale, kept, 1e-6)
    vip: Any = method_of("clip_vip", CLIPViPConfig, CLIPViP)
    assert float(vip.backbone.logit_scale.detach()) == pytest.approx(4.60, abs=1e-6)
    for start, kept in ((9.0, math.log(200)), (-0.5, 0.0)):
        vip.backbone.logit_scale.data.fill_(start)
        vip.after_step()
        assert float(vip.backbone.logit_scale.detach()) == pytest.approx(kept, abs=1e-6)


def test_every_method_has_recipes_that_a_search_can_copy():
    """In addition, a recipe keeps its sources when it is pickled."""
    import pickle

    for name in METHODS:
        for settings in find_method(name).PRESETS.values():
            again = pickle.loads(pickle.dumps(settings))
            assert (again, vars(again) if isinstance(settings, Recipe) else {}) == (
                settings,
                vars(settings) if isinstance(settings, Recipe) else {},
            )
