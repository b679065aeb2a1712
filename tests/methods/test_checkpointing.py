"""Checkpointed activations (methods/backbone/blocks.py) change no bit of any method's step, and are not stored."""

import copy

import pytest
import torch

from ctvr.methods.backbone.recompute import checkpointing
from ctvr.orchestrator.learning.training.optimizer import freeze_except
from tests.methods.conftest import RegeneratedPairs, make_batch, make_task
from tests.methods.test_contract import CASES, make

NO_GRAPH = {"zero_shot", "head_linear", "head_low_rank", "head_mlp", "head_ridge", "dns"}  # through a tower
LOWER = [(name, torch.bfloat16) for name in ("framefusion_moe", "moe_adapter", "prompt", "tempme")]


class Kept:
    """Counts the numbers that a graph stores, without those that a checkpointed block computes again."""

    def __init__(self) -> None:
        self.numbers = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.numbers += x.numel()
        return x


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, None) for name in CASES if name not in NO_GRAPH), *LOWER], ids=str
)
def test_checkpointed_activations_change_no_bit_of_a_step_and_are_not_kept(name, dtype):
    method = make(name)
    former, batch = make_batch(4, 4, seed=1), make_batch(4, 4, seed=2)
    method.set_pair_source(RegeneratedPairs())
    for index in range(2):  # so that memories, queues, statistics and teachers exist
        torch.manual_seed(index)
        method.begin_task(make_task(index))
        freeze_except(method, method.param_groups())
        if not index:
            method.train()
            method.losses(former)
            method.after_step()
            method.eval()
            method.end_task(make_task(index), [former])
            method.on_gallery_stored(make_task(index), method.encode_video(former.frames).detach().float())
    steps, kept = [], [Kept(), Kept()]
    for is_on in (False, True):
        own = copy.deepcopy(method).train()
        torch.manual_seed(9)
        with checkpointing(is_on), torch.autograd.graph.saved_tensors_hooks(kept[is_on], lambda x: x):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                terms = own.losses(batch)
            torch.stack(list(terms.values())).sum().backward()
        own.after_step()
        gradients = [torch.zeros(()) if p.grad is None else p.grad for p in own.parameters()]
        steps.append([*terms.values(), *gradients, *own.buffers(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*steps, strict=True))
    assert kept[True].numbers < 0.6 * kept[False].numbers
