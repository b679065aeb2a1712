import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.layers.replay.queues import KeyQueue, Pair


def numbered(start: int, count: int) -> tuple[Pair, torch.Tensor]:
    numbers = torch.arange(start, start + count)
    keys = numbers[:, None].float().expand(-1, 3)
    return Pair(keys, -keys), numbers


@pytest.mark.parametrize("batch", [1, 3, 5, 8, 20])
def test_the_queue_holds_the_last_keys_whether_or_not_the_batch_divides_it(batch):
    queue = KeyQueue(8, 3)
    for start in range(0, 3 * batch, batch):
        queue.enqueue(*numbered(start, batch))
    keys, videos = queue.content()
    expected = set(range(max(0, 3 * batch - 8), 3 * batch))
    assert set(videos.tolist()) == expected
    assert len(queue) == min(8, 3 * batch)
    torch.testing.assert_close(keys.video[:, 0], videos.float())
    torch.testing.assert_close(keys.text, -keys.video)
    assert int(queue.pointer) == (3 * batch) % 8


def test_a_random_queue_is_full_of_unit_vectors_of_no_video():
    queue = KeyQueue(5, 3)
    queue.reset(random=True)
    keys, videos = queue.content()
    assert len(queue) == 5
    assert videos.tolist() == [-1] * 5
    torch.testing.assert_close(F.normalize(keys.video, dim=-1), keys.video)
    queue.reset()
    assert len(queue) == 0


def test_all_of_the_queue_is_state():
    queue, other = KeyQueue(4, 3), KeyQueue(4, 3)
    queue.enqueue(*numbered(0, 6))
    other.load_state_dict(queue.state_dict())
    for one in (queue, other):
        one.enqueue(*numbered(6, 3))
    assert all(torch.equal(a, b) for a, b in zip(queue.buffers(), other.buffers()))
