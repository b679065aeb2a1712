"""Dual Softmax (starmemda/CAMoE@390e5ab) and Co2L's relations (chaht01/Co2L@3af7064): losses and gradients alone."""

from __future__ import annotations

from methods.layers.distillation import RelationConfig, kept_within
from methods.layers.dual_softmax import dual_softmax
from tests.methods.released import FIXTURES, read


def test_dual_softmax_equals_the_released_loss_in_value_and_gradient(compared):
    file = read(FIXTURES / "losses_released.npz")
    for case in ("cosines", "positive"):
        for temperature in (10, 1000):
            logits = file[f"{case}/z"].clone().requires_grad_()
            loss = dual_softmax(logits, float(temperature))
            loss.backward()
            key = f"{case}/t{temperature}"
            compared("dsl", "loss", loss, file[f"{key}/rows"].mean() + file[f"{key}/columns"].mean())
            released = file[f"{key}/rows_grad_of_mean"] + file[f"{key}/columns_grad_of_mean"]
            compared("dsl", "gradients", logits.grad, released)


def test_relations_equal_the_released_distillation_in_value_and_gradient(compared):
    file = read(FIXTURES / "losses_released.npz")
    for case, config in (
        ("ird/basic", RelationConfig(ird="intra")),
        ("ird/other_temperatures", RelationConfig(ird="intra", kappa=0.5, kappa_teacher=0.05)),
    ):
        student = file[f"{case}/student"].clone().requires_grad_()
        loss = kept_within([student], [file[f"{case}/teacher"]], config)
        loss.backward()
        compared("co2l", "loss", loss, file[f"{case}/distill"])
        compared("co2l", "gradients", student.grad, file[f"{case}/grad_total"] - file[f"{case}/grad_asymmetric"])
