"""The drift figure shows a run's own features after each task in the plane of their largest variance."""

import numpy as np
import pytest
import torch

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.load_model import load, load_task_checkpoints
from ctvr.orchestrator.retrieval.drift import principal, text_drift
from ctvr.orchestrator.retrieval.model import Model
from tests.refusing import refuses


def test_queries_stand_where_each_state_has_them(learned):
    execution = ExecutionConfig(runs=learned)
    states = list(load_task_checkpoints("framefusion_moe", execution))
    assert len(states) == 2
    query = states[0].gallery()[0].items[0].captions[0]
    now = load("framefusion_moe", execution).encode_text(query, 0)
    assert torch.equal(states[1].encode_text(query, 0), now)
    assert not torch.equal(states[0].encode_text(query, 0), now)
    found = text_drift(states, 2)
    asked = [(state, 0) for state in states] + [(states[1], 1)]  # then the last task's queries, of the last state
    rows = torch.cat([_unit(state, task) for state, task in asked]).double().numpy()
    drawn = np.concatenate([*found.points, found.others])
    np.testing.assert_allclose(drawn, principal(rows)[0], atol=1e-5)
    assert found.points.shape == (2, 2, 2)
    assert found.others.shape == (2, 2)
    assert found.cosines[0] == pytest.approx(1.0, abs=1e-6)
    assert found.cosines[1] < 1.0
    assert 0.0 < found.explained < 1.0 + 1e-9


def _unit(state: Model, task: int) -> torch.Tensor:
    captions = dict.fromkeys(item.captions[0] for item in state.gallery()[task].items)
    features = state.encode_text(list(captions)[:2], task).flatten(1)
    return features / features.norm(dim=-1, keepdim=True)


def test_what_does_not_learn_does_not_move(learned):
    found = text_drift(load_task_checkpoints("zero_shot", ExecutionConfig(runs=learned)), 40)
    assert np.array_equal(found.points[0], found.points[1])
    assert found.cosines == pytest.approx((1.0, 1.0), abs=1e-6)


def test_one_state_is_nothing_to_compare(learned):
    states = list(load_task_checkpoints("zero_shot", ExecutionConfig(runs=learned)))
    with refuses("task", "drift"):
        text_drift(states[:1], 40)


def test_a_plane_keeps_its_distances_and_its_sides():
    rng = np.random.default_rng(0)
    plane, _ = np.linalg.qr(rng.normal(size=(16, 2)))
    rows = rng.normal(size=(30, 2)) @ plane.T + rng.normal(size=16)
    drawn, explained = principal(rows)
    assert explained == pytest.approx(1.0)
    between = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(drawn[:, None] - drawn[None], axis=-1), between, atol=1e-10)
    axes = np.linalg.lstsq(drawn, rows - rows.mean(axis=0), rcond=None)[0]  # the two directions
    assert (axes[np.arange(2), np.abs(axes).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose(principal(-rows)[0], -drawn, atol=1e-10)  # not the sign that SVD happens to give
    assert np.var(drawn[:, 0]) > np.var(drawn[:, 1])
