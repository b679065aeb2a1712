import copy

import pytest
import torch

from ctvr.methods.backbone.vectors import NoSuchPart
from tests.methods.vectors import FRAMES, PAIRS, TEXT, WIDTH, batch, drawn, towers


@pytest.mark.parametrize("several", [1, 3])
def test_towers_of_one_width_start_as_the_identity_to_the_bit(several):
    frames, table = drawn(text=WIDTH, several=several)
    made = towers(table)
    assert torch.equal(made.vision(frames), frames[:, :, 0])
    rows, counts = table(torch.arange(PAIRS))
    assert torch.equal(made.text(torch.arange(PAIRS)[:, None]), rows.sum(dim=1) / counts[:, None])


def test_captions_of_another_width_start_as_the_given_affine_map():
    _, table = drawn()
    made = towers(table)
    weight, center = made.text.start()
    expected = (table.rows.double() - center.double()) @ weight.double()
    torch.testing.assert_close(made.text(torch.arange(PAIRS)[:, None]).double(), expected, rtol=1e-5, atol=1e-5)
    assert weight.shape == (TEXT, WIDTH)


def test_a_caption_does_not_depend_on_longer_captions_of_the_batch():
    _, table = drawn(several=3)
    table.starts = torch.tensor([0, 1, *range(3, 3 * PAIRS - 3 + 1, 3), 3 * PAIRS])[: PAIRS + 1]
    made = towers(table).eval()
    alone, together = made.text(torch.tensor([[0]])), made.text(torch.tensor([[0], [1], [2]]))
    torch.testing.assert_close(alone[0], together[0], rtol=0, atol=1e-6)


def test_hidden_has_a_start_the_vectors_and_their_mean_at_the_end():
    _, table = drawn(several=3, text=WIDTH)
    made = towers(table)
    hidden, end = made.text.hidden(torch.tensor([[0], [5]]))
    assert hidden.shape == (2, 5, WIDTH)
    assert end.tolist() == [4, 4]
    assert not hidden[:, 0].any()
    torch.testing.assert_close(hidden[0, 1:4], table.rows[:3])
    torch.testing.assert_close(hidden[:, 4], made.text(torch.tensor([[0], [5]])))


def test_copies_share_the_table_and_own_their_weights():
    made = towers(drawn()[1])
    other = copy.deepcopy(made)
    assert other.text.table is made.text.table
    assert other.text.proj is not made.text.proj
    assert not any("table" in name for name in made.state_dict())


def test_every_part_of_a_tower_learns():
    frames, table = drawn()
    made = towers(table)
    pairs = batch(frames, range(8), 0)
    loss = (made.vision(pairs.frames).mean(dim=1) - made.text(pairs.tokens)).square().sum()
    loss.backward()
    silent = {"attn.in_weight", "attn.in_bias"}  # a vector attends to itself, so only the rows of v matter
    for name, parameter in made.named_parameters():
        if name != "logit_scale" and not any(name.endswith(part) for part in silent):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_a_part_that_only_clip_has_is_named():
    made = towers(drawn()[1])
    assert not hasattr(made.text, "token_embedding")
    with pytest.raises(NoSuchPart) as caught:
        made.vision.conv1  # noqa: B018
    assert "conv1" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_videos_keep_their_frames():
    frames, table = drawn()
    assert towers(table).vision(frames).shape == (PAIRS, FRAMES, WIDTH)
