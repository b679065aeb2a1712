from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from ctvr.methods.base import Batch
from ctvr.methods.layers.replay.buffer import ReplayBuffer, join, reservoir_index
from tests.methods.conftest import make_task


def pairs(start: int, count: int, length: int = 4) -> list[Batch]:
    """Numbered pairs in batches of up to 3; their frames and tokens hold their numbers."""
    numbers = torch.arange(start, start + count)
    return [
        Batch(
            part[:, None, None, None, None].float().expand(-1, 1, 3, 2, 2),
            part[:, None].expand(-1, length).contiguous(),
            part,
            part % 2,
            pair_ids=part,
        )
        for part in numbers.split(3)
    ]


class Numbered:
    """Source of all `pairs`."""

    def pairs(self, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        made = [pairs(number, 1)[0] for number in numbers]
        return torch.cat([batch.frames for batch in made]), torch.cat([batch.tokens for batch in made])


def chi_square(counts: torch.Tensor, expected: float, kept: float) -> float:
    """Compute chi^2 of inclusion counts whose variance is that of a Bernoulli with probability `kept`."""
    return float(((counts - expected) ** 2 / (expected * (1 - kept))).sum())


def test_a_reservoir_keeps_every_pair_with_the_same_probability():
    torch.manual_seed(0)
    counts, runs, items, room = torch.zeros(20), 3000, 20, 5
    for _ in range(runs):
        places: dict[int, int] = {}
        for number in range(items):
            place = reservoir_index(number, room)
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
        memory = ReplayBuffer(4, "reservoir")
        for index in range(3):
            memory.write(make_task(index), pairs(4 * index, 4))
        assert len(memory) == 4
        counts[memory.videos] += 1
    assert chi_square(counts, 400 / 3, 1 / 3) < 31.3  # 99.9 %, 11 degrees


def test_a_ring_keeps_a_uniform_sample_of_every_task():
    torch.manual_seed(2)
    counts = torch.zeros(12)
    for _ in range(400):
        memory = ReplayBuffer(6, "ring")
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
    memory = ReplayBuffer(capacity, "ring", quota)
    for index in range(3):
        memory.write(make_task(index), pairs(10 * index, 10))
        assert len(memory) <= capacity
        assert len(memory.videos.unique()) == len(memory)
        assert torch.equal(memory.tasks, memory.videos // 10)


def test_a_share_keeps_a_uniform_sample_of_that_share_of_every_task():
    torch.manual_seed(2)
    sizes, counts = (20, 9, 1), torch.zeros(30)
    for _ in range(600):
        memory = ReplayBuffer(0, share=0.2)
        for index, size in enumerate(sizes):
            memory.write(make_task(index), pairs(sum(sizes[:index]), size))
        assert torch.bincount(memory.tasks).tolist() == [4, 2, 1]
        counts[memory.pairs] += 1
    assert chi_square(counts[:20], 600 * 0.2, 0.2) < 43.8  # 99.9 % of chi-square with 19 degrees
    assert chi_square(counts[20:29], 600 * 2 / 9, 2 / 9) < 26.1  # with 8


def test_a_static_ring_reserves_a_share_for_every_task():
    memory = ReplayBuffer(9, "ring", "static")
    memory.write(make_task(0), pairs(0, 10))
    assert len(memory) == 3


def test_all_fields_of_a_pair_stay_together():
    memory = ReplayBuffer(5, "reservoir")
    memory.source = Numbered()
    for index in range(3):
        memory.write(
            make_task(index),
            pairs(7 * index, 7, 4 + index),
            lambda b: (b.video_ids[:, None] * 2.0, b.video_ids[:, None] * 3.0),
        )
    batch = memory.batch(torch.arange(5))
    assert torch.equal(batch.frames[:, 0, 0, 0, 0], memory.videos.float())
    assert torch.equal(batch.tokens[:, 0], memory.videos)
    assert torch.equal(batch.categories, memory.videos % 2)
    assert torch.equal(batch.task_ids, memory.videos // 7)
    assert torch.equal(memory.tasks, memory.videos // 7)
    assert torch.equal(memory.video_features[:, 0], memory.videos * 2.0)
    assert torch.equal(memory.text_features[:, 0], memory.videos * 3.0)


def test_draws_repeat_no_pair_before_all_have_come():
    memory = ReplayBuffer(5)
    memory.write(make_task(0), pairs(0, 5))
    assert sorted(memory.sample(5).tolist()) == list(range(5))
    assert len(set(memory.sample(3).tolist())) == 3
    rows = memory.sample(12).tolist()
    assert len(rows) == 12
    assert all(2 <= rows.count(row) <= 3 for row in range(5))


def test_draws_are_uniform():
    torch.manual_seed(3)
    memory = ReplayBuffer(6)
    memory.write(make_task(0), pairs(0, 6))
    counts = torch.bincount(torch.cat([memory.sample(2) for _ in range(1500)]), minlength=6).float()
    assert chi_square(counts, 500, 1 / 3) < 20.5  # 99.9 %, 5 degrees


def test_no_capacity_keeps_nothing_and_draws_no_random_number():
    memory = ReplayBuffer(0)
    before = torch.get_rng_state()
    memory.write(make_task(0), pairs(0, 5))
    assert len(memory) == 0
    assert len(memory.sample(4)) == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_the_memory_keeps_numbers_and_reads_the_pairs_again():
    memory = ReplayBuffer(4)
    memory.write(make_task(0), pairs(0, 7))
    assert sum(buffer.numel() for buffer in memory.buffers()) == 4 * 4 + 1  # no frame among them
    with pytest.raises(ValueError, match=r"no source to read pairs from. Call set_pair_source\(\) first"):
        memory.batch(torch.arange(4))
    memory.source = Numbered()
    batch = memory.batch(torch.tensor([3, 1]))
    assert torch.equal(batch.pair_ids, memory.pairs[[3, 1]])
    assert torch.equal(batch.frames[:, 0, 0, 0, 0].long(), batch.video_ids)
    memory.write(make_task(1), pairs(20, 7))  # what is read is what is kept now
    batch = memory.batch(torch.arange(4))
    assert torch.equal(batch.frames[:, 0, 0, 0, 0].long(), memory.videos)
    assert torch.equal(batch.task_ids, memory.tasks)
    memory.load_state_dict({**memory.state_dict(), "pairs": memory.pairs.flip(0)})
    assert torch.equal(memory.batch(torch.arange(4)).frames[:, 0, 0, 0, 0].long(), memory.videos.flip(0))
    assert not any("source" in name for name in memory.state_dict())


def test_pairs_without_numbers_are_refused():
    with pytest.raises(ValueError, match=r"this batch lacks. Set Batch\.pair_ids"):
        ReplayBuffer(4).write(make_task(), [replace(pairs(0, 3)[0], pair_ids=None)])


def test_all_of_the_memory_is_state():
    memory, other = ReplayBuffer(5, "reservoir"), ReplayBuffer(5, "reservoir")
    memory.write(make_task(0), pairs(0, 7))
    for name, value in memory.state_dict().items():
        setattr(other, name, torch.empty(value.shape, dtype=value.dtype))
    other.load_state_dict(memory.state_dict())
    for one in (memory, other):
        torch.manual_seed(0)
        one.write(make_task(1), pairs(10, 7))
    assert all(torch.equal(a, b) for a, b in zip(memory.buffers(), other.buffers()))


def test_another_reader_of_the_same_batches_sees_them_all():
    memory = ReplayBuffer(5)
    seen = [int(number) for batch in memory.observe(make_task(), pairs(0, 8)) for number in batch.video_ids]
    assert seen == list(range(8))
    assert len(memory) == 5


def test_joined_batches_are_padded_to_one_length():
    first, second = pairs(0, 3, 4)[0], pairs(3, 2, 6)[0]
    both = join(first, replace(second, task_ids=torch.tensor([0, 1])), task=2)
    assert both.tokens.shape == (5, 6)
    assert both.tokens[:3, 4:].abs().sum() == 0
    assert both.video_ids.tolist() == [0, 1, 2, 3, 4]
    assert both.task_ids.tolist() == [2, 2, 2, 0, 1]
