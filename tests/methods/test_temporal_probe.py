"""A temporal adapter can learn the direction of time, which mean pooling provably cannot.

The probe is `traffic`: a car overtakes a truck, and every clip comes with its exact reversal. Both clips
hold the same frames, so any mean over frames is the same for both.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.clip import BlockSeams
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.layers.pooling import mean_pool
from ctvr.methods.layers.temporal import FrameFusion
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, draw_scene

PROBE = 3  # in the seeds of its scenes: differs from the streams' splits


def clips(seed: int, scenes: int) -> tuple[Tensor, Tensor]:
    """Return normalized clips (2N, T, 3, S, S), each scene followed by its reversal, and labels: 0 forward, 1
    backward.
    """
    index, found = [each.name for each in CATEGORIES].index("traffic"), []
    for number in range(scenes):
        scene = draw_scene(index, np.random.default_rng([seed, index, PROBE, number]))
        forward = scene.render(backward=False, frames=8, size=64)
        found += [forward, forward[::-1]]
    x = torch.from_numpy(np.stack(found)).permute(0, 1, 4, 2, 3).float() / 255
    return (x - 0.5) / 0.25, torch.tensor([0, 1] * scenes)


@pytest.fixture(scope="module")
def held_out() -> tuple[Tensor, Tensor]:
    return clips(seed=2, scenes=24)


def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the forward and the backward clips, scene by scene."""
    return x[y == 0], x[y == 1]


@torch.no_grad()
def test_mean_pooling_cannot_tell_a_clip_from_its_reversal(held_out):
    backbone = load_backbone("tiny-clip", "shipped")
    forward, backward = pairs(*held_out)
    assert torch.equal(forward, backward.flip(1))
    torch.testing.assert_close(
        mean_pool(backbone.vision(forward)), mean_pool(backbone.vision(backward)), atol=1e-5, rtol=0
    )


@pytest.mark.slow
def test_frame_fusion_learns_the_direction_of_time(held_out):
    torch.manual_seed(0)
    backbone = load_backbone("tiny-clip", "shipped").requires_grad_(False)
    fusion = nn.ModuleList(
        FrameFusion(96, 3, "next" if layer % 2 else "previous", "add", True, "zero_out", 1.0) for layer in range(4)
    )
    head = nn.Linear(backbone.embed_dim, 2, bias=False)

    def logits(x: Tensor) -> Tensor:
        return 10 * head(mean_pool(backbone.vision(x, [BlockSeams(beside=block) for block in fusion])))

    x, y = clips(seed=1, scenes=48)
    forward, backward = pairs(x, y)
    optimizer = torch.optim.AdamW(
        [{"params": fusion.parameters(), "lr": 2e-3}, {"params": head.parameters(), "lr": 1e-2}], weight_decay=0.01
    )
    for _ in range(25):
        for scenes in torch.randperm(len(forward)).split(16):
            batch = torch.cat([forward[scenes], backward[scenes]])
            target = torch.cat([torch.zeros(len(scenes)), torch.ones(len(scenes))]).long()
            loss = F.cross_entropy(logits(batch), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*fusion.parameters(), *head.parameters()], 1.0)
            optimizer.step()
    with torch.no_grad():
        accuracy = (logits(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
    assert accuracy > 0.8
