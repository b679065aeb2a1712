import math

import pytest
import torch

from ctvr.methods.dsl import DSL, DSLConfig
from ctvr.methods.layers.losses.dual_softmax import revise
from tests.methods.conftest import make_batch, maker
from tests.methods.steps import train_stream, weights


@pytest.fixture
def make(base):
    return maker(DSL, base)


def test_with_neither_loss_nor_search_it_is_the_retriever(make, base):
    method = make(loss=False, search=False)
    assert train_stream(method) == train_stream(base)
    assert torch.equal(weights(method), weights(base))
    scores = torch.rand(3, 4)
    assert method.normalize_scores(scores) is scores


def test_with_a_flat_prior_training_is_the_retrievers(make, base):
    method = make(temperature=math.inf, reduction="mean")
    assert train_stream(method) == pytest.approx(train_stream(base), abs=1e-4)
    torch.testing.assert_close(weights(method), weights(base), atol=1e-5, rtol=1e-3)


def test_only_a_revised_search_is_transductive(make):
    assert make().declared.is_transductive
    assert not make(search=False).declared.is_transductive


def test_the_search_revises_scaled_similarities(make):
    method, scores = make(test_temperature=2.0), torch.rand(5, 6)
    scaled = method.scale().item() * scores
    torch.testing.assert_close(method.normalize_scores(scores), revise(scaled, 2.0))
    torch.testing.assert_close(method.normalize_scores_v2t(scores), revise(scaled, 2.0, dim=1))


def test_a_retriever_without_a_contrastive_loss_is_named(base):
    base.losses = lambda batch: {"queue": torch.ones(())}
    with pytest.raises(ValueError, match=r"clip4clip has only queue. Set method.loss=false"):
        DSL(DSLConfig(), base).losses(make_batch())


def test_the_loss_counts_as_often_as_its_weight_says(make):
    terms = []
    for weight in (1.0, 5.0):
        method = make(weight=weight)
        terms.append(float(method.losses(make_batch())["contrastive"].detach()))
    assert terms[1] == pytest.approx(5 * terms[0])
