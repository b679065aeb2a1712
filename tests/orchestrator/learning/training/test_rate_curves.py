"""Every recipe of a code has its authors' learning rates in all steps, by their schedulers written again here."""

import math
from collections.abc import Callable

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.methods.base import Recipe
from ctvr.orchestrator.learning.training.optimizer import lr_factor
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve

Curve = Callable[[int, int, int, bool], float]  # step, steps, steps of an epoch, first task -> share of the peak rate


def transformers_cosine(warmup: float, cycles: float = 0.5, least: float = 0.0, first_only: bool = False) -> Curve:
    def at(k: int, total: int, per_epoch: int, first: bool) -> float:
        warm = int(warmup * total) if first or not first_only else 0
        if k < warm:
            return max(least, k / max(1, warm))
        progress = (k - warm) / max(1, total - warm)
        return max(least, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))

    return at


def one_epoch_of_warmup(k: int, total: int, per_epoch: int, first: bool) -> float:
    return transformers_cosine(per_epoch / total, least=0.01)(k, total, per_epoch, first)


def transformers_linear(k: int, total: int, per_epoch: int, first: bool) -> float:
    return k / 400 if k < 400 else max(0.0, (total - k) / max(1, total - 400))


def bert_warmup_cosine(k: int, total: int, per_epoch: int, first: bool) -> float:
    x = k / total
    return x / 0.1 if x < 0.1 else 0.5 * (1.0 + math.cos(math.pi * x))


def annealed_by_epoch(k: int, total: int, per_epoch: int, first: bool) -> float:
    return (1 + math.cos(math.pi * (k // per_epoch) / (total // per_epoch))) / 2


def from_one_rate_to_another(k: int, total: int, per_epoch: int, first: bool) -> float:
    return (1e-6 + 0.5 * (1e-4 - 1e-6) * (1 + math.cos(math.pi * k / total))) / 1e-4


def clip_vip(k: int, total: int, per_epoch: int, first: bool) -> float:
    warm, step = int(0.01 * total), k + 1
    if step <= warm:
        return step / warm
    return (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2


def zscl(k: int, total: int, per_epoch: int, first: bool) -> float:
    warm = total // 10
    return (k + 1) / warm if k < warm else 0.5 * (1 + math.cos(math.pi * (k - warm) / (total - 1 - warm)))


def co2l(k: int, total: int, per_epoch: int, first: bool) -> float:
    epochs, warm_epochs = total // per_epoch, 10
    epoch, batch = k // per_epoch + 1, k % per_epoch
    least = 0.1**3
    at = lambda e: least + (1 - least) * (1 + math.cos(math.pi * e / epochs)) / 2
    if epoch > warm_epochs:
        return at(epoch)
    return 0.02 + (batch + (epoch - 1) * per_epoch) / (warm_epochs * per_epoch) * (at(warm_epochs) - 0.02)


def constant(k: int, total: int, per_epoch: int, first: bool) -> float:
    return 1.0


def a_cosine_of_200_000_steps(k: int, total: int, per_epoch: int, first: bool) -> float:
    return 0.5 * (1 + math.cos(math.pi * k / 200_000))


CURVES: dict[str, Curve] = {
    "ArrowLuo/CLIP4Clip": bert_warmup_cosine,
    "zhangbw17/MV-Adapter": bert_warmup_cosine,
    "knightyxp/DGL": transformers_cosine(0.1),
    "layer6ai-labs/xpool": transformers_cosine(0.1),
    "LunarShen/TempMe": transformers_cosine(0.1),
    "JasonCodeMaker/CTVR": transformers_cosine(0.1, cycles=1.0, first_only=True),
    "Mysteriousplayer/SIGIR26-StructAlign": transformers_cosine(0.1, cycles=1.0, first_only=True),
    "OpenGVLab/unmasked_teacher": one_epoch_of_warmup,
    "microsoft/XPretrain": clip_vip,
    "Thunderbeee/ZSCL": zscl,
    "JiazuoYu/MoE-Adapters4CL": zscl,
    "Kelvin-ywc/LPI": annealed_by_epoch,
    "KevinLight831/CTP": from_one_rate_to_another,
    "dipamgoswami/QDC": transformers_linear,
    "chaht01/Co2L": co2l,
    "aimagelab/mammoth": constant,
    "divyam3897/UCL": constant,
    "ju-chen/Efficient-Prompt": a_cosine_of_200_000_steps,
}
WITHOUT_ITS_AUTHORS_CODE = {"arXiv:2605.31229", "KoyoImai/C-CLIP"}  # dar, cclip
TRAINS_NOTHING = {"facebookresearch/ToMe"}
CASES = [
    (name, preset)
    for name in [*EVERY_METHOD, *CONFIGURATIONS]
    for preset, values in presets_of(name).items()
    if isinstance(values, Recipe)
]


def repository(recipe: Recipe) -> str:
    return recipe.release.replace(",", " ").split()[0].partition("@")[0]


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_whole_rate_curve_is_that_of_the_authors_scheduler(name, preset):
    recipe = presets_of(name)[preset]
    assert isinstance(recipe, Recipe)
    source = repository(recipe)
    if source in WITHOUT_ITS_AUTHORS_CODE | TRAINS_NOTHING:
        return
    epochs = int(recipe.get("optim.epochs", 20))
    per_epoch = 1000 // epochs
    optim = OptimConfig(**{key[6:]: value for key, value in recipe.items() if key.startswith("optim.")})
    steps, curve = epochs * per_epoch, CURVES[source]
    for first in (True, False):
        found = [lr_factor(step, steps, per_epoch, first, optim) for step in range(steps)]
        expected = [curve(step, steps, per_epoch, first) for step in range(steps)]
        assert found == pytest.approx(expected, abs=1e-4 if curve is a_cosine_of_200_000_steps else 1e-12), first


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_a_recipe_of_a_code_states_every_setting_of_its_optimizer(name, preset):
    """Only the number of passes may be ours, where a release counts steps; papers without code leave more open."""
    recipe = presets_of(name)[preset]
    assert isinstance(recipe, Recipe)
    if repository(recipe) not in WITHOUT_ITS_AUTHORS_CODE:
        assert set(recipe.ours) <= {"optim.epochs"}
    made = resolve({"method": name, "stream": "any"}, presets=[preset]).settings
    assert set(recipe.ours) <= set(made)


def test_a_setting_that_a_recipe_leaves_out_is_listed_as_ours():
    full = {
        "optim.name": ("adamw", "train.py"),
        "optim.betas": ((0.9, 0.999), "train.py"),
        "optim.eps": (1e-8, "train.py"),
        "optim.weight_decay": (0.1, "train.py"),
        "optim.decay_parameters": ("all", "train.py"),
        "optim.schedule": ("cosine", "train.py"),
        "optim.warmup": (0.1, "train.py"),
        "optim.warmup_from": ("zero", "train.py"),
        "optim.least": (0.0, "train.py"),
        "optim.grad_clip": (None, "train.py"),
        "optim.epochs": (5, "train.py"),
    }
    assert Recipe("a/b@1234567", full).ours == ()
    for name in full:
        assert name in Recipe("a/b@1234567", {key: value for key, value in full.items() if key != name}).ours
    assert Recipe("a/b@1234567", {**full, "optim.name": ("sgd", "train.py")}).ours == ("optim.momentum",)
    assert Recipe("a/b@1234567", {"optim.epochs": (0, "")}).ours == ()


def test_an_extended_recipe_keeps_its_release_and_the_places_of_its_values():
    made = Recipe("a/b@1234567", {"method.lr": (1.0, "x.py")}, ("no mixup",)).extended({"method.k": (2, "y.py")})
    assert dict(made) == {"method.lr": 1.0, "method.k": 2}
    assert (made.sources, made.release) == ({"method.lr": "x.py", "method.k": "y.py"}, "a/b@1234567")
    assert made.left_out == ("no mixup",)
