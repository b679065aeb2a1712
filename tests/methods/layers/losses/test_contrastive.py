import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ctvr.methods.layers.losses.contrastive import contrastive, cross_task, distillation

FIXTURE = Path(__file__).parents[2] / "fixtures" / "framefusion_released.npz"


@pytest.fixture
def logits():
    return 5 * torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def references():
    return 5 * torch.randn(6, 9, generator=torch.Generator().manual_seed(1))


def caption_to_video(logits):
    """Compute L_t2v with a loop."""
    rows = [torch.logsumexp(row, 0) - row[i] for i, row in enumerate(logits)]
    return torch.stack(rows).mean()


def test_contrastive_is_the_mean_of_both_directions(logits):
    expected = (caption_to_video(logits) + caption_to_video(logits.mT)) / 2
    torch.testing.assert_close(contrastive(logits), expected)
    torch.testing.assert_close(contrastive(logits, "sum"), 2 * expected)


def test_one_pair_costs_nothing_and_teaches_nothing():
    logits = torch.randn(1, 1, requires_grad=True)
    loss = contrastive(logits)
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(logits.grad) == 0


def test_without_references_the_cross_task_loss_is_l_t2v(logits):
    torch.testing.assert_close(cross_task(logits, logits.new_empty(6, 0)), caption_to_video(logits))


def test_references_only_add_negatives(logits, references):
    assert cross_task(logits, references) > caption_to_video(logits)
    torch.testing.assert_close(cross_task(logits, references - 1e4), caption_to_video(logits))


def test_losses_equal_the_released_code(compared):
    """Origin: `loss/*`, a standalone call of the released FrameFusionMoE loss on stored features."""
    with np.load(FIXTURE) as file:
        data = {name.removeprefix("loss/"): torch.from_numpy(file[name]) for name in file.files if "loss/" in name}
    text, video, stored = (torch.nn.functional.normalize(data[name], dim=-1) for name in ("txt", "vid", "ref"))
    scale = math.exp(4.60)
    within = contrastive(scale * text @ video.mT, "sum")
    across = cross_task(scale * text @ video.mT, scale * text @ stored.mT)
    found = {"nce": within, "beta06": 0.4 * within + 0.6 * across, "beta05": 0.5 * within + 0.5 * across}
    for name, loss in found.items():  # of hundreds: the share that they differ by
        compared("framefusion_moe", "loss", loss / data[name].float(), 1.0)


def test_distillation_is_zero_and_flat_where_student_and_teacher_agree(logits):
    student = logits.clone().requires_grad_()
    loss = distillation(student, logits)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert float(student.grad.abs().max()) < 1e-6
    assert distillation(logits.flip(1), logits) > 0


def test_captions_of_one_video_are_no_negatives(logits):
    videos = torch.tensor([0, 1, 0, 2, 3, 4])
    higher = logits.clone()
    higher[0, 2], higher[2, 0] = 50.0, 50.0
    torch.testing.assert_close(contrastive(higher, videos=videos), contrastive(logits, videos=videos))
    lower = logits.masked_fill(torch.eye(6).flip(0).bool(), -1e9)
    assert torch.isfinite(contrastive(lower, videos=videos))
    masked = logits.clone()
    masked[0, 2], masked[2, 0] = -1e9, -1e9
    torch.testing.assert_close(contrastive(logits, videos=videos), contrastive(masked))


@pytest.mark.parametrize("temperature", [0.7, 3.0])
def test_distillation_scales_the_divergence_by_t_squared(logits, temperature):
    p, q = (logits.mT / temperature).softmax(dim=-1), (logits / temperature).softmax(dim=-1)
    expected = temperature**2 * (p * (p.log() - q.log())).sum(dim=-1).mean()
    torch.testing.assert_close(distillation(logits, logits.mT, temperature), expected)
