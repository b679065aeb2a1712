"""Experience replay: trains on stored pairs of earlier tasks together with pairs of the current task.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", arXiv:1902.10486, over any retriever;
preset `bmu-moco` is BMU-MoCo's competitor "ER-Ring". Pairs do not have classes, so the ring buffer has one partition
for each task. From the second task on, every step samples memory pairs, and the retriever's loss covers them and the
new pairs.

Experience replay keeps videos of earlier tasks, which the protocol of CTVR (arXiv:2503.10111) forbids. Tables therefore
compare methods with such a memory only with each other (`keeps_videos`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method, Override, Recipe
from ctvr.methods.families.momentum import MOCO_UNPUBLISHED, PAPER
from ctvr.methods.families.released_recipes import REPLAY_LEFT_OUT, sgd
from ctvr.methods.families.strategy import ReplayConfig, ReplayStrategy
from ctvr.methods.layers.gather import uneven_rows, world_size
from ctvr.methods.layers.replay.buffer import join
from ctvr.methods.settings import require, setting

# The command `er` on Split CIFAR-10 with a memory of 500 images, in the code that DER's authors published
ORIGINAL = Recipe(
    "aimagelab/mammoth@e75a491",
    {
        "method.buffer_size": (500, "utils/best_args.py: --buffer_size 500"),
        "method.buffer_policy": ("reservoir", "models/er.py, utils/buffer.py"),
        "method.ratio": (1.0, "utils/best_args.py: minibatch_size = batch_size = 32"),
        **sgd(0.1, 50, 32, "utils/best_args.py: er on seq-cifar10"),
    },
    REPLAY_LEFT_OUT,
)


@dataclass(frozen=True, kw_only=True)
class ERRingConfig(ReplayConfig):
    """Settings of ER-Ring; no paper publishes values for retrieval."""

    UNPUBLISHED = ("method.buffer_size", "base.lr")
    ROW_UNPUBLISHED = {"er_ring_moco": ("method.ratio", *MOCO_UNPUBLISHED)}

    base: str = setting("clip4clip", doc="name of the wrapped retriever, whose settings are base.*")
    quota: Literal["dynamic", "static"] = setting(
        "dynamic",
        doc="division of the ring buffer. dynamic: among the tasks so far; static: among all tasks of the stream",
        part="loss",
    )
    ratio: float = setting(
        1.0,
        doc="number of memory pairs per pair of the batch; a training step costs 1 + ratio times as much as without "
        "memory",
        unpublished=True,
        part="loss",
    )
    negatives: Literal["joint", "separate"] = setting(
        "joint",
        doc="pairs that the loss contrasts. joint: pairs of the batch and of the memory together; separate: each group "
        "by itself, so that replay does not add in-batch negatives",
        part="loss",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, ">= 0", "ratio", hint="Use 1 for as many memory pairs as new ones.")


class ERRing(ReplayStrategy):
    """Strategy that trains on the batch together with stored pairs of earlier tasks."""

    Config = ERRingConfig
    PRESETS = {
        "paper": {},
        "original": ORIGINAL,
        "shapes": {"base.lr": 4e-6},  # with optim.lr_scale=50, for the small backbone
        "share-5": Override({"method.buffer_share": 0.05}),  # a memory of 5 % of the earlier pairs
        # BMU-MoCo's competitor (NeurIPS 2022, table 1): it wraps momentum contrast and has the paper's memory
        "bmu-moco": Override({"method.base": "base_moco"}),
        "bmu-moco-paper": {**PAPER, "method.base": "base_moco", "method.buffer_size": 10_000},
    }
    config: ERRingConfig

    def __init__(self, config: ERRingConfig, base: Method) -> None:
        super().__init__(config, base, config.quota)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        sizes = self.replayed(len(batch.video_ids))
        if not len(self.memory) or not sum(sizes):
            return self.base.losses(batch)
        rows = self.memory.sample(sizes)
        if self.config.negatives == "separate":
            return self._compute_separately(batch, rows, sizes)
        if len(rows):
            both = join(batch, self.memory.batch(rows), self.index)
        else:  # this worker does not have memory pairs, since the step has fewer of them than workers
            both = replace(batch, task_ids=torch.full((len(batch.video_ids),), self.index), pair_ids=None)
        with uneven_rows([len(batch.video_ids) + size for size in sizes]):
            return self.base.losses(both)

    def _compute_separately(self, batch: Batch, rows: Tensor, sizes: list[int]) -> dict[str, Tensor]:
        """Return losses computed apart for the batch and for the memory pairs at `rows`, averaged over all pairs.

        `sizes` are the numbers of memory pairs of the workers.
        """
        new, old = len(batch.video_ids) * len(sizes), sum(sizes)
        of_step = self.base.losses(batch)
        with uneven_rows(sizes):
            of_memory = self.base.losses(self.memory.batch(rows))
        terms = {name: new / (new + old) * term for name, term in of_step.items()}
        for name, term in of_memory.items():
            terms[name] = terms.get(name, 0) + old / (new + old) * term
        return terms

    def replayed(self, pairs: int) -> list[int]:
        """Return the number of memory pairs in a step for each worker, if every worker has `pairs` new pairs.

        Their sum does not depend on how the new pairs are distributed over workers. If `ratio` is above 0, at least one
        pair is sampled; with `negatives=separate`, at least one for each worker.
        """
        workers = world_size()
        least = workers if self.config.negatives == "separate" else 1
        count = max(round(self.config.ratio * pairs * workers), least * int(self.config.ratio > 0))
        return [count * (rank + 1) // workers - count * rank // workers for rank in range(workers)]
