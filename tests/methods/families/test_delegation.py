"""A strategy is the retriever that it wraps, except where it states otherwise: a walk over the contract."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ctvr.methods import METHODS, find_method
from ctvr.methods.base import Capabilities, Method, l2_normalize
from ctvr.methods.capabilities import capabilities_of
from ctvr.methods.families.strategy import BUILT_ON, NOT_FORWARDED, SET_BY_THE_LOOP, Strategy
from ctvr.methods.hooks import Hooks
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.task_captions import by_task
from ctvr.methods.settings import setting
from ctvr.methods.tiny_models import make_batch, make_small_clip
from ctvr.orchestrator.method_checks.subject import equal, learn
from tests.methods.families.test_strategy import IDLE

MEMBERS = [name for name in {**vars(Hooks), **vars(Method), **Method.__annotations__} if not name.startswith("_")]
STRATEGIES = [name for name in METHODS if find_method(name).wraps]
# Settings without effect, of strategies around a retriever that is not one of momentum; the moco ones need `base_moco`
NEUTRAL = {name: settings for name, _, settings in IDLE if "moco" not in name}
NEUTRAL |= {"dsl": {"loss": False, "search": False}, "drift_adapter": {}}


def test_every_exception_is_a_member_and_every_member_is_known():
    assert set(NOT_FORWARDED) <= set(MEMBERS)
    assert all(NOT_FORWARDED.values())
    assert {*BUILT_ON, *SET_BY_THE_LOOP} <= set(MEMBERS)
    assert len(MEMBERS) > 35


@pytest.mark.parametrize("strategy", ["", *STRATEGIES])
@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in NOT_FORWARDED])
def test_a_member_that_a_strategy_does_not_override_is_the_retrievers(strategy, name):
    cls = find_method(strategy) if strategy else Strategy
    if inspect.getattr_static(cls, name) is not inspect.getattr_static(Strategy, name):
        return  # the strategy's own
    if any(getattr(cls, each) is not getattr(Strategy, each) for each in BUILT_ON.get(name, ())):
        return  # built on a member of the strategy
    made, base = cls.__new__(cls), Method()
    nn.Module.__init__(made)
    made.base, expected = base, object()
    base.__class__ = type("Base", (Method,), {})
    if callable(getattr(Method, name)):
        given = [object() for _ in inspect.signature(getattr(Method, name)).parameters][1:]
        setattr(type(base), name, lambda self, *args: (expected, *args))
        assert getattr(made, name)(*given) == (expected, *given)
        return
    object.__setattr__(base, name, expected)
    assert getattr(made, name) is expected
    setattr(made, name, 7)
    assert (getattr(made, name), getattr(base, name)) == (7, 7 if name in SET_BY_THE_LOOP else expected)


@dataclass(frozen=True, kw_only=True)
class HookedConfig:
    lr: float = setting(1e-2, doc="rate")


class Hooked(Method):
    """A retriever whose hooks all have an effect."""

    Config = HookedConfig

    @classmethod
    def capabilities(cls, config):
        return Capabilities(task_conditioned_text=True, uses_all_parameters=True, joins_tasks=True)

    def __init__(self, config, backbone):
        super().__init__()
        self.config, self.backbone, self.text_passes, self.max_frames = config, backbone, 1, 9
        self.frozen_blocks = len(backbone.vision.blocks)
        self.w = nn.Parameter(torch.zeros(backbone.embed_dim))
        self.moves = nn.ParameterList()
        self.register_buffer("steps", torch.zeros(2))
        backbone.requires_grad_(False)

    def begin_task(self, task):
        self.moves.append(nn.Parameter(torch.full((self.backbone.embed_dim,), 0.1 * (task.index + 1))))

    def param_groups(self):
        return [{"name": "w", "params": [self.w, self.moves[-1]], "lr": self.config.lr}]

    def before_step(self):
        self.steps[0] += 1
        self.w.grad = self.w.grad.clamp(-1e-3, 1e-3)

    def after_step(self):
        self.steps[1] += 1
        with torch.no_grad():
            self.w.mul_(0.5)

    def encode_video(self, frames):
        return l2_normalize(mean_pool(self.backbone.vision(frames), "none") + self.w)

    def encode_video_for_task(self, frames, task):
        return self.encode_video(frames) * (task + 1)

    def encode_text_once(self, tokens):
        return self.backbone.text(tokens).float()

    def move_text(self, features, task):
        return l2_normalize(features + self.moves[task])

    def encode_text(self, tokens, task=None):
        return self.move_text(self.encode_text_once(tokens), -1 if task is None else task)

    def encode_own_captions(self, batch, encode=None):
        return 2 * by_task(encode or self.encode_text, batch.tokens, batch.task_ids)

    def score(self, queries, gallery):
        return 3 * queries @ gallery.mT

    def normalize_scores(self, scores):
        return scores + 1

    def normalize_scores_v2t(self, scores):
        return scores + 2

    def scale(self):
        return torch.tensor(7.0)

    def logits(self, batch):
        return super().logits(batch) / 5

    def losses(self, batch):
        return {"own": self.info_nce(batch) + self.w.square().sum()}

    def task_metrics(self):
        return {"steps": float(self.steps.sum())}

    def batch_metrics(self):
        return {"steps": self.steps[0]}

    def similarities(self):
        return {"eye": torch.eye(2)}


def results(method, task, once=True):
    """Return what an evaluation computes after `task`; `once`: also captions for all tasks at once."""
    batch = make_batch(4, 4, seed=3)
    with torch.no_grad():
        videos = [method.encode_video_for_task(batch.frames, each) for each in range(task + 1)]
        texts = [method.encode_text(batch.tokens, task), method.encode_own_captions(replace(batch, task_ids=None))]
        if once:
            texts.append(method.move_text(method.encode_text_once(batch.tokens), task))
        scores = method.score(texts[0], videos[-1])
        found = [method.normalize_scores(scores), method.normalize_scores_v2t(scores), method.logits(batch)]
    return [*videos, *texts, scores, *found, method.scale(), *method.losses(batch).values()]


def trained(make, tasks=2):
    torch.manual_seed(5)
    method = make(make_small_clip())
    losses = [learn(method, index) for index in range(tasks)]
    return method, losses


def of_base(base):
    inner = Hooked if base == "hooked" else find_method(base)
    return inner, inner.Config(**({} if base == "hooked" else {"route": "block"}))


@functools.cache
def trained_alone(base):
    """Return the method without a strategy, its losses and its state; all are only read."""
    inner, config = of_base(base)
    method, losses = trained(lambda clip: inner(config, clip))
    return method, losses, {name: value.clone() for name, value in method.state_dict().items()}


@functools.cache
def results_alone(base, once):
    return results(copy.deepcopy(trained_alone(base)[0]), 1, once)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name in NEUTRAL])
@pytest.mark.parametrize("base", ["hooked", "lpi", "dar"])
def test_a_strategy_without_effect_is_its_base_bit_identically(strategy, base):
    cls, (inner, config) = find_method(strategy), of_base(base)
    own = cls.Config(**NEUTRAL[strategy])
    try:
        cls.check_base(own, inner, config)
    except ValueError:
        return  # refused in one line
    alone, expected, theirs = trained_alone(base)
    wrapped, losses = trained(lambda clip: cls(own, inner(config, clip)))
    assert losses == expected
    mine = wrapped.base.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    once = bool(alone.text_passes and wrapped.text_passes)
    assert equal(results(wrapped, 1, once), results_alone(base, once))
    assert once or not alone.text_passes or strategy in ("qdc", "drift_adapter")  # these move captions themselves
    for name in ("frozen_blocks", "max_frames", "is_joint"):
        assert getattr(wrapped, name) == getattr(alone, name) or (strategy, name) == ("lump", "frozen_blocks")
    assert wrapped.task_metrics() == alone.task_metrics()


def test_an_upper_bound_equals_its_base_after_the_first_task():
    cls = find_method("upper_bound")
    alone, expected = trained(lambda clip: Hooked(HookedConfig(), clip), tasks=1)
    wrapped, losses = trained(lambda clip: cls(cls.Config(), Hooked(HookedConfig(), clip)), tasks=1)
    assert losses == expected
    assert equal(results(wrapped, 0)[:1], results(alone, 0)[:1])


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if not name.endswith("_moco")])
def test_a_strategy_of_our_own_derives_facts_from_both_classes(strategy):
    cls = find_method(strategy)
    base = capabilities_of(Hooked, HookedConfig())
    facts = capabilities_of(cls, cls.Config(), base)
    assert facts.task_conditioned_text
    assert not facts.learns_in_end_task
