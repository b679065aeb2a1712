from pathlib import Path

import pytest
import torch

from ctvr.methods.backbone.clip import record_tokens
from ctvr.methods.layers.reduction.merge import follow, merge_tokens, most_mergeable, plan_bipartite
from ctvr.methods.lora import Lora, LoraConfig
from tests.methods.conftest import reducer_config
from tests.methods.released import floats, read

# Four matchings made by TempMe's released code (bipartite_soft_matching and merge_wavg), seeded random inputs.
RELEASED = Path(__file__).parents[2] / "fixtures" / "tempme_released.npz"


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 50, 8, generator=generator)
    return x, torch.randint(1, 5, (3, 50, 1), generator=generator).float()


def test_merging_equals_the_released_code(compared):
    file = read(RELEASED)
    for case in ("cls1_r5", "cls2_r6", "cls12_r7", "cls3_r4"):
        given = floats(file, f"{case}/")
        protected, r = (int(n) for n in given["cls_r"])
        out, size = merge_tokens(given["x"], given["size"], plan_bipartite(given["metric"], r, protected))
        compared("tempme", "forward", out, given["out"], 1e-6)
        compared("tempme", "forward", size, given["out_size"], 0.0)


@pytest.mark.parametrize("r", [0, 1, 7, 24, 999])
def test_mass_and_size_are_conserved(tokens, r):
    x, size = tokens
    y, y_size = merge_tokens(x, size, plan_bipartite(x, r))
    assert y.shape[1] == 50 - min(r, most_mergeable(50, 1))
    torch.testing.assert_close(y_size.sum(1), size.sum(1))
    torch.testing.assert_close((y * y_size).sum(1), (x * size).sum(1))


@pytest.mark.parametrize("protected", [1, 2, 6])
def test_protected_tokens_neither_move_nor_grow(tokens, protected):
    x, size = tokens
    y, y_size = merge_tokens(x, size, plan_bipartite(x, 12, protected))
    torch.testing.assert_close(y[:, :protected], x[:, :protected], rtol=0, atol=0)
    torch.testing.assert_close(y_size[:, :protected], size[:, :protected], rtol=0, atol=0)


def test_merging_nothing_returns_the_very_same_tokens(tokens):
    x, size = tokens
    y, y_size = merge_tokens(x, size, plan_bipartite(x, 0))
    assert y is x
    assert y_size is size


def test_tokens_without_sizes_count_one_each(tokens):
    x, _ = tokens
    plan = plan_bipartite(x, 9)
    with_ones, size = merge_tokens(x, torch.ones(3, 50, 1), plan)
    without, same = merge_tokens(x, None, plan)
    torch.testing.assert_close(without, with_ones)
    torch.testing.assert_close(same, size)


def test_merging_duplicates_loses_nothing(tokens):
    x, size = tokens
    x[:, 2::2] = x[:, 1:-1:2]  # every movable even token equals an odd one
    plan = plan_bipartite(x, 24)
    y, _ = merge_tokens(x, size, plan)
    torch.testing.assert_close(y.gather(1, plan.target[..., None].expand_as(x)), x)


def test_a_repeated_plan_treats_neighbours_alike(tokens):
    x, _ = tokens
    plan = plan_bipartite(x[:1], 5).repeated(3)
    y, _ = merge_tokens(x, None, plan)
    alone, _ = merge_tokens(x[2:], None, plan_bipartite(x[:1], 5))
    torch.testing.assert_close(y[2:], alone)


def test_the_gradient_of_a_merged_token_is_shared_by_size():
    x = torch.tensor([[[9.0, 0.0], [1.0, 0.0], [1.0, 0.1]]], requires_grad=True)  # class token, two patches
    size = torch.tensor([[[1.0], [1.0], [3.0]]])
    y, _ = merge_tokens(x, size, plan_bipartite(x, 1))
    y[0, 1].sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[[0.0, 0.0], [0.25, 0.25], [0.75, 0.75]]]))


def test_matching_is_done_in_float32_and_ties_go_to_the_lower_position():
    plan = plan_bipartite(torch.ones(1, 9, 4, dtype=torch.bfloat16), 2)
    assert plan.moved.tolist() == [[2, 4]]


@pytest.mark.parametrize("settings", [reducer_config("tome", r=3), reducer_config("tempme", num_frames=4)])
def test_tokens_are_followed_to_where_their_sizes_say(small_clip, settings):
    """The number of first tokens that lead to a last one equals its size, also where frames are joined into clips."""
    method = Lora(LoraConfig(reducer=settings), small_clip).eval()
    with record_tokens() as states, torch.no_grad():
        method.encode_video(torch.randn(2, 4, 3, 32, 32))
    (state,) = states
    assert state.moves
    found = follow(state.moves, 8, 17)
    assert torch.equal(found.flatten().bincount(), state.sizes.flatten().long())
    assert follow([], 2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
