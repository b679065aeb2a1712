"""XBT: our interpretation of a projection that is trained on text alone, under noise."""

import copy

import pytest
import torch

from ctvr.methods.base import Batch, l2_normalize
from ctvr.methods.families.compensation import MapLink
from ctvr.methods.xbt import XBT, Projection, XBTConfig
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import begin, moved, train_stream

KINDS = ["linear", "mlp"]


def fitted(new, old, **settings) -> MapLink:
    config = XBTConfig(**settings)
    made = MapLink(Projection(config), new.shape[1], 1, config.pairs)
    made.fit(0, new, old)
    return made


def pairs(n=200, d=6):
    torch.manual_seed(0)
    new = l2_normalize(torch.randn(n, d))
    return new, l2_normalize(new + 0.4 * new @ torch.randn(d, d) + 0.2 * torch.randn(d))


def cosine(made: MapLink, new, old) -> float:
    return float((l2_normalize(made(new, 0)) * old).sum(dim=1).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_a_projection_begins_as_the_identity_and_comes_closer(kind):
    new, old = pairs()
    blank = MapLink(Projection(XBTConfig(projection=kind)), 6, 1, 10)
    torch.testing.assert_close(blank(new, 0), new, rtol=0, atol=0)
    before, after = cosine(blank, new, old), cosine(fitted(new, old, projection=kind, lr=2e-2, steps=150), new, old)
    assert after > before + 0.1


def test_without_noise_a_linear_projection_is_the_least_squares_map():
    new, old = pairs()
    made = fitted(new, old, noise=0.0, loss="squared", lr=1e-2, steps=1500)
    held = torch.arange(len(new)) % 10 == 9
    known = torch.cat([new, torch.ones(len(new), 1)], dim=1)
    best = torch.linalg.lstsq(known[~held], old[~held]).solution
    torch.testing.assert_close(made.matrix[0], best[:-1], rtol=0, atol=0.02)
    torch.testing.assert_close(made.shift[0], best[-1], rtol=0, atol=0.02)


def test_noise_lets_a_projection_hold_off_the_captions():
    """Captions vary in two directions of six; a feature near a caption still maps to the caption's old feature."""
    torch.manual_seed(0)
    plane, turn = torch.randn(2, 6), torch.linalg.qr(torch.randn(6, 6))[0]
    new = l2_normalize(torch.randn(300, 2) @ plane)
    old = new @ turn
    off = l2_normalize(new + 0.3 * torch.randn(300, 6))
    plain, noisy = (fitted(new, old, noise=noise, lr=2e-2, steps=250) for noise in (0.0, 0.3))
    assert cosine(noisy, off, old) > cosine(plain, off, old) + 0.02
    assert min(cosine(made, new, old) for made in (plain, noisy)) > 0.98


def test_noise_repeats_and_keeps_the_global_rng():
    new, old = pairs()
    state = torch.get_rng_state()
    first, second = (fitted(new, old, noise=0.1, steps=20, lr=1e-2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.matrix, second.matrix)
    assert not torch.equal(first.matrix, fitted(new, old, noise=0.05, steps=20, lr=1e-2).matrix)


def learned(base, batches, **settings) -> XBT:
    method = XBT(XBTConfig(**{"steps": 20, **settings}), copy.deepcopy(base))
    train_stream(method, tasks=1, steps=1)
    begin(method, 1)
    moved(method)
    method.eval()
    torch.manual_seed(3)
    method.end_task(make_task(1), batches)
    return method


def test_the_fit_reads_no_frames_and_keeps_nothing_of_the_old_model(base):
    batch = make_batch()
    blind = Batch(torch.full_like(batch.frames, float("nan")), batch.tokens, batch.video_ids, batch.categories)
    found = [learned(base, [each]) for each in (batch, blind)]
    assert torch.equal(found[0].links[0].matrix, found[1].links[0].matrix)
    assert found[0].teacher is None
    own = {name for name in found[0].state_dict() if not name.startswith("base.")}
    assert own == {"links.0.identity", "links.0.matrix", "links.0.shift"}


def test_random_sentences_are_added_to_the_captions(base):
    seen = []
    for sentences in (0, 300):
        method = learned(base, [make_batch()], sentences=sentences)
        seen.append(method.links[0].matrix)
    assert not torch.equal(seen[0], seen[1])
    method = XBT(XBTConfig(sentences=300), copy.deepcopy(base))
    train_stream(method, tasks=1, steps=1)
    begin(method, 1)
    moved(method)
    method.eval()
    method.links[0]._fit = lambda row, new, old: seen.append(new)
    method.end_task(make_task(1), [make_batch(6)])
    assert len(seen[-1]) == 306
