"""Decompositions of maps between feature spaces, also where LAPACK's faster algorithm fails."""

import pytest
import torch

from ctvr.methods.layers.feature_maps import procrustes, svd


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_matrix_on_which_gesdd_fails_is_decomposed_by_gesvd(monkeypatch, dtype):
    torch.manual_seed(0)
    low = torch.randn(12, 3, dtype=dtype) @ torch.randn(3, 9, dtype=dtype)
    expected = svd(low)

    def fail(*words, **named):
        raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "svd", fail)
        u, sizes, vh = svd(low)
        x = torch.randn(20, 9, dtype=dtype)
        turned = procrustes(x, x.flip(1))
    assert [each.shape for each in (u, sizes, vh)] == [each.shape for each in expected]
    assert {each.dtype for each in (u, sizes, vh)} == {dtype}
    torch.testing.assert_close((u * sizes) @ vh, low)
    torch.testing.assert_close(sizes, expected[1])
    torch.testing.assert_close(turned, torch.eye(9, dtype=torch.float64).flip(1))
