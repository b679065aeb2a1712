import math

import pytest
import torch

from ctvr.methods.layers.losses.contrastive import contrastive
from ctvr.methods.layers.losses.dual_softmax import dual_softmax, prior, revise

FLAT = math.inf


@pytest.fixture
def logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (20 + 5 * torch.randn(7, 7, generator=generator)).double()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_with_a_uniform_prior_it_is_the_cross_entropy(logits, reduction):
    assert torch.isclose(dual_softmax(logits, FLAT, reduction=reduction), contrastive(logits, reduction), atol=1e-12)


def test_as_printed_a_uniform_prior_divides_the_scale_by_the_batch(logits):
    assert torch.isclose(dual_softmax(logits, FLAT, gain="one"), contrastive(logits / 7, "sum"), atol=1e-12)


def test_each_direction_is_weighted_by_the_other_ones_softmax(logits):
    assert torch.allclose(prior(logits, 3.0, 0).sum(0), torch.ones(7).double())
    assert torch.allclose(prior(logits, 3.0, 1).sum(1), torch.ones(7).double())
    assert torch.allclose(prior(logits, 3.0, 0), prior(logits.mT, 3.0, 1).mT)


def test_it_agrees_with_a_loop_over_the_equations(logits):
    z, size, total = (logits / 100).tolist(), len(logits), 0.0  # rows captions j, columns videos i
    for a in range(size):
        over_captions = [[math.exp(z[c][v]) / sum(math.exp(z[k][v]) for k in range(size)) for v in range(size)]
                         for c in range(size)]  # fmt: skip
        over_videos = [[math.exp(z[c][v]) / sum(math.exp(z[c][k]) for k in range(size)) for v in range(size)]
                       for c in range(size)]  # fmt: skip
        t2v = [math.exp(z[a][v] * over_captions[a][v]) for v in range(size)]
        v2t = [math.exp(z[c][a] * over_videos[c][a]) for c in range(size)]
        total -= (math.log(t2v[a] / sum(t2v)) + math.log(v2t[a] / sum(v2t))) / size
    assert float(dual_softmax(logits / 100, 1.0, gain="one")) == pytest.approx(total)


def test_pairs_of_the_same_video_are_no_negatives(logits):
    videos = torch.tensor([0, 0, 1, 2, 3, 4, 5])
    changed = logits.clone()
    changed[0, 1] += 50
    changed[1, 0] -= 50
    for temperature in (30.0, FLAT):
        kept = dual_softmax(logits, temperature, videos=videos)
        assert torch.isclose(kept, dual_softmax(changed, temperature, videos=videos))
    assert torch.isclose(dual_softmax(logits, FLAT, videos=videos), contrastive(logits, "sum", videos))


def test_masked_pairs_leave_the_gradient_finite(logits):
    logits.requires_grad_(True)
    dual_softmax(logits, 10.0, videos=torch.zeros(7)).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("size", [0, 1])
def test_no_pair_and_one_pair_cost_nothing(size):
    assert float(dual_softmax(torch.ones(size, size))) == 0


def test_a_single_query_keeps_its_ranking(logits):
    assert revise(logits[:1]).argsort().tolist() == logits[:1].argsort().tolist()


def test_dual_softmax_gives_a_hub_to_its_best_caption():
    logits = torch.tensor([[9.0, 2.0, 1.0], [8.0, 7.0, 1.0], [8.0, 1.0, 7.0]])  # video 0 is a hub
    assert logits.argmax(dim=1).tolist() == [0, 0, 0]
    assert revise(logits).argmax(dim=1).tolist() == [0, 1, 2]


def test_captions_of_one_video_keep_their_order(logits):
    centred = logits - 20
    assert torch.equal(revise(centred).argsort(dim=0), centred.argsort(dim=0))


def test_similarities_below_zero_are_not_lifted():
    logits = torch.tensor([[-1.0, 0.5], [3.0, 9.0]])
    revised = revise(logits)
    assert revised[0].argmax() == 1
    assert revised[0, 0] == -1


def test_hopeless_pairs_are_distinguished_at_any_scale():
    logits = torch.tensor([[10.0, 11.0, 12.0], [190.0, 190.0, 190.0]])
    assert revise(logits)[0].argsort().tolist() == [0, 1, 2]


def test_dual_softmax_revises_each_direction_by_the_other(logits):
    torch.testing.assert_close(revise(logits, 2.0, dim=1), revise(logits.mT, 2.0).mT)
    caption_hub = torch.tensor([[9.0, 8.0, 8.0], [2.0, 7.0, 1.0], [1.0, 1.0, 7.0]])  # caption 0 attracts every video
    assert caption_hub.argmax(dim=0).tolist() == [0, 0, 0]
    assert revise(caption_hub, dim=0).argmax(dim=0).tolist() == [0, 0, 0]
    assert revise(caption_hub, dim=1).argmax(dim=0).tolist() == [0, 1, 2]
