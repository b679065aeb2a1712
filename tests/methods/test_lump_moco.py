from functools import partial

import pytest
import torch

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.co2l_moco import Co2LMoCo
from ctvr.methods.lump_moco import LUMPMoCo, LUMPMoCoConfig
from ctvr.methods.lwf_moco import LwFMoCo
from ctvr.methods.settings import SettingError
from tests.methods.conftest import make_batch, make_task, maker
from tests.methods.steps import train_stream
from tests.refusing import refused

LEVELS = ["input", "feature"]


@pytest.fixture
def base(small_clip):
    return BaseMoCo(BaseMoCoConfig(queue_size=10), small_clip)


@pytest.fixture
def make(base):
    return maker(LUMPMoCo, base, buffer_size=6)


def second_task(method: LUMPMoCo) -> LUMPMoCo:
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    return method


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("text_pool", ["eot", "avg"])
def test_all_of_one_pair_is_base_moco_on_that_pair(small_clip, level, text_pool):
    base = BaseMoCo(BaseMoCoConfig(queue_size=10, text_pool=text_pool), small_clip)
    method = second_task(LUMPMoCo(LUMPMoCoConfig(buffer_size=6, mix_level=level), base))
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    for share, only in ((1.0, batch), (0.0, memory)):
        expected = method.base.losses(only)["contrastive"]
        torch.testing.assert_close(method.mixed_contrast(batch, memory, share), expected, rtol=1e-4, atol=1e-5)


def test_keys_of_the_mixed_pairs_enter_the_queue(make):
    method = second_task(make())
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    start = int(method.base.local.queue.pointer)
    method.mixed_contrast(batch, memory, 0.6)
    method.after_step()
    places = (start + torch.arange(4)) % 10
    with torch.no_grad():
        mixed = method.base.local.encoders.video(0.6 * batch.frames + 0.4 * memory.frames)
    torch.testing.assert_close(method.base.local.queue.video[places], mixed, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strategy", [LUMPMoCo, Co2LMoCo, LwFMoCo])
def test_a_retriever_without_queues_is_refused(strategy):
    call = partial(strategy.check_base, strategy.Config(), Clip4Clip, Clip4ClipConfig())
    refused(call, "queues", kind=SettingError, write="<base>=base_moco")
