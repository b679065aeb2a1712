import copy
from dataclasses import replace

import pytest
import torch

from ctvr.methods.base_moco import BaseMoCo, BaseMoCoConfig
from ctvr.methods.camoe import CAMoE, CAMoEConfig
from ctvr.methods.clip4clip import Clip4Clip, Clip4ClipConfig
from ctvr.methods.framefusion_moe import FrameFusionMoE, FrameFusionMoEConfig
from ctvr.methods.lpi import LPI, LPIConfig
from ctvr.methods.lump import LUMP, LUMPConfig
from ctvr.methods.lump_moco import LUMPMoCo, LUMPMoCoConfig
from ctvr.methods.prompt import Prompt, PromptConfig
from ctvr.methods.settings import SettingError
from ctvr.methods.structalign import StructAlign, StructAlignConfig
from ctvr.methods.xpool import XPool, XPoolConfig
from tests.methods.conftest import make_batch, make_task
from tests.methods.steps import train_stream
from tests.refusing import refused, refuses

LEVELS = ["input", "feature"]


@pytest.fixture
def bases(small_clip):
    retrievers = {
        "clip4clip": (Clip4Clip, Clip4ClipConfig()),
        "xpool": (XPool, XPoolConfig()),
        "structalign": (StructAlign, StructAlignConfig()),
        "framefusion_moe": (FrameFusionMoE, FrameFusionMoEConfig(rank=4, lora_alpha=16.0)),
        "prompt": (Prompt, PromptConfig()),
        "camoe": (CAMoE, CAMoEConfig(num_frames=2)),
        "camoe_rkw": (CAMoE, CAMoEConfig(num_frames=2, sentences="rkw")),
        "base_moco": (BaseMoCo, BaseMoCoConfig(queue_size=10)),
    }
    return {name: cls(config, copy.deepcopy(small_clip)) for name, (cls, config) in retrievers.items()}


def make(base, **settings) -> LUMP:
    return LUMP(LUMPConfig(**{"buffer_size": 6, **settings}), copy.deepcopy(base))


def ready(base, **settings) -> LUMP:
    """Return the method in its first task, in evaluation mode: no dropout, no noise."""
    method = make(base, **settings)
    method.begin_task(make_task(0))
    return method.eval()


def summed(terms) -> torch.Tensor:
    return torch.stack(list(terms.values())).sum()


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "input") for name in ("clip4clip", "xpool", "structalign", "framefusion_moe", "prompt", "camoe")),
        *((name, "feature") for name in ("clip4clip", "xpool", "framefusion_moe", "prompt")),
    ],
)
def test_all_of_one_pair_is_the_retrievers_loss_of_that_pair(bases, name, level):
    method = ready(bases[name], mix_level=level)
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    for share, only in ((1.0, batch), (0.0, memory)):
        found, expected = method.mixed(batch, memory, share), method.base.losses(only)
        assert set(found) == set(expected)
        for term in expected:
            torch.testing.assert_close(found[term], expected[term], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_swapping_the_pairs_and_the_share_changes_nothing(bases, level):
    method = ready(bases["clip4clip"], mix_level=level)
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    one, other = method.mixed(batch, memory, 0.3), method.mixed(memory, batch, 0.7)
    torch.testing.assert_close(summed(one), summed(other))


def test_a_mixed_pair_counts_as_the_one_it_holds_more_of(bases, monkeypatch):
    method = ready(bases["clip4clip"], mix_level="feature")
    batch, memory = make_batch(4, 2, seed=5), replace(make_batch(4, 2, seed=6), video_ids=torch.arange(4) + 50)
    seen = []
    own = method.base.losses
    monkeypatch.setattr(method.base, "losses", lambda pairs: seen.append(pairs.video_ids.tolist()) or own(pairs))
    method.mixed(batch, memory, 0.6)
    method.mixed(batch, memory, 0.4)
    assert seen == [[0, 1, 2, 3], [50, 51, 52, 53]]


def test_pixels_are_mixed_by_the_share(bases, monkeypatch):
    method = ready(bases["clip4clip"])
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    seen = []
    own = method.base.losses
    monkeypatch.setattr(method.base, "losses", lambda pairs: seen.append(pairs.frames) or own(pairs))
    method.mixed(batch, memory, 0.75)
    torch.testing.assert_close(seen[0], 0.75 * batch.frames + 0.25 * memory.frames)


def test_around_base_moco_it_is_lump_moco(bases):
    """Keys are computed from the mixed pairs, too."""
    base = bases["base_moco"]
    batch, memory = make_batch(4, 2, seed=5), make_batch(4, 2, seed=6)
    ours, moco = make(base), LUMPMoCo(LUMPMoCoConfig(buffer_size=6), copy.deepcopy(base))
    found = []
    for method in (ours, moco):
        train_stream(method, tasks=1)
        method.begin_task(make_task(1))
        found.append(
            method.mixed(batch, memory, 0.7)["contrastive"]
            if method is ours
            else method.mixed_contrast(batch, memory, 0.7)
        )
        method.after_step()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    queues = [m.base.local.queue.content()[0] for m in (ours, moco)]
    torch.testing.assert_close(queues[0].text, queues[1].text, rtol=1e-3, atol=1e-4)


def test_a_batch_larger_than_the_memory_is_mixed_whole(bases):
    method = make(bases["clip4clip"], buffer_size=2)
    train_stream(method, tasks=1)
    method.begin_task(make_task(1))
    assert torch.isfinite(summed(method.losses(make_batch(5, 2, seed=5))))


@pytest.mark.parametrize("buffer", ["ring", "reservoir"])
def test_the_buffer_is_a_setting(bases, buffer):
    method = make(bases["clip4clip"], buffer_policy=buffer)
    train_stream(method, tasks=3)
    assert (method.memory.policy, len(method.memory)) == (buffer, 6)


@pytest.mark.parametrize(
    ("name", "level", "values"),
    [
        ("camoe_rkw", "input", "mix_level=input mix_level=feature"),
        ("structalign", "feature", "StructAlign mix_level=feature mix_level=input"),
    ],
)
def test_a_retriever_that_cannot_be_mixed_so_is_refused(bases, name, level, values):
    method = ready(bases[name], mix_level=level)
    with refuses(*values.split(), kind=ValueError):
        method.mixed(make_batch(4, 2, seed=5), make_batch(4, 2, seed=6), 0.6)


@pytest.mark.parametrize(("base", "config"), [(LPI, LPIConfig()), (CAMoE, CAMoEConfig(sentences="rkw"))])
def test_a_retriever_that_rewrites_captions_is_refused_before_it_is_built(base, config):
    LUMP.check_base(LUMPConfig(mix_level="feature"), base, config)
    refused(lambda: LUMP.check_base(LUMPConfig(), base, config), kind=SettingError, write="<mix_level>=feature")


# The loss of the first reads whole captions
@pytest.mark.parametrize("config", [CAMoEConfig(sentences="rkw", tasks="sentence"), CAMoEConfig()])
def test_a_retriever_whose_loss_reads_captions_as_they_are_is_accepted(config):
    for lump in (LUMPConfig(mix_level="feature"), LUMPConfig()):
        LUMP.check_base(lump, CAMoE, config)
