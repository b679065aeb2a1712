import pytest
import torch
import torch.nn.functional as F

from methods.layers.relations import RelationConfig, kept_across, kept_within

EQUAL = RelationConfig(kappa_teacher=0.2)


def unit_vectors(rows: int = 6) -> torch.Tensor:
    return F.normalize(torch.randn(rows, 8, dtype=torch.float64), dim=-1)


def test_relations_across_are_the_cross_entropy_of_rows_and_columns():
    new, old = unit_vectors() @ unit_vectors().mT, unit_vectors() @ unit_vectors().mT
    s, t = new / 0.2, old / 0.01
    rows = -(t.softmax(1) * s.log_softmax(1)).sum(1).mean()
    columns = -(t.softmax(0) * s.log_softmax(0)).sum(0).mean()
    torch.testing.assert_close(kept_across(new, old, RelationConfig()), (rows + columns) / 2)


def test_relations_within_leave_the_diagonal_out():
    x, z = unit_vectors(3), unit_vectors(3)
    expected = 0.0
    for i, (j, k) in enumerate([(1, 2), (0, 2), (0, 1)]):
        p = torch.stack([z[i] @ z[j], z[i] @ z[k]]).div(0.01).softmax(0)
        q = torch.stack([x[i] @ x[j], x[i] @ x[k]]).div(0.2).log_softmax(0)
        expected = expected - (p * q).sum() / 3
    torch.testing.assert_close(kept_within([x, x], [z, z], RelationConfig()), expected)


def test_an_equal_teacher_at_equal_temperature_gives_no_gradient():
    old = unit_vectors() @ unit_vectors().mT
    new = old.clone().requires_grad_()
    kept_across(new, old, EQUAL).backward()
    assert new.grad.abs().max() < 1e-12
    features = unit_vectors()
    student = features.clone().requires_grad_()
    kept_within([student], [features], EQUAL).backward()
    assert student.grad.abs().max() < 1e-12


def test_the_least_value_is_the_teachers_entropy():
    old = unit_vectors() @ unit_vectors().mT
    entropy = torch.distributions.Categorical(logits=old / 0.2).entropy().mean()
    entropy = (entropy + torch.distributions.Categorical(logits=old.mT / 0.2).entropy().mean()) / 2
    torch.testing.assert_close(kept_across(old, old, EQUAL), entropy)
    assert kept_across(unit_vectors() @ unit_vectors().mT, old, EQUAL) > entropy


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"weight": -1.0}, "weight must be >= 0, got -1"), ({"kappa": 0.0}, "must be > 0, got 0.0 and 0.01")],
)
def test_wrong_settings_say_what_to_write(settings, message):
    with pytest.raises(ValueError, match=message):
        RelationConfig(**settings)
