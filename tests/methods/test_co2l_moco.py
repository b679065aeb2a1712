import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.co2l_moco import Co2LMoCo
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_stream, train_task


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=10), small_clip)


@pytest.fixture
def make(base):
    return maker(Co2LMoCo, base, buffer_size=6)


def test_memory_pairs_are_negatives_and_no_anchors(make):
    method = make(weight=0.0)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    batch = make_batch(4, 2, seed=5)
    torch.manual_seed(0)
    memory = method.memory.batch(method.memory.sample(4))
    torch.manual_seed(0)
    loss = method.losses(batch)["contrastive"]
    q, k, extra = method.base.queries(batch), method.base.keys(batch)[0], method.base.keys(memory)[0]
    queue, _ = method.base.local.queue.content()

    def one_way(query, key, keys):
        logits = torch.cat([(query * key).sum(-1, keepdim=True), query @ keys.mT], dim=1) / 0.07
        return F.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))

    expected = one_way(q.video, k.text, torch.cat([queue.text, extra.text])) + one_way(
        q.text, k.video, torch.cat([queue.video, extra.video])
    )
    torch.testing.assert_close(loss, expected)
    assert loss > method.base.losses(batch)["contrastive"]


def test_only_keys_of_the_batch_enter_the_queue(make):
    method = make()
    train_stream(method, tasks=1)
    before = int(method.base.local.queue.pointer)
    train_task(method, make_task(1), [make_batch(4, 2, seed=5)])
    assert int(method.base.local.queue.pointer) == (before + 4) % 10


def test_relations_span_batch_and_memory_and_are_weighted(make):
    one, three = make(), make(weight=3.0)
    for method in (one, three):
        train_stream(method, tasks=1)
        method.begin_task(make_task(1))
    found = []
    for method in (one, three):
        torch.manual_seed(0)
        found.append(method.losses(make_batch(4, 2, seed=5))["distillation"])
    torch.testing.assert_close(found[1], 3 * found[0])
    sizes = []
    one.relations = lambda student, teacher: sizes.append((len(student.video), len(teacher.text))) or torch.tensor(0.0)
    one.losses(make_batch(4, 2, seed=5))
    assert sizes == [(8, 8)]
