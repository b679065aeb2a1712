"""Budget of a finished run: bytes that a method keeps, copies of its towers, and multiply-adds of its training.

    cost/index_bytes       stored features of all searched videos, float32
    cost/replay_bytes      pairs in replay buffers: decoded frames (uint8), tokens (int64), and features kept with them
    cost/replay_share      pairs in replay buffers in percent of all pairs of earlier tasks, while the last task is
                           trained; 100 for joint training; missing if a method keeps earlier videos elsewhere
    cost/tower_copies      image towers in addition to the encoder: teachers, previous models, momentum encoders
    cost/reencoding_gmacs  multiply-adds (10^9) of videos that the method encoded again over the stream; 0 if none
    cost/pair_gmacs        multiply-adds (10^9) of a training step for each of its pairs, in a batch of the last task
    cost/train_gmacs       multiply-adds (10^9) of all training steps, forward and backward: `cost/pair_gmacs` times the
                           pairs of all steps; missing if there are several workers

Multiply-adds of training are matrix products and convolutions, as torch counts them (half of its FLOPs). Decoding,
normalization and the optimizer are not counted. For methods that grow, a step of the last task is an upper bound of
earlier steps. A run with `upgrade.task` lacks the costs of index and training, because the costs of its old model are
unknown at the end.

Shapes: T frames of S x S pixels, L text length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import torch
from torch import nn

from ctvr.methods.backbone.clip import VisionTower
from ctvr.methods.base import Batch, Frozen, Method
from ctvr.methods.families.upgrade import Upgraded
from ctvr.methods.layers.frozen import copied
from ctvr.methods.layers.gather import world_size
from ctvr.methods.layers.replay.buffer import ReplayBuffer
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.learning.evaluation.cost import Multiplications
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.training.unique_videos import Losses


def step_costs(method: Method, data: StreamData) -> dict[str, float]:
    """Return the costs that are known only between a run's last step and its last `end_task`.

    They are `cost/tower_copies`, `cost/replay_share` and, with one worker, `cost/pair_gmacs`.

    They are kept with the record of the last task, because a method may drop its teacher after the task, and a resumed
    run lacks it. The step is computed without activation checkpointing, whose recomputation is not counted. If the step
    does not fit the GPU, `cost/pair_gmacs` is missing.
    """
    if data.stream.domain != "videos" or not method.param_groups():
        return {}
    last = len(data.stream.method_tasks) - 1
    found = {"cost/tower_copies": float(max(0, len(_towers(method)) - 1)), **_replay_share(method, data, last)}
    if world_size() == 1:
        seen = list(range(last + 1)) if method.declared.trains_on == "seen" else [last]
        batch = next(data.train_batches(seen, 0, last, 0))
        with suppress(torch.OutOfMemoryError):
            found["cost/pair_gmacs"] = _step_gmacs(method, batch) / len(batch.video_ids)
    return found


def budget(
    method: Method, data: StreamData, split: str, cost: Mapping[str, float], record: RunState, seed: int
) -> dict[str, float]:
    """Return the budget metrics that the module docstring defines.

    Args:
        method: the method as trained after the last task.
        data: data of the run, with or without features of frozen blocks.
        split: the split whose videos are searched.
        cost: metrics of `cost.measure`, among them `cost/stored_floats_per_video` and `cost/video_gmacs`.
        record: record of the finished run.
        seed: seed of the run.
    """
    sizes = [data.num_videos(index, split) for index in range(len(data.stream.tasks))]
    reencodes = method.declared.reencodes_gallery or protocol_of(data.stream).reencodes_gallery
    again = sum(sum(sizes[:index]) for index in range(len(sizes))) if reencodes else 0
    spent = record.metrics[-1] if record.metrics else {}
    own = {} if data.stream.learned else {"cost/index_bytes": 4 * cost["cost/stored_floats_per_video"] * sum(sizes)}
    found = {
        **own,
        "cost/replay_bytes": float(_replay_bytes(method.base if isinstance(method, Upgraded) else method, data)),
        "cost/tower_copies": spent.get("cost/tower_copies", 0.0),
        "cost/reencoding_gmacs": again * cost["cost/video_gmacs"],
    }
    steps = [0.0, *(epoch["step"] for epoch in record.training)]
    if data.stream.learned:  # the old model of an upgrade is not counted
        return found
    if not record.training:
        return {**found, "cost/train_gmacs": 0.0, "cost/replay_share": 0.0}
    if "cost/pair_gmacs" in spent:
        last = len(data.stream.method_tasks) - 1
        seen = list(range(last + 1)) if method.declared.trains_on == "seen" else [last]
        pairs = sum(data.batch_sizes(seen, seed, last, 0)) / (steps[-1] - steps[-2])  # of a step of the last epoch
        found["cost/train_gmacs"] = spent["cost/pair_gmacs"] * pairs * steps[-1]
    return found


def modules_within(root: nn.Module) -> Iterator[nn.Module]:
    """Yield every module of a method, and every module of its frozen copies, which are not submodules."""
    for module in root.modules():
        yield module
        for value in vars(module).values():
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, Frozen):
                    yield from modules_within(each.module)


def _towers(method: Method) -> set[int]:
    """Return the address of each image tower's first weight, so that towers with shared weights count once."""
    towers = (module for module in modules_within(method) if isinstance(module, VisionTower))
    return {next(tower.parameters()).data_ptr() for tower in towers}


def _replay_share(method: Method, data: StreamData, last: int) -> dict[str, float]:
    """Return `cost/replay_share` while task `last` is trained; empty if it is unknown."""
    earlier = data.num_pairs(range(last))
    if method.declared.trains_on == "seen" or not earlier:
        return {"cost/replay_share": 100.0 if earlier else 0.0}
    buffers = [module for module in modules_within(method) if isinstance(module, ReplayBuffer)]
    own = vars(method).get("config")
    base = getattr(method, "base", None)
    of_base = isinstance(base, Method) and base.keeps_videos(vars(base).get("config"))
    if not buffers and method.keeps_videos(own, of_base):
        return {}
    return {"cost/replay_share": 100 * sum(map(len, buffers)) / earlier}


def _replay_bytes(method: Method, data: StreamData) -> int:
    """Return the bytes of all replayed pairs."""
    total = 0
    for buffer in (module for module in modules_within(method) if isinstance(module, ReplayBuffer) and len(module)):
        frames = data.frames.load(data.stream.items(0, "train")[0])
        tokens = data.tokens([data.stream.items(0, "train")[0].captions[0]])
        total += len(buffer) * (frames.nbytes + tokens.element_size() * tokens.shape[1])
        total += sum(each.nbytes for each in buffer.buffers())
    return total


def _step_gmacs(method: Method, batch: Batch) -> float:
    """Return the multiply-adds (10^9) of one training step of a copy; method and RNG state do not change."""

    trial = copied(method).train()  # the trained weights are those of the last task
    losses = Losses(trial)
    devices: Sequence[int] = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), Multiplications() as counter:
        torch.manual_seed(0)  # a step draws its experts at random
        torch.stack(list(losses(batch).values())).sum().backward()
    return counter.get_total_flops() / 2e9
