"""Copies of models with an LSTM."""

from unittest import mock

import torch
from torch import nn

from ctvr.methods.layers.frozen import Frozen, copied


def test_the_lstm_of_a_copy_has_its_weights_in_one_piece():
    """Only cuDNN needs it: on a CPU torch leaves the weights separate, so the test sees only the request."""
    module = nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 4, batch_first=True))
    x = torch.randn(1, 5, 2)
    with mock.patch.object(nn.LSTM, "flatten_parameters", autospec=True) as flatten:
        made, teacher = copied(module), Frozen(module)
    assert [call.args[0] for call in flatten.call_args_list] == [made[1], teacher.module[1]]
    assert torch.equal(made(x)[0], module(x)[0])
    torch.testing.assert_close(teacher("forward", x)[0], module(x)[0])
