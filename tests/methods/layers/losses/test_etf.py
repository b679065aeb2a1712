"""Simplex ETF, StructAlign eqs. 7-8."""

import pytest
import torch

from ctvr.methods.layers.losses.etf import simplex_etf


@pytest.mark.parametrize(("num_classes", "dim"), [(2, 2), (6, 16), (20, 512), (200, 512)])
def test_rows_are_unit_equiangular_and_sum_to_zero(num_classes, dim):
    p = simplex_etf(num_classes, dim)
    gram = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64)
    gram.fill_diagonal_(1.0)
    torch.testing.assert_close(p @ p.mT, gram, atol=1e-12, rtol=0)
    torch.testing.assert_close(p.sum(dim=0), torch.zeros(dim, dtype=torch.float64), atol=1e-12, rtol=0)


def test_seed_repeats_the_frame_and_keeps_the_global_rng():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = simplex_etf(5, 8, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, simplex_etf(5, 8, seed=1))
    assert not torch.equal(first, simplex_etf(5, 8, seed=2))


def test_the_gaussian_reading_is_unit_but_equiangular_only_on_average():
    p = simplex_etf(20, 512, "gaussian")
    cosines = (p @ p.mT)[~torch.eye(20, dtype=torch.bool)]
    torch.testing.assert_close(p.norm(dim=1), torch.ones(20, dtype=torch.float64))
    assert abs(float(cosines.mean()) + 1 / 19) < 0.005
    assert 0.03 < float(cosines.std()) < 0.06  # the released code's own spread is 0.045
