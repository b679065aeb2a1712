import pytest
import torch

from methods.base import Batch
from methods.layers.memory import ReplayMemory, join, reservoir_place
from tests.methods.conftest import make_batch, make_task


def pairs(start: int, count: int, length: int = 4) -> list[Batch]:
    """Numbered pairs in batches of up to 3; their frames and tokens hold their numbers."""
    numbers = torch.arange(start, start + count)
    return [
        Batch(
            part[:, None, None, None, None].float().expand(-1, 1, 3, 2, 2),
            part[:, None].expand(-1, length).contiguous(),
            part,
            part % 2,
        )
        for part in numbers.split(3)
    ]


def chi_square(counts: torch.Tensor, expected: float, kept: float) -> float:
    """Of inclusion counts whose variance is that of a Bernoulli with probability `kept`."""
    return float(((counts - expected) ** 2 / (expected * (1 - kept))).sum())


def test_a_reservoir_keeps_every_pair_with_the_same_probability():
    torch.manual_seed(0)
    counts, runs, items, room = torch.zeros(20), 3000, 20, 5
    for _ in range(runs):
        places: dict[int, int] = {}
        for number in range(items):
            place = reservoir_place(number, room)
            if place is not None:
                places[place] = number
        counts[list(places.values())] += 1
    expected = runs * room / items
    assert counts.sum() == runs * room
    assert chi_square(counts, expected, room / items) < 43.8  # 99.9 % of chi-square with 19 degrees


def test_a_reservoir_over_tasks_is_uniform_over_all_of_them():
    torch.manual_seed(1)
    counts = torch.zeros(12)
    for _ in range(400):
        memory = ReplayMemory(4, "reservoir")
        for index in range(3):
            memory.write(make_task(index), pairs(4 * index, 4))
        assert len(memory) == 4
        counts[memory.videos] += 1
    assert chi_square(counts, 400 / 3, 1 / 3) < 31.3  # 99.9 %, 11 degrees


def test_a_ring_keeps_a_uniform_sample_of_every_task():
    torch.manual_seed(2)
    counts = torch.zeros(12)
    for _ in range(400):
        memory = ReplayMemory(6, "ring")
        for index in range(3):
            memory.write(make_task(index), pairs(4 * index, 4))
            for task in range(index + 1):
                assert int((memory.tasks == task).sum()) == min(4, 6 // (index + 1))
            assert len(memory) <= 6
        counts[memory.videos] += 1
    assert chi_square(counts, 200, 0.5) < 31.3


@pytest.mark.parametrize("capacity", [1, 2, 5, 7, 50])
@pytest.mark.parametrize("quota", ["dynamic", "static"])
def test_a_ring_never_exceeds_its_capacity_nor_keeps_a_pair_twice(capacity, quota):
    memory = ReplayMemory(capacity, "ring", quota)
    for index in range(3):
        memory.write(make_task(index), pairs(10 * index, 10))
        assert len(memory) <= capacity
        assert len(memory.videos.unique()) == len(memory)
        assert torch.equal(memory.tasks, memory.videos // 10)


def test_a_static_ring_leaves_room_for_all_tasks_of_the_stream():
    memory = ReplayMemory(9, "ring", "static")
    memory.write(make_task(0), pairs(0, 10))
    assert len(memory) == 3


def test_all_fields_of_a_pair_stay_together():
    memory = ReplayMemory(5, "reservoir")
    for index in range(3):
        memory.write(
            make_task(index),
            pairs(7 * index, 7, 4 + index),
            lambda b: (b.videos[:, None] * 2.0, b.videos[:, None] * 3.0),
        )
    batch = memory.batch(torch.arange(5))
    assert torch.equal(batch.frames[:, 0, 0, 0, 0], memory.videos.float())
    assert torch.equal(batch.tokens[:, 0], memory.videos)
    assert torch.equal(batch.categories, memory.videos % 2)
    assert torch.equal(memory.tasks, memory.videos // 7)
    assert torch.equal(memory.video_features[:, 0], memory.videos * 2.0)
    assert torch.equal(memory.text_features[:, 0], memory.videos * 3.0)


def test_draws_repeat_no_pair_before_all_have_come():
    memory = ReplayMemory(5)
    memory.write(make_task(0), pairs(0, 5))
    assert sorted(memory.draw(5).tolist()) == list(range(5))
    assert len(set(memory.draw(3).tolist())) == 3
    rows = memory.draw(12).tolist()
    assert len(rows) == 12
    assert all(2 <= rows.count(row) <= 3 for row in range(5))


def test_draws_are_uniform():
    torch.manual_seed(3)
    memory = ReplayMemory(6)
    memory.write(make_task(0), pairs(0, 6))
    counts = torch.bincount(torch.cat([memory.draw(2) for _ in range(1500)]), minlength=6).float()
    assert chi_square(counts, 500, 1 / 3) < 20.5  # 99.9 %, 5 degrees


def test_no_capacity_keeps_nothing_and_draws_no_random_number():
    memory = ReplayMemory(0)
    before = torch.get_rng_state()
    memory.write(make_task(0), pairs(0, 5))
    assert len(memory) == 0
    assert len(memory.draw(4)) == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_decoded_frames_are_kept_in_8_bits_and_come_back_bit_for_bit():
    mean, std = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)
    raw = torch.randint(0, 256, (4, 2, 3, 5, 5), dtype=torch.uint8)
    frames = (raw.float() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    like = make_batch(4)
    memory = ReplayMemory(4, mean=mean, std=std)
    memory.write(make_task(), [Batch(frames, like.tokens, like.videos, like.categories)])
    assert memory.frames.dtype == torch.uint8
    assert torch.equal(memory.batch(torch.arange(4)).frames, frames)


def test_other_frames_are_kept_as_float16_beside_8_bit_ones():
    memory = ReplayMemory(8, mean=(0.5,) * 3, std=(0.25,) * 3)
    eight_bit, other = make_batch(4, seed=1), make_batch(4, seed=2)
    levels = torch.randint(0, 256, eight_bit.frames.shape).float()
    eight_bit = Batch((levels / 255 - 0.5) / 0.25, eight_bit.tokens, eight_bit.videos, eight_bit.categories)
    memory.write(make_task(0), [eight_bit])
    assert memory.frames.dtype == torch.uint8
    memory.write(make_task(1), [other])
    assert memory.frames.dtype == torch.float16
    back = memory.batch(torch.arange(8)).frames
    torch.testing.assert_close(back, torch.cat([eight_bit.frames, other.frames]), rtol=1e-3, atol=1e-3)


def test_all_of_the_memory_is_state():
    memory, other = ReplayMemory(5, "reservoir"), ReplayMemory(5, "reservoir")
    memory.write(make_task(0), pairs(0, 7))
    for name, value in memory.state_dict().items():
        setattr(other, name, torch.empty(value.shape, dtype=value.dtype))
    other.load_state_dict(memory.state_dict())
    for one in (memory, other):
        torch.manual_seed(0)
        one.write(make_task(1), pairs(10, 7))
    assert all(torch.equal(a, b) for a, b in zip(memory.buffers(), other.buffers()))


def test_another_reader_of_the_same_batches_sees_them_all():
    memory = ReplayMemory(5)
    seen = [int(number) for batch in memory.observe(make_task(), pairs(0, 8)) for number in batch.videos]
    assert seen == list(range(8))
    assert len(memory) == 5


def test_joined_batches_are_padded_to_one_length():
    first, second = pairs(0, 3, 4)[0], pairs(3, 2, 6)[0]
    both = join(first, second)
    assert both.tokens.shape == (5, 6)
    assert both.tokens[:3, 4:].abs().sum() == 0
    assert both.videos.tolist() == [0, 1, 2, 3, 4]


def test_a_negative_capacity_is_refused():
    with pytest.raises(ValueError, match="memory counts pairs and must be >= 0, got -1"):
        ReplayMemory(-1)
