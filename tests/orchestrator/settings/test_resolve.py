"""Settings become an experiment, or a one-line error."""

import math
import re
from dataclasses import fields

import pytest

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD, METHODS, find_method
from ctvr.methods.base import Override
from ctvr.orchestrator.config import build
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import preset_settings, presets_of, with_recipe
from ctvr.orchestrator.settings.resolve import resolve, with_values
from tests.refusing import refused

SMALL = {"backbone.name": "tiny-clip", "backbone.weights": "shipped"}


def test_later_settings_win_over_earlier_ones():
    recommended = {"data.num_frames": 8, "optim.epochs": 8, "preset": "shapes"}
    made = resolve({"method": "framefusion_moe", "stream": "s", "optim.epochs": "3"}, recommended, ["frozen-text"])
    assert (made.data.num_frames, made.optim.epochs, made.method.use_tame) == (8, 3, False)
    assert made.settings["method.beta"] == 0.6
    assert made.settings["optim.epochs"] == 3


VECTORS = {"backbone.name": "vectors", "backbone.weights": "imported"}


def test_a_retriever_has_its_rates_on_imported_features_unless_given_others():
    for overrides, presets, rate in (({}, (), 1e-3), ({"method.lr": 2e-5}, (), 2e-5), ({}, ("paper",), 1e-3)):
        made = resolve({"method": "clip4clip", "stream": "s", **overrides}, VECTORS, presets)
        assert made.method.lr == rate
    assert made.sources["method.lr"] == "imported features"
    made = resolve({"method": "cclip", "stream": "s"}, VECTORS, ("paper",))  # a recipe that states its rate
    assert made.method.lr == find_method("cclip").PRESETS["paper"]["method.lr"]
    assert resolve({"method": "clip4clip", "stream": "s"}, SMALL).method.lr == 1e-6  # on videos


def test_a_strategy_has_the_rates_of_the_retriever_that_it_wraps():
    for base in ("clip4clip", "framefusion_moe", "head_linear"):
        made = resolve({"method": "lwf", "stream": "s", "method.base": base, "method.student": "each"}, VECTORS)
        assert made.base == resolve({"method": base, "stream": "s"}, VECTORS).method
    assert resolve({"method": "er_ring_moco", "stream": "s"}, VECTORS).base.lr == 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_defaults_on_imported_features_are_settings_of_the_method(name):
    cls = find_method(name)
    assert set(cls.ON_FEATURES) <= {f"method.{field.name}" for field in fields(cls.Config)}
    assert all(value >= 1e-4 for value in cls.ON_FEATURES.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base.lr", "1e-3"),
        ("base.lr", "-1"),
        ("data.batch_size", 9),
        ("data.num_frames", 4),
        ("data.sampling", "one_per_second"),
        ("method.base", "framefusion_moe"),
        ("method.base", "dsl"),
        ("method.weight", -1),
        ("methot.weight", 1),
        ("optim.epochs", 5),
        ("workers", 5),
    ],
)
def test_another_value_gives_the_experiment_or_the_error_of_a_resolution(name, value):
    given, recommended = {"method": "lwf", "stream": "s", "optim.epochs": "3"}, {"data.num_frames": 8}
    made = resolve(given, recommended, ["paper"])
    found = []
    for attempt in (
        lambda: with_values(made, {name: value}),
        lambda: resolve({**given, name: value}, recommended, ["paper"]),
    ):
        try:
            each = attempt()
            found.append((each, each.layers))
        except ConfigError as error:
            found.append((error.where, error.fault, error.write, error.remedy))
    assert found[0] == found[1]


def test_an_experiment_tells_who_set_a_value_and_what_is_recommended():
    given = {"method": "lpi", "stream": "s", "optim.epochs": "3", "data.batch_size": 4}
    made = resolve(given, {"optim.momentum": 0.5, "data.batch_size": 8}, ["shapes"])
    names = ("optim.epochs", "optim.momentum", "optim.schedule", "seed")
    assert [made.sources.get(name) for name in names] == ["you", "preset shapes", "preset shapes", None]
    assert (made.recommended_value("data.batch_size"), made.recommended_value("seed")) == (8, 0)
    assert made.recommended_value("optim.epochs") == OptimConfig().epochs
    assert (made.recommended_value("optim.momentum"), made.default_settings["optim.momentum"]) == (0.0, 0.9)


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_the_settings_without_any_given_ones(method):
    plain = {"method": method, "stream": "s"}
    assert (
        resolve(plain).settings
        == resolve({**plain, "seed": 1, "optim.epochs": 9, "data.num_frames": 16}).default_settings
    )


def test_complete_settings_resolve_to_themselves():
    made = resolve({"method": "upper_bound", "stream": "s", "base.lr": "3e-6", **SMALL})
    assert resolve(made.settings).settings == made.settings
    assert made.base.lr == 3e-6
    as_mlflow_keeps_them = {name: str(value).strip("[]") for name, value in made.settings.items()}
    assert resolve(as_mlflow_keeps_them).settings == made.settings


FUSED = "stream=s method.base=structalign base.score=fused"  # a score that needs the whole gallery
# The words of a command -> the setting that is named, the words to write instead, a part of what is said
MISTAKES = {
    "stream=s": ("method", "", "no method was given"),
    "method=framefusoin_moe stream=s": ("method", "framefusion_moe", "'framefusoin_moe'"),
    "method=zero_shot stream=s optim.epcohs=1": ("optim.epcohs", "optim.epochs=1", ""),
    "method=zero_shot stream=s optin.epochs=1": ("optin.epochs", "optim.epochs=1", ""),
    f"method=zero_shot stream=s seed={2**63}": ("seed", "seed=1", "a whole number from 0 to 4294967295"),
    "method=zero_shot stream=s sed=1": ("sed", "seed=1", ""),
    "method=zero_shot stream=s base.lr=1": ("base.lr", "", "zero_shot does not wrap another method"),
    "method=zero_shot stream=s workers=3": ("data.batch_size", "", "evenly over workers=3"),
    "method=clip4clip stream=s method.lr=-1": ("method.lr", "", ">= 0, got -1.0"),
    "method=upper_bound stream=s base.lr=-1": ("base.lr", "", ">= 0, got -1.0. Use base.lr=0"),
    "method=zero_shot stream=s evaluation.query_chunk=0": ("evaluation.query_chunk", "", ">= 1"),
    "method=upper_bound stream=s method.base=x": ("method", "", "'x'"),
    "method=dsl stream=s method.base=lwf": ("method.base", "", "lwf, which is a strategy itself"),
    "method=dsl stream=s method.base=camoe": ("method.base", "", "contrastive loss over the pairs of a batch"),
    "method=dsl stream=s method.base=base_moco": ("method.base", "", "dsl cannot wrap base_moco"),
    "method=lwf_moco stream=s method.base=clip4clip": ("method.base", "method.base=base_moco", "queues of keys"),
    "method=zscl stream=s method.base=tempme": ("method.base", "method.reference_frames=12", "videos of 1 frames"),
    "method=tempme stream=s method.reducer.num_frames=8": ("method.reducer.num_frames", "", "data.num_frames=12. Omit"),
    "method=lwf stream=s method.base=tempme base.reducer.num_frames=8 data.num_frames=4": (
        *("base.reducer.num_frames", "", "8 differs from data.num_frames=4"),
    ),
    "method=xpool stream=s data.sampling=one_per_second": ("data.sampling", "", "this retriever reads all"),
    "method=lwf stream=s method.base=clip4clip data.sampling=one_per_second": (
        *("data.sampling", "", "Use base.mask_missing=true, or data.sampling=segments"),
    ),
    f"method=lwf {FUSED}": ("method.base", "", "Set base.score=words"),
    f"method=vr_lwf {FUSED}": ("method.base", "", "Set base.score=words"),
    f"method=zscl {FUSED}": ("method.base", "", "Set base.score=words"),
    f"method=dsl {FUSED}": ("method.base", "", "Set base.score=words"),
    f"method=der method.target=similarities {FUSED}": ("method.base", "", "Set base.score=words"),
    "method=framefusion_moe stream=s preset=paper,released": ("", "", "are both complete recipes of framefusion_moe"),
    "method=camoe stream=s preset=rkw,akwe": ("preset", "", "rkw sets method.sentences to rkw, but akwe sets it to"),
    "method=tempme stream=s preset=a1-one-step,a2-four-clips": ("preset", "", "sets method.reducer.clip_groups"),
    "method=lwf stream=s preset=no-ffa": ("preset", "", "lwf has no preset called 'no-ffa'"),
    "method=framefusion_moe stream=s preset=relesed": ("preset", "released", "has no preset called 'relesed'"),
}


@pytest.mark.wording
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_setting(words):
    given = dict(word.split("=", 1) for word in words.split())
    presets = given.pop("preset", "").split(",")
    setting, write, said = MISTAKES[words]

    def run():
        resolve(given, presets=with_recipe(given["method"], presets, {}) if presets[0] else ())

    refused(run, said, settings=(setting,), write=tuple(write.split()))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "dsl", "method.base": "camoe", "method.loss": "false"},
        {"method": "zscl", "method.base": "tempme", "method.reference_frames": 12},
        {"method": "zscl", "method.base": "tempme", "method.weight": 0},
        {"method": "lwf", "method.base": "tempme", "data.num_frames": 8},
        {"method": "lwf", "method.base": "structalign", "base.score": "words"},
        {"method": "lwf", "method.base": "structalign", "base.score": "fused", "method.weight": 0},
        {"method": "der", "method.base": "structalign", "base.score": "fused"},
        {"method": "er_ring", "method.base": "structalign", "base.score": "fused"},
        {"method": "upper_bound", "method.base": "structalign", "base.score": "fused"},
    ],
)
def test_what_the_message_proposes_or_does_not_concern_is_accepted(settings):
    assert resolve({"stream": "s", **settings}).base is not None


def test_a_preset_follows_the_retriever_that_is_wrapped():
    usual = preset_settings("lwf", ["shapes"], {})
    assert usual == {"method.weight": 0.01, "base.lr": 4e-6}
    own = {name.replace("method.", "base."): value for name, value in presets_of("framefusion_moe")["shapes"].items()}
    weight = {"method.weight": 0.01}
    assert preset_settings("lwf", ["shapes"], {"method.base": "framefusion_moe"}) == weight | own
    assert preset_settings("lwf", ["shapes"], {"method.base": "zero_shot"}) == weight  # it has none of that name
    original = preset_settings("lwf", ["original"], {"method.base": "framefusion_moe"})
    assert {"optim.weight_decay": 0.0, "optim.eps": 1e-8, "data.batch_size": 64}.items() <= original.items()
    assert not [name for name in original if name.startswith("base.")]  # what is not the retriever's stays
    made = resolve({"method": "lwf", "stream": "s", "method.base": "framefusion_moe"}, presets=["shapes"])
    assert made.base.ffa_init == "zero_out"


ACTNET = {"preset": "paper-actnet", "data.num_frames": 24, "data.batch_size": 16, "optim.epochs": 20}
SHAPES = {"preset": "shapes", "data.num_frames": 8, "data.batch_size": 8, "optim.lr_scale": 50}


def on(method, recommended, *presets, **overrides):
    chosen = with_recipe(method, presets, recommended)
    settings = {"method": method, "stream": "s", **{name.replace("__", "."): v for name, v in overrides.items()}}
    return resolve(settings, recommended, chosen).settings


def differing(a, b):
    return {name for name in {*a, *b} if a.get(name) != b.get(name)}


@pytest.mark.parametrize("recommended", [ACTNET, SHAPES, {}], ids=["actnet", "shapes", "plain"])
@pytest.mark.parametrize("method", [*METHODS, *CONFIGURATIONS])
def test_an_ablation_changes_only_its_settings(method, recommended):
    for preset, settings in presets_of(method).items():
        if "method.reducer.clip_groups" in settings and recommended.get("data.num_frames") == 8:
            continue  # schedules of 12 frames
        if isinstance(settings, Override) and "method.base" not in settings:
            full, ablated = on(method, recommended), on(method, recommended, preset)
            found = differing(full, ablated)
            for group in (name.removesuffix("name") for name in settings if name.endswith(".name")):
                # another reducer or map has other settings, at their defaults
                found -= {name for name in found if name.startswith(group) and name not in settings}
            assert found == {name for name, value in settings.items() if full.get(name) != value}, preset


def test_ablation_changes_one_recommended_setting():
    full, ablated = on("framefusion_moe", ACTNET), on("framefusion_moe", ACTNET, "no-ffa")
    assert differing(full, ablated) == {"method.use_ffa"}
    assert (ablated["method.num_experts"], ablated["method.ffa_layers"]) == (5, 12)
    both = on("framefusion_moe", ACTNET, "no-ffa", "frozen-text")
    assert differing(ablated, both) == {"method.use_tame"}


@pytest.mark.parametrize("recommended", [ACTNET, SHAPES], ids=["actnet", "shapes"])
def test_a_recipe_that_is_named_is_no_mixture_with_the_recommended_one(recommended):
    plain = {name: value for name, value in recommended.items() if name != "preset"}
    for method in METHODS:
        for preset, settings in presets_of(method).items():
            if not isinstance(settings, Override):
                assert with_recipe(method, [preset], recommended) == (preset,)
                made = preset_settings(method, [preset], {}, recommended)
                assert made == settings, (method, preset)
    released = on("framefusion_moe", recommended, "no-ffa", "released")
    assert (
        released
        == resolve(
            {"method": "framefusion_moe", "stream": "s", **plain, **presets_of("framefusion_moe")["released"]}
            | {"method.use_ffa": False}
        ).settings
    )


def test_recipe_of_another_frame_count_is_not_used():
    assert with_recipe("tempme", [], ACTNET) == ("paper",)  # TempMe's recipe for ActivityNet has 64 frames
    assert with_recipe("camoe", [], ACTNET) == ()  # its paper has 16
    assert with_recipe("camoe", ["mean"], {"preset": "paper"}) == ("paper", "mean")
    assert with_recipe("camoe", ["mean"], {"data.batch_size": 4}) == ("mean",)  # a stream that recommends none
    assert with_recipe("clip4clip", ["seqLSTM", "original"], SHAPES) == ("original", "seqLSTM")
    assert with_recipe("er_ring_moco", [], SHAPES) == ("shapes",)


@pytest.mark.parametrize("recommended", [ACTNET, SHAPES], ids=["actnet", "shapes"])
def test_a_base_that_a_preset_chose_has_the_settings_of_its_own_row(recommended):
    own = on("clip_vip", recommended)
    wrapped = on("tvr_plus_cl", recommended)
    tower = {name.partition(".")[2]: value for name, value in own.items() if name.startswith("method.")}
    assert tower == {name.partition(".")[2]: value for name, value in wrapped.items() if name.startswith("base.")}
    own = on("framefusion_moe", recommended)
    wrapped = on("lwf", recommended, method__base="framefusion_moe")
    assert {name.replace("method.", "base."): value for name, value in own.items() if name.startswith("method.")} == {
        name: value for name, value in wrapped.items() if name.startswith("base.")
    }
    moco = on("base_moco", SHAPES)
    assert on("er_ring_moco", SHAPES)["base.lr"] == moco["method.lr"]


def test_a_rate_of_another_optimizer_brings_that_optimizer():
    """LPI's rate is the release's for SGD; a stream, a recipe and the user may set another optimizer."""
    plain = resolve({"method": "lpi", "stream": "s"}).settings
    recipe = presets_of("lpi")["paper"]
    named = {name: value for name, value in recipe.items() if name.startswith("optim.") and name != "optim.epochs"}
    assert {name: plain[name] for name in named} == named
    assert plain["method.lr"] == recipe["method.lr"]
    wrapped = resolve({"method": "lwf", "stream": "s", "method.base": "lpi"}).settings
    assert {name: wrapped[name] for name in named} == named
    images = resolve({"method": "image_si", "stream": "s"}).settings
    assert (images["optim.name"], images["optim.momentum"]) == ("sgd", 0.9)
    assert resolve({"method": "lpi", "stream": "s"}, {"optim.name": "bert_adam"}).settings["optim.name"] == "bert_adam"
    assert resolve({"method": "lpi", "stream": "s", "optim.name": "adamw"}).settings["optim.name"] == "adamw"


def test_a_recipe_for_the_usual_optimizer_names_all_of_it():
    """The embedded streams train LPI, alone or wrapped, by the same AdamW as other methods."""
    names = [f"optim.{each.name}" for each in fields(OptimConfig)]
    usual = on("clip4clip", SHAPES)
    for found in (on("lpi", SHAPES), on("lwf", SHAPES, method__base="lpi")):
        assert {name: found[name] for name in names} == {name: usual[name] for name in names}


@pytest.mark.parametrize("family", ["", *GROUPS, *EVERY_METHOD])
def test_a_refused_number_is_named_by_its_setting_as_typed(family):
    """Yield every field of a family, with numbers that most fields refuse."""
    config = GROUPS.get(family) or (find_method(family).Config if family else RunConfig)
    group = family if family in GROUPS or not family else "method"
    needed = {"method": "m", "stream": "s"} if config is RunConfig else {}
    told: dict[str, list[str]] = {}
    for name in (field.name for field in fields(config)):
        for value in (-1, 0, -0.5, 2, math.inf):
            try:
                build(config, {**needed, name: value}, group)
            except ConfigError as error:
                told.setdefault(f"{group}.{name}" if group else name, []).append(str(error))
    unnamed = [line for name, lines in told.items() for line in lines if name not in re.findall(r"[\w.]*\w", line)]
    assert unnamed == []
    assert family not in ("", "data", "optim", "evaluation") or len(told) >= 3
