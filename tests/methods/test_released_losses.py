"""Single losses and keys compared with the released codes.

Dual Softmax (starmemda/CAMoE@390e5ab), Co2L's relations (chaht01/Co2L@3af7064), keys of MoCo
(facebookresearch/moco@132aea9).
"""

import torch
from torch import nn

from ctvr.methods.layers.losses.distillation import RelationConfig, kept_within
from ctvr.methods.layers.losses.dual_softmax import dual_softmax
from ctvr.methods.layers.replay.momentum import Momentum, ema_update
from ctvr.methods.layers.replay.queues import KeyQueue, Pair
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


class Encoder(nn.Module):
    """The reference's encoder; for a key encoder it needs only the width of `Encoders`."""

    class Clip(nn.Module):
        embed_dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.clip = self.Clip()
        self.lin, self.bn, self.fc = nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.fc(self.bn(self.lin(x)).relu()), dim=-1)


def test_keys_and_queue_with_batch_normalisation_equal_the_released_ones(compared):
    file = {name.removeprefix("moco/"): value for name, value in read(FIXTURES / "losses_released.npz").items()}
    query = Encoder()
    nn.utils.vector_to_parameters(file["start_k"], query.parameters())
    query.bn.running_mean.copy_(file["stats0"][:8])
    query.bn.running_var.copy_(file["stats0"][8:])
    momentum = Momentum(query, 16).train()
    nn.utils.vector_to_parameters(file["start_q"], query.parameters())
    queue = KeyQueue(16, 6)
    queue.enqueue(Pair(file["queue0"].mT, file["queue0"].mT), torch.arange(16))
    for step in range(len(file["k"])):
        ema_update(momentum.encoders, query, 0.9)
        found = nn.utils.parameters_to_vector(momentum.encoders.parameters())
        compared("base_moco", "state", found, file["used"][step])
        with torch.no_grad():
            keys = momentum.encoders(file["im_k"][step])
        compared("base_moco", "forward", keys, file["k"][step])
        norm = momentum.encoders.bn
        compared("base_moco", "state", torch.cat([norm.running_mean, norm.running_var]), file["stats"][step])
        queue.enqueue(Pair(keys, keys), torch.arange(4))
        compared("base_moco", "state", queue.video.mT, file["queue"][step])
        nn.utils.vector_to_parameters(file["query_after"][step], query.parameters())
    assert not momentum.encoders.lin.training
    assert not momentum.eval().encoders.bn.training
