import numpy as np
import pytest
import torch

from ctvr.methods.head_ridge import HeadRidge, HeadRidgeConfig
from tests.methods.conftest import make_task
from tests.methods.vectors import batch, drawn, towers


def learned(frames, table, parts, **settings):
    torch.manual_seed(3)
    method = HeadRidge(HeadRidgeConfig(**settings), towers(table))
    for index, rows in enumerate(parts):
        method.begin_task(make_task(index))
        method.end_task(make_task(index), [batch(frames, rows[:5], index), batch(frames, rows[5:], index)])
    return method.eval()


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("features", [0, 50])
def test_it_is_ridge_regression_over_the_pairs_of_all_tasks(features):
    frames, table = drawn()
    method = learned(frames, table, [list(range(15)), list(range(15, 30))], ridge=2.0, features=features)
    x, y = unit(table.rows.double().numpy()), unit(frames[:, :, 0].double().numpy().mean(axis=1))
    h = np.maximum(x @ method.random.double().numpy(), 0) if features else x
    mean, target = h[:30].mean(axis=0), y[:30] - y[:30].mean(axis=0)
    centred = h[:30] - mean
    weight = np.linalg.solve(centred.T @ centred + 2.0 * np.eye(h.shape[1]), centred.T @ target)
    found = method.encode_text(torch.arange(40)[:, None]).double().numpy()
    np.testing.assert_allclose(found, unit((h - mean) @ weight), atol=1e-5)


def test_the_order_of_tasks_is_irrelevant_and_videos_stay():
    frames, table = drawn()
    one = learned(frames, table, [list(range(15)), list(range(15, 30))])
    other = learned(frames, table, [list(range(15, 30)), list(range(15))])
    tokens = torch.arange(40)[:, None]
    torch.testing.assert_close(one.encode_text(tokens), other.encode_text(tokens), rtol=0, atol=1e-5)
    fresh = HeadRidge(HeadRidgeConfig(), towers(table)).eval()
    assert torch.equal(one.encode_video(frames), fresh.encode_video(frames))
