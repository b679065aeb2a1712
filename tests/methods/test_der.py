import copy

import pytest
import torch

from ctvr.methods.der import DER, DERConfig
from tests.methods.conftest import THREE, RegeneratedPairs, make_batch, make_task
from tests.methods.steps import moved

TARGETS = ["features", "similarities"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", THREE)
def test_pairs_that_have_not_moved_cost_nothing_and_moved_ones_do(bases, name, target):
    method = DER(DERConfig(buffer_size=6, target=target), bases[name])
    method.set_pair_source(RegeneratedPairs())
    method.begin_task(make_task(0))
    method.eval()
    method.end_task(make_task(0), iter([make_batch(4, 2, seed=i) for i in range(2)]))
    rows = torch.arange(6)
    assert float(method.distil(rows).detach()) == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        for parameter in method.base.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    assert float(method.distil(rows).detach()) > 1e-4


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_of_moved_pairs_equals_a_manual_computation(bases, target):
    terms = {}
    for alpha in (0.5, 2.0):
        method = DER(DERConfig(buffer_size=4, target=target, alpha=alpha), copy.deepcopy(bases["clip4clip"]))
        method.set_pair_source(RegeneratedPairs())
        method.begin_task(make_task(0))
        method.eval()
        pairs = make_batch(4, 2)
        method.end_task(make_task(0), iter([pairs]))
        moved(method)
        torch.manual_seed(0)  # of the drawn pairs
        terms[alpha] = float(method.losses(pairs)["distillation"].detach())
    assert terms[2.0] == pytest.approx(4 * terms[0.5], rel=1e-4)
    rows = torch.arange(4)
    kept = method.memory.batch(rows)
    video, text = method.base.encode_video(kept.frames), method.base.encode_text(kept.tokens)
    old_video, old_text = method.memory.video_features, method.memory.text_features
    if target == "features":
        expected = ((video - old_video).square().sum() + (text - old_text).square().sum()) / 2 / 4
    else:
        expected = (text @ video.mT - old_text @ old_video.mT).square().mean()
    assert float(method.distil(rows).detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
