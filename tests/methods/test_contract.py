"""What every line of METHODS promises to the loop (methods/base.py)."""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from itertools import product

import pytest
import torch

from methods import CONFIGURATIONS, METHODS, find_method
from methods.backbone.clip import Clip
from methods.base import Method
from orchestrator.errors import ConfigError
from orchestrator.learning.experiment import Experiment
from orchestrator.learning.optimizer import OptimConfig, make_optimizer, set_rates, train_only
from orchestrator.learning.resolve import presets_of, resolve
from orchestrator.learning.weights import backbone_state, changed_state, load_state
from tests.methods.conftest import MadeAgain, make_batch, make_small_clip, make_task

TASKS = 3
# Strategies that mix or compare features themselves: also around a retriever whose videos, and one whose captions,
# are several vectors
CASES = [*METHODS, *(f"{strategy}:{base}" for strategy in ("co2l", "lump") for base in ("xpool", "structalign"))]


def make(name: str) -> Method:
    """A method with its default settings on the small backbone, its new weights seeded; `co2l:xpool` wraps xpool."""
    torch.manual_seed(5)
    name, _, base = name.partition(":")
    cls = find_method(name)
    frames = {"num_frames": 4} if any(f.name == "num_frames" for f in fields(cls.Config)) else {}
    config = cls.Config(**frames, **({"base": base} if base else {}))
    return cls(config, make(config.base) if cls.wraps else make_small_clip())


def learn(method: Method, index: int, steps: int = 2) -> list[float]:
    """One task as the loop runs it; returns the losses of its steps."""
    task = make_task(index, TASKS)
    method.read_pairs_from(MadeAgain())
    torch.manual_seed(100 + index)
    method.begin_task(task)
    groups = method.param_groups()
    parameters = train_only(method, groups)
    losses = []
    if parameters:
        optimizer = make_optimizer(groups, OptimConfig(lr_scale=20.0))
        method.train()
        for step in range(steps):
            torch.manual_seed(1000 * index + step)
            total = sum(method.losses(make_batch(8, 4, seed=10 * index + step, categories=task.categories)).values())
            total.backward()
            set_rates(optimizer, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            method.after_step()
            losses.append(float(total.detach()))
    method.eval()
    loader = [make_batch(8, 4, seed=10 * index + step, categories=task.categories) for step in range(steps)]
    torch.manual_seed(200 + index)
    method.end_task(task, loader)
    with torch.no_grad():
        method.remember(task, method.encode_video(make_batch(5, 4, seed=77 + index).frames).float())
    return losses


@torch.no_grad()
def features(method: Method, task: int) -> list[torch.Tensor]:
    batch = make_batch(6, 4, seed=3)
    return [method.encode_video(batch.frames), method.encode_text(batch.tokens, task)]


def gallery(method: Method, index: int) -> torch.Tensor:
    return method.encode_video(make_batch(5, 4, seed=77 + index).frames).detach().float()


@pytest.mark.parametrize("name", CASES)
def test_save_load_and_continue_is_bit_identical(name):
    """A run that is begun anew after every task, from what was saved, beside one that is not."""
    unbroken = make(name)
    pretrained = backbone_state(unbroken)
    learn(unbroken, 0)
    saved = copy.deepcopy(changed_state(unbroken, pretrained))
    galleries = [gallery(unbroken, 0)]
    for index in range(1, TASKS):
        resumed = make(name)
        pretrained = backbone_state(resumed)
        for done in range(index):
            resumed.eval()
            torch.manual_seed(100 + done)
            task = make_task(done, TASKS)
            resumed.begin_task(task)
            resumed.remember(task, galleries[done])
        load_state(resumed, saved, pretrained)
        resumed.eval()
        for done in range(index):
            for a, b in zip(features(unbroken, done), features(resumed, done)):
                assert torch.equal(a, b)

        assert learn(resumed, index) == learn(unbroken, index)
        for a, b in zip(features(unbroken, index), features(resumed, index)):
            assert torch.equal(a, b)
        mine, others = resumed.state_dict(), unbroken.state_dict()
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[key], others[key]) for key in mine)
        saved = copy.deepcopy(changed_state(resumed, pretrained))
        galleries.append(gallery(resumed, index))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_finite_named_scalars_and_move_only_what_is_handed_over(name):
    method = make(name)
    method.begin_task(make_task(0, TASKS))
    groups = method.param_groups()
    before = {key: value.detach().clone() for key, value in method.named_parameters()}
    trained = {id(p) for p in train_only(method, groups)}
    method.train()
    terms = method.losses(make_batch(8, 4))
    assert terms
    for term in terms.values():
        assert term.ndim == 0
        assert torch.isfinite(term)
    if not trained:
        return
    optimizer = make_optimizer(groups, OptimConfig(lr_scale=20.0))
    sum(terms.values()).backward()
    set_rates(optimizer, 1.0)
    optimizer.step()
    moved = [key for key, p in method.named_parameters() if not torch.equal(p, before[key])]
    handed = [key for key, p in method.named_parameters() if id(p) in trained]
    assert moved
    assert set(moved) <= set(handed)


@pytest.mark.parametrize("name", CASES)
def test_features_do_not_depend_on_the_rest_of_the_batch(name):
    method = make(name)
    learn(method, 0, steps=1)
    batch = make_batch(6, 4, seed=9)
    with torch.no_grad():
        whole, part = method.encode_video(batch.frames), method.encode_video(batch.frames[:2])
        torch.testing.assert_close(part, whole[:2], atol=1e-5, rtol=1e-4)
        gallery = method.encode_video(batch.frames)
        scores = method.score(method.encode_text(batch.tokens, 0), gallery)
        alone = method.score(method.encode_text(batch.tokens[:1], 0), gallery)
        assert scores.shape == (6, 6)
        torch.testing.assert_close(alone, scores[:1], atol=1e-5, rtol=1e-4)
        turned = method.score(method.encode_text(batch.tokens, 0), gallery.flip(0))
        torch.testing.assert_close(turned.flip(1), scores, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [*METHODS, *CONFIGURATIONS])
def test_every_preset_becomes_a_complete_configuration(name):
    for preset, settings in presets_of(name).items():
        made = resolve({"method": name, "stream": "s"}, presets=[preset])
        own = CONFIGURATIONS.get(name, ("", ""))[1]
        assert {preset, f"{own}-{preset}"} & set(made.presets)  # a configuration's own variant stands for it
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
    "zscl": {"tempme"},  # images are videos of one frame
    "upper_bound": {"framefusion_moe", "moe_adapter"},  # captions are read by task
}


def wrapped(strategy: str, retriever: str, *presets: str) -> Experiment:
    settings = {"method": strategy, "method.base": retriever, "stream": "s", "data.num_frames": 4}
    return resolve(settings, presets=presets)


def is_refused(strategy: str, retriever: str, preset: str = "paper") -> bool:
    cls = find_method(strategy)
    asks_nothing = (strategy, preset) in {("dsl", "search"), ("zscl", "weight-consolidation")}  # of a retriever's batch
    if (retriever, preset) == ("structalign", "shapes") and cls.compares(cls.Config()):
        return True  # score=fused, which is final for a complete matrix alone
    return retriever in REFUSED.get(strategy, ()) and not asks_nothing


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_takes_every_retriever_with_every_preset_or_says_why_not(strategy):
    for retriever, preset in product(RETRIEVERS, presets_of(strategy)):
        if is_refused(strategy, retriever, preset):
            message = rf"^method\.base: {strategy} cannot wrap {retriever}: .+\. Write .+\.$"
            with pytest.raises(ConfigError, match=message):
                wrapped(strategy, retriever, preset)
        else:
            assert type(wrapped(strategy, retriever, preset).base) is find_method(retriever).Config


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_do_not_nest(strategy):
    for other in STRATEGIES:
        with pytest.raises(ConfigError, match=f"method.base: {strategy} cannot wrap {other}, which wraps a retriever"):
            wrapped(strategy, other)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_not_refused_learns_and_searches(strategy):
    for retriever in RETRIEVERS:
        if is_refused(strategy, retriever):
            continue
        made = wrapped(strategy, retriever)
        torch.manual_seed(5)
        base = find_method(retriever)(made.base, make_small_clip())
        method = find_method(strategy)(made.method, base)
        for index in range(2):
            assert all(math.isfinite(loss) for loss in learn(method, index, steps=1)), retriever
        with torch.no_grad():
            videos, texts = features(method, 0)
            plain = method.score(texts, videos)
            scores = method.calibrate(plain)
        assert scores.shape == (6, 6), retriever
        kept = scores is plain and method.calibrate_for_videos(plain) is plain
        assert method.calibrates() is not kept, "what is final is ranked without the matrix"
        assert torch.isfinite(scores).all(), retriever


FROZEN = {
    "framefusion_moe, last blocks": ("framefusion_moe", {"ffa_placement": "deepest", "ffa_layers": 3}, 1),
    "framefusion_moe, no blocks": ("framefusion_moe", {"use_ffa": False}, 4),
    "framefusion_moe, first blocks": ("framefusion_moe", {"ffa_layers": 2}, 0),
    "framefusion_moe, merging": ("framefusion_moe", {"use_ffa": False, "reducer": "tome"}, 0),
    "framefusion_moe, no experts": ("framefusion_moe", {"use_tame": False}, 0),
    "structalign, last blocks": ("structalign", {"adapters": "task_aware", "fusion_layers": 2}, 2),
    "zero_shot": ("zero_shot", {}, 4),
}


def make_case(case: str) -> Method:
    name, settings, _ = FROZEN[case]
    torch.manual_seed(5)
    cls = find_method(name)
    return cls(cls.Config(**settings), make_small_clip())


def test_every_method_that_calls_blocks_frozen_is_tested():
    named = {name for name in METHODS if make(name).frozen_blocks or make(name).frozen_text}
    assert named <= {name for name, _, _ in FROZEN.values()}


@pytest.mark.parametrize("case", FROZEN)
def test_blocks_that_are_called_frozen_are_those_of_the_pre_trained_tower(case):
    method = make_case(case)
    assert method.frozen_blocks == FROZEN[case][2]
    (tower,) = [module.vision for module in method.modules() if isinstance(module, Clip)]
    pretrained = make_small_clip().vision
    for index in range(2):
        learn(method, index)
        frames = make_batch(3, 4, seed=50 + index).frames
        tower.entry = method.frozen_blocks
        expected = method.encode_video(frames)
        if method.frozen_blocks:
            assert torch.equal(method.encode_video(pretrained.prefix(frames, method.frozen_blocks)), expected)


@pytest.mark.parametrize("case", FROZEN)
def test_a_text_tower_that_is_called_frozen_says_the_same_in_every_task(case):
    method = make_case(case)
    assert method.frozen_text == (case in {"zero_shot", "framefusion_moe, no experts"})
    tokens = make_batch(5, 4, seed=3).tokens
    first = method.encode_text(tokens, 0) if method.frozen_text else None
    for index in range(2):
        learn(method, index)
        if first is not None:
            assert torch.equal(method.encode_text(tokens, index), first)
