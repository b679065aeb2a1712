"""The blockwise loss of a very large batch equals the loss of the full matrix, which is not stored."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import ctvr.methods.hooks
import ctvr.methods.layers.losses.blockwise as large_batches
from ctvr.methods import find_method
from ctvr.methods.layers.losses.blockwise import contrastive_in_blocks
from ctvr.methods.layers.losses.contrastive import contrastive
from tests.methods.conftest import make_batch


class Largest(TorchDispatchMode):
    """Number of elements of the largest tensor that is created inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in (out,) if isinstance(x, torch.Tensor))])
        return out


@pytest.mark.parametrize("rows", [7, 16, 64])  # blocks that fit, that do not, and one alone
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_values_and_gradients_are_those_of_the_matrix(monkeypatch, rows, is_masked, reduction):
    monkeypatch.setattr(large_batches, "ROWS", rows)
    generator = torch.Generator().manual_seed(rows)
    given = [F.normalize(torch.randn(48, 8, generator=generator, dtype=torch.float64), dim=-1) for _ in range(2)]
    queries, videos = (x.requires_grad_() for x in given)
    scale = torch.tensor(100.0, dtype=torch.float64, requires_grad=True)
    numbers = torch.arange(48) // 3 if is_masked else None
    plain = contrastive(scale * queries @ videos.mT, reduction, numbers)
    expected = torch.autograd.grad(3 * plain, (queries, videos, scale))
    with Largest() as largest:
        found = contrastive_in_blocks(queries, videos, scale, reduction, numbers)
        grads = torch.autograd.grad(3 * found, (queries, videos, scale))
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert largest.elements == min(max(rows, 8), 48) * 48  # a block of logits, or the features


@pytest.mark.parametrize("name", ["clip4clip", "lora", "clip_vip", "plevu"])
def test_methods_that_compare_cosines_take_blocks_of_a_large_batch(small_clip, monkeypatch, name):
    cls = find_method(name)
    method = cls(cls.Config(**({"mask_same_video": True} if name == "clip4clip" else {})), small_clip).eval()
    parameters = [p for group in method.param_groups() for p in group["params"]]
    batch = make_batch(6, 3)
    made = []
    for is_large in (False, True):
        if is_large:
            monkeypatch.setattr(ctvr.methods.hooks, "LARGE", 6)
            monkeypatch.setattr(large_batches, "ROWS", 4)
            monkeypatch.setattr(ctvr.methods.hooks, "contrastive", None)  # a request for the matrix would fail
        torch.manual_seed(0)
        loss = torch.stack(list(method.losses(batch).values())).sum()
        made.append((loss.detach(), *torch.autograd.grad(loss, parameters)))
    for plain, blocks in zip(*made, strict=True):
        torch.testing.assert_close(blocks, plain, rtol=1e-4, atol=1e-6 * float(1 + plain.abs().max()))


def test_a_method_with_a_score_of_its_own_keeps_its_matrix(small_clip, monkeypatch):
    monkeypatch.setattr(ctvr.methods.hooks, "LARGE", 2)
    monkeypatch.setattr(ctvr.methods.hooks, "contrastive_in_blocks", None)
    cls = find_method("xpool")
    assert torch.isfinite(cls(cls.Config(), small_clip).losses(make_batch(4, 3))["contrastive"])
