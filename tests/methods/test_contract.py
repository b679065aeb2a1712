"""Contract of every entry of METHODS with the training loop (methods/base.py)."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from ctvr.methods import CONFIGURATIONS, METHODS, find_method
from ctvr.methods.base import Method
from ctvr.orchestrator.method_checks import checks, leakage
from ctvr.orchestrator.method_checks.subject import Subject, features, learn
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.presets import presets_of
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import make_small_clip
from tests.refusing import refuses

# Strategies that mix or compare features themselves: also around a retriever whose videos, and one whose captions,
# are several vectors
CASES = [*METHODS, *(f"{strategy}:{base}" for strategy in ("co2l", "lump") for base in ("xpool", "structalign"))]


# 500 steps of a map by default, each like the one before
FITS = {"lambda_orthogonality": {"method.map.steps": 20}, "xbt": {"method.steps": 20}}


def subject(name: str) -> Subject:
    """Return a method with its default settings and fits of few steps; `co2l:xpool` wraps xpool."""
    name, _, base = name.partition(":")
    return shallow(Subject.of(name, {**({"method.base": base} if base else {}), **FITS.get(name, {})}))


def shallow(subject: Subject) -> Subject:
    """Return the method of `subject` on towers of two blocks, at half the cost."""
    return replace(subject, layers=2)


def make(name: str) -> Method:
    """Return the method of `subject` on the small backbone, with seeded new weights."""
    return subject(name).make()


@pytest.mark.parametrize("name", CASES)
def test_save_load_and_continue_is_bit_identical(name):
    """A run that restarts from its saved state after every task equals one that does not."""
    checks.check_resume(subject(name))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_finite_named_scalars_and_move_only_what_is_handed_over(name):
    checks.check_losses(subject(name))


@pytest.mark.parametrize("name", CASES)
def test_features_do_not_depend_on_the_rest_of_the_batch(name):
    checks.check_batch_independence(subject(name))


@pytest.mark.parametrize("name", METHODS)
def test_an_evaluation_sees_no_later_task_and_no_order(name):
    leakage.check_evaluation(subject(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_evaluation_losses_change_nothing_that_is_trained(name):
    seen, refused = [], 0
    for preset in presets_of(name):
        try:
            found = shallow(Subject.of(name, FITS.get(name), presets=[preset]))
            found.make()
        except ValueError:  # it does not fit the small backbone, or its four frames
            refused += 1
            continue
        key = found.experiment.method, found.experiment.base
        if key not in seen:
            seen.append(key)
            leakage.unlearned(found)
    assert seen
    assert refused <= len(presets_of(name)) // 2


# Methods whose losses note something: references, statistics, experts, queues, routes, drawn pairs
NOTES = ("framefusion_moe released", "structalign released", "moe_adapter", "bmu_moco", "ctp", "dar", "umt", "lump")


@pytest.mark.parametrize("preset", NOTES)
def test_evaluated_pairs_change_no_statistics_of_steps(preset):
    name, *chosen = preset.split()
    leakage.unlearned(shallow(Subject.of(name, presets=chosen)))


@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_every_preset_becomes_a_complete_configuration(name):
    for preset, settings in presets_of(name).items():
        made = resolve({"method": name, "stream": "s"}, presets=[preset])
        own = CONFIGURATIONS.get(name, ("", ""))[1]
        assert {preset, f"{own}-{preset}"} & set(made.presets)  # a configuration's own variant covers it
        for setting, value in settings.items():
            found = made.settings[setting]
            assert (tuple(found) if isinstance(found, list) else found) == value, f"{preset}: {setting}"
        assert resolve(made.settings).settings == made.settings, preset


# ------------------------------------------------------------------------------- strategies and retrievers

STRATEGIES = [name for name in METHODS if find_method(name).wraps]
RETRIEVERS = [name for name in METHODS if not find_method(name).wraps]
MOMENTUM = {"base_moco", "bmu_moco", "bmu_fixed", "bmu_ensemble"}
REFUSED = {
    **{name: {*RETRIEVERS} - MOMENTUM for name in STRATEGIES if name.endswith("_moco")},
    "dsl": {"camoe", *MOMENTUM},  # no contrastive loss of a batch alone
    "ctp": {name for name in RETRIEVERS if find_method(name).score is not Method.score},  # several vectors
    "lump": {"lpi"},  # it rewrites captions, which are mixed as they are
    "zscl": {"tempme"},  # images are videos of one frame
}


def wrapped(strategy: str, retriever: str, *presets: str) -> Experiment:
    settings = {"method": strategy, "method.base": retriever, "stream": "s", "data.num_frames": 4}
    return resolve({**settings, **FITS.get(strategy, {})}, presets=presets)


def is_refused(strategy: str, retriever: str, preset: str = "paper") -> bool:
    cls = find_method(strategy)
    of_retriever = find_method(retriever).capabilities(find_method(retriever).Config())
    if of_retriever.several_text_vectors and cls.capabilities(cls.Config()).compensates_age:
        return True  # it maps the one vector of a caption
    if of_retriever.videos_are_frozen and (strategy == "lwf" or cls.capabilities(cls.Config()).compensates_age):
        return True  # they act on videos
    asks_nothing = (strategy, preset) in {("dsl", "search"), ("zscl", "weight-consolidation")}  # of a retriever's batch
    if (retriever, preset) == ("structalign", "shapes") and cls.compares(cls.Config()):
        return True  # score=fused, which is final for a complete matrix alone
    if retriever == "umt" and not cls.needs_momentum:  # its score is not final while it reranks
        config = wrapped(strategy, "clip4clip", preset).method
        return cls.compares(config) or getattr(config, "mix_level", "feature") == "input"  # as CLIP reads captions
    return retriever in REFUSED.get(strategy, ()) and not asks_nothing


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_accepts_or_refuses_every_retriever_preset(strategy):
    for retriever, preset in product(RETRIEVERS, presets_of(strategy)):
        if is_refused(strategy, retriever, preset):
            with refuses(strategy, retriever, where="method.base"):
                wrapped(strategy, retriever, preset)
        else:
            assert type(wrapped(strategy, retriever, preset).base) is find_method(retriever).Config


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_do_not_nest(strategy):
    for other in STRATEGIES:
        with refuses(where="method.base"):
            wrapped(strategy, other)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_accepted_retriever_of_a_strategy_learns_and_searches(strategy):
    for retriever in RETRIEVERS:
        if is_refused(strategy, retriever):
            continue
        made = wrapped(strategy, retriever)
        torch.manual_seed(5)
        base = find_method(retriever)(made.base, make_small_clip(layers=2))
        method = find_method(strategy)(made.method, base)
        for index in range(2):
            assert all(math.isfinite(loss) for loss in learn(method, index, steps=1)), retriever
        with torch.no_grad():
            videos, texts = features(method, 0)
            plain = method.score(texts, videos)
            scores = method.normalize_scores(plain)
        assert scores.shape == (6, 6), retriever
        kept = scores is plain and method.normalize_scores_v2t(plain) is plain
        assert method.declared.normalizes_scores is not kept, "what is final is ranked without the matrix"
        assert torch.isfinite(scores).all(), retriever


# In addition to the defaults
FROZEN = {
    "framefusion_moe, last blocks": ("framefusion_moe", {"ffa_placement": "deepest", "ffa_layers": 3}, 1),
    "framefusion_moe, no blocks": ("framefusion_moe", {"use_ffa": False}, 4),
    "framefusion_moe, first blocks": ("framefusion_moe", {"ffa_layers": 2}, 0),
    "framefusion_moe, merging": ("framefusion_moe", {"use_ffa": False, "reducer.name": "tome"}, 0),
    "framefusion_moe, no experts": ("framefusion_moe", {"use_tame": False}, 0),
    "structalign, last blocks": ("structalign", {"adapters": "task_aware", "fusion_layers": 2}, 2),
}


@pytest.mark.parametrize("name", METHODS)
def test_parts_that_a_method_declares_frozen_are_frozen(name):
    checks.check_frozen(subject(name))


@pytest.mark.parametrize("case", FROZEN)
def test_parts_frozen_by_settings_are_declared_and_are_frozen(case):
    name, settings, blocks = FROZEN[case]
    looked_at = Subject.of(name, {f"method.{key}": value for key, value in settings.items()})
    method = looked_at.make()
    assert method.frozen_blocks == blocks
    assert method.declared.text_is_frozen == (case == "framefusion_moe, no experts")
    checks.check_frozen(looked_at)
