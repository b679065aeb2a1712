"""The continual task loop; depends on torch, not on Ray, MLflow or files.

For every task: begin, train, end, store the gallery, evaluate, commit, report. All randomness is seeded
from (seed, task, epoch, rank), so that a run that was killed and resumed equals an uninterrupted run.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ctvr.methods.backbone.frozen_casts import frozen_casts
from ctvr.methods.backbone.recompute import checkpointing
from ctvr.methods.base import Batch, Method, Position, Task
from ctvr.orchestrator.data.batches import StreamData, seed_of, task_of
from ctvr.orchestrator.data.device import Precision, autocast_for
from ctvr.orchestrator.errors import CommitConflict
from ctvr.orchestrator.keys.prefix_reuse import AccessLog
from ctvr.orchestrator.learning.evaluation.encode_videos import encode_videos
from ctvr.orchestrator.learning.evaluation.index_age import optional_metrics
from ctvr.orchestrator.learning.evaluation.protocols import EvaluationContext, protocol_of
from ctvr.orchestrator.learning.evaluation.stored_galleries import announce_gallery, repeat_tasks
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import (
    PretrainedSnapshot,
    clone_trained_state,
    finish_task,
    load_state,
    prepare_task,
    start_upgrade,
    trained_state,
)
from ctvr.orchestrator.learning.record.run_state import Evaluation, RunState
from ctvr.orchestrator.learning.training.budget import step_costs
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.epoch_state import EpochReports, EpochState, Pauses, Report
from ctvr.orchestrator.learning.training.epoch_timing import EpochTimer
from ctvr.orchestrator.learning.training.gradients import StepGradients
from ctvr.orchestrator.learning.training.loss_monitor import EpochMetrics, mean_losses
from ctvr.orchestrator.learning.training.optimizer import batch_weights, freeze_except, lr_factor, make_optimizer
from ctvr.orchestrator.learning.training.step import require_finite, take_step
from ctvr.orchestrator.processes import record_position
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoopConfig:
    """Settings that `Loop` reads."""

    optim: OptimConfig
    evaluation: EvaluationConfig
    seed: int = 0
    precision: Precision = "fp32"
    pause_minutes: float = 0.0


class Loop:
    """Runs one method on one stream. `run()` is the outline; the other methods are its steps."""

    def __init__(
        self,
        method: Method,
        data: StreamData,
        config: LoopConfig,
        commits: Commits,
        workers: Workers | None = None,
        report: Report | None = None,
        zero_shot: Sequence[float] | None = None,
        reads: AccessLog | None = None,
        epochs: EpochReports | None = None,
    ) -> None:
        """Set up a loop. `zero_shot`: R@1 after each task, for `stream/t2v/r1_gain`; `reads`: log of settings read."""
        self.workers = workers or Workers()
        self.method = method.to(self.workers.device)
        self.data = data.trim_captions_per_task() if method.declared.attends_to_padding else data
        self.config, self.commits, self.protocol = config, commits, protocol_of(data.stream)
        self.report, self.zero_shot, self.reads = report, zero_shot, reads or AccessLog()
        self.record, self._newest = RunState(), 0  # `_newest`: index of the method's task that began last
        self.galleries: list[Tensor] = []  # on the CPU, one (V, ...) for each finished task
        self.selection: list[Tensor] = []  # galleries of the split that selects epochs, if it is a different one
        self._pretrained = PretrainedSnapshot(method)
        about = self._pretrained, self.workers, self.reads, config.pause_minutes, epochs
        self.pauses = Pauses(commits, method, data.stream, *about)
        self._momenta: dict[Tensor, dict[str, Tensor]] = {}  # carried to the next task (optim.carry_momentum)
        method.gallery_is_fresh = self._reencodes
        method.set_pair_source(self.data)

    def run(self, until: int | None = None) -> RunState:
        """Learn the stream, or its first `until` tasks, starting after its last commit; return the state of the run.

        Raises:
            CommitConflict: if another process committed a task first; a new loop continues from it (`run.execute`).
        """
        stream, num_tasks = self.data.stream, until or len(self.data.stream.tasks)
        done = self.workers.broadcast(self.commits.finished(num_tasks))
        if done:
            self._resume(done)
        for index in range(done, num_tasks):
            started, before, costs = time.monotonic(), Evaluation(), Evaluation()
            for task in map(self.data.task, stream.learned_in(index)):
                self._begin(task)
                before = before if index or task.index else self._optional(0)
                with checkpointing(self.config.optim.activation_checkpointing):
                    self._train(task)
                if task.index + 1 == task.num_tasks and self.record.training:
                    costs.metrics |= step_costs(self.method, self.data)
                with checkpointing(self.config.optim.activation_checkpointing):  # end_task may compute gradients, too
                    self.method.eval()
                    self._seed("end", task.index)
                    finish_task(self.method, task, self.data.ordered_batches([task.index]))
            self._store_galleries(index)
            found = self._evaluate(index)
            found.add(before, self._optional(index + 1, found.own, before.metrics), costs)
            self._commit(found, time.monotonic() - started + self.pauses.seconds)
            if self.report is not None:
                self.report(task_of(stream, index, stream.tasks), self.record, self.record.seconds[-1])
            if index + 1 < num_tasks:
                self.pauses.end_task(self.record)
        return self.record

    def _seed(self, *parts: object) -> None:
        torch.manual_seed(seed_of(self.config.seed, *parts))

    def _begin(self, task: Task) -> None:
        self.method.eval()  # the same mode as in a resumed run
        self._seed("begin", task.index)  # equal on every worker: new parameters must agree
        self.method.begin_task(task)
        self._newest = task.index
        self.method.to(self.workers.device).eval()  # new modules are in training mode

    def _resume(self, done: int) -> None:
        """Replay `begin_task` for finished tasks, then load the state of the last commit."""
        weights, self.galleries = self.commits.load(done)
        self.selection = self.commits.galleries(done, "selection")
        self.record = self.commits.record(done)
        self.reads.update(self.commits.settings_read(done))
        repeat_tasks(self.method, self.data.stream, self.galleries, self.workers.device, self._begin)
        if self.data.stream.method_task(done - 1) < 0:  # the new model of an upgrade begins now
            start_upgrade(self.method, weights)
            return
        load_state(self.method, weights, self._pretrained)
        named = dict(self.method.named_parameters())
        for name, value in self.commits.optimizer_state(done).items():
            self._momenta[named[name]] = {"momentum_buffer": value.to(self.workers.device)}
        if done < len(self.data.stream.tasks):
            log.info("resumed after task %d of %d", done, len(self.data.stream.tasks))

    # ------------------------------------------------------------------------------------ training

    def _autocast(self) -> Any:
        return autocast_for(self.config.precision, self.workers.device.type)

    @frozen_casts()
    def _train(self, task: Task) -> None:
        self._seed("prepare", task.index)  # equal on every worker, as the pairs are
        prepare_task(self.method, task, self.data.ordered_batches([task.index]))
        optim, groups = self.config.optim, self.method.param_groups()
        if not (parameters := freeze_except(self.method, groups)) or not optim.epochs:
            return
        self._pretrained.drop(parameters)
        gradients = StepGradients(self.method, parameters, optim, self.workers, self._autocast)
        optimizer = make_optimizer(groups, optim, self.method, gradients.recompute)
        optimizer.state.update({p: self._momenta[p] for p in parameters if p in self._momenta})
        tasks = list(range(task.index + 1)) if self.method.declared.trains_on == "seen" else [task.index]
        self.workers.check_gradients_once(self.method, optimizer)
        per_epoch = math.ceil(self.data.steps(tasks, self.workers.size) / optim.accumulation_steps)
        state, self.record = self.pauses.resume(optimizer, self.record)
        while (epoch := state.done) < optim.epochs and not state.is_over:
            self.method.train()
            self._seed("epoch", task.index, epoch, self.workers.rank)
            order = (tasks, self.config.seed, task.index, epoch)
            weights = batch_weights(self.data.batch_sizes(*order, self.workers.size), optim.accumulation_steps)
            batches = self.data.train_batches(*order, self.workers.rank, self.workers.size)
            timer = EpochTimer(self.workers.device)
            gradients.begin_epoch()  # DDP's first step sums in other buckets
            about = optimizer, parameters, task, epoch, per_epoch
            terms = self._epoch(gradients, timer.iterate(batches), weights, *about)
            self.record.timing.append({"step": float(self.record.steps), **timer.read(self.workers)})
            terms.update(self._evaluation_losses(task) if self.config.evaluation.log_losses else {})
            terms.update(self._evaluate_epoch(state))
            self.record.training.append({"step": float(self.record.steps), **terms})
            self.pauses.end_epoch(state, optimizer, self.record)
        require_finite(parameters, optim)
        if state.best is not None:
            load_state(self.method, state.best[1], self._pretrained)
        if optim.carry_momentum:
            self._momenta = {p: s for p, s in optimizer.state.items() if s.get("momentum_buffer") is not None}

    def _epoch(
        self,
        gradients: StepGradients,
        batches: Iterator[Batch],
        weights: Sequence[float],
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        task: Task,
        epoch: int,
        per_epoch: int,
    ) -> dict[str, float]:
        """Train one epoch; return the means of loss terms and batch metrics. `weights`: see `batch_weights`."""
        optim = self.config.optim
        progress = EpochMetrics(self.workers.device, f"{task.name}, epoch {epoch + 1}")
        optimizer.zero_grad(set_to_none=True)
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True)):
            step, part = epoch * per_epoch + number // optim.accumulation_steps, number % optim.accumulation_steps
            is_last = part + 1 == optim.accumulation_steps or number + 1 == len(weights)
            if not part:
                self.method.set_position(Position(step, optim.epochs * per_epoch, epoch, optim.epochs))
            terms = gradients.add(batch, weight, is_last)
            if terms is not None:
                progress.add(terms, self.method.batch_metrics())
            if not is_last:
                continue
            factor = lr_factor(step, optim.epochs * per_epoch, per_epoch, task.index == 0, optim)
            progress.step(take_step(self.method, optimizer, parameters, optim, factor))
            self.record.steps += 1
        return self.workers.all_reduce_mean(progress.means())  # a term may be a mean over one worker's pairs only

    def _evaluation_losses(self, task: Task) -> dict[str, float]:
        """Return the mean of every loss over fixed batches of a task's evaluation pairs."""
        split, workers, index = self.config.evaluation.split, self.workers, self.record.done
        self.method.eval()
        self._seed("unlearned", index, workers.rank)
        data = self.data.with_training_split(split)
        batches = data.train_batches([index], self.config.seed, index, 0, workers.rank, workers.size)
        means = mean_losses(self.method, batches, self._autocast, workers.device, f"{task.name}, {split}")
        return workers.all_reduce_mean({name.replace("train", split, 1): value for name, value in means.items()})

    def _evaluate_epoch(self, state: EpochState) -> dict[str, float]:
        """Evaluate as after the task; keep the best epoch if one is selected. Return the metrics of `every_epoch`."""
        evaluation, chosen, done = self.config.evaluation, self._selects_on, self.record.done
        self.method.eval()
        splits = filter(None, dict.fromkeys((chosen, evaluation.split if evaluation.every_epoch else chosen)))
        found = {split: self._score(done, split, self._encode_galleries(done, split)) for split in splits}
        if chosen is not None:
            snapshot = partial(clone_trained_state, self.method, self._pretrained)
            state.select(self.protocol.score(found[chosen]), snapshot, evaluation)
        metrics = found[evaluation.split].metrics if evaluation.every_epoch else {}
        return {f"epoch/{name[7:]}": value for name, value in metrics.items() if name.startswith("stream/")}

    # ---------------------------------------------------------------------------------- evaluation

    @property
    def _selects_on(self) -> str | None:
        return self.config.evaluation.selects_on(self.data.stream.has_val)

    @property
    def _reencodes(self) -> bool:
        return self.method.declared.reencodes_gallery or self.protocol.reencodes_gallery

    def _tasks_to_encode(self, task: int) -> list[int]:
        """Return the tasks whose videos the current model encodes: `task`, or all tasks up to it with re-encoding."""
        return list(range(task + 1)) if self._reencodes else [task]

    def _encode_galleries(self, task: int, split: str) -> list[Tensor]:
        """Return the features of all tasks' videos so far: encoded now for `_tasks_to_encode`, otherwise as stored."""
        stored = self.galleries if split == self.config.evaluation.split else self.selection
        fresh = self._tasks_to_encode(task)
        return [self._gallery(i, split) if i in fresh else stored[i] for i in range(task + 1)]

    def _store_galleries(self, task: int) -> None:
        split = self.config.evaluation.split
        self.galleries = self._encode_galleries(task, split)
        for index in self._tasks_to_encode(task):
            announce_gallery(self.method, self.data.stream, self.galleries, index, self.workers.device)
        if self._selects_on not in {None, split} and not self._reencodes:
            self.selection = self._encode_galleries(task, str(self._selects_on))

    def _gallery(self, index: int, split: str, count: int | None = None) -> Tensor:
        """Encode a task's videos, or the first `count`, to (V, ...); unlearned tasks use parts of the newest task."""
        evaluation, given = self.config.evaluation, min(self.data.stream.method_task(index), self._newest)

        def encode(rows: Sequence[int]) -> Tensor:
            with self._autocast():
                return encode_videos(self.method, self.data.videos(index, split, rows, evaluation.batch_size), given)

        size = self.data.num_videos(index, split) if count is None else count
        return self.workers.encode_sharded(encode, range(size))

    def _measure(self, index: int, split: str, galleries: Sequence[Tensor]) -> Evaluation:
        """Return metrics after task `index`: all workers encode, rank 0 scores, every worker gets the result."""
        self._seed("evaluate", index)
        record_position(f"the evaluation after task {index + 1} ({split})")
        return self.workers.broadcast(self.protocol.measure(self._context(index, split, galleries)))

    def _context(self, index: int, split: str, galleries: Sequence[Tensor]) -> EvaluationContext:
        def encode_sharded(encode: Callable[[Any], Tensor], rows: Any) -> Tensor:
            with self._autocast():  # for the towers only: scores are float32
                return self.workers.encode_sharded(encode, rows, is_for_all=False)

        about = self.config.evaluation, self.workers.device, encode_sharded, self.workers.rank == 0, self._newest
        return EvaluationContext(self.method, self.data, index, split, galleries, *about)

    def _optional(self, done: int, own: Sequence[float] = (), before: Mapping[str, float] | None = None) -> Evaluation:
        """Return the metrics of index_age.py after `done` tasks; 0 measures the untrained model in its first task."""
        evaluation, first = self.config.evaluation, self.record.metrics[0] if self.record.metrics else before or {}
        if not evaluation.measures_more:
            return Evaluation()
        self._seed("optional metrics", done)
        context = self._context(max(done - 1, 0), evaluation.split, self.galleries)
        encode = partial(self._gallery, split=context.split)
        return self.workers.broadcast(optional_metrics(context, encode, self._reencodes, done, own, self.record, first))

    def _evaluate(self, index: int) -> Evaluation:
        found = self._score(index, self.config.evaluation.split, self.galleries)
        found.metrics.update({f"task/{name}": float(value) for name, value in self.method.task_metrics().items()})
        return found

    def _score(self, index: int, split: str, galleries: Sequence[Tensor]) -> Evaluation:
        """Return the results of `_measure` and the metrics that need earlier tasks."""
        found = self._measure(index, split, galleries)
        self.protocol.add_history(found, [*self.record.own, found.own], [*self.record.union, found.union])
        if self.zero_shot is not None and self.protocol.gain is not None:
            metric, gain = self.protocol.gain
            found.metrics[gain] = found.metrics[metric] - self.zero_shot[index]
        return found

    def _commit(self, found: Evaluation, seconds: float) -> None:
        record = self.record
        record.add(found, self.protocol.ranks(found), seconds)
        reads = self.workers.all_gather_union(self.reads.names)
        names = ((name, self._momenta.get(p)) for name, p in self.method.named_parameters())
        momenta = {name: state["momentum_buffer"].cpu() for name, state in names if state}
        is_ours = self.workers.rank != 0 or self.commits.publish(
            trained_state(self.method, self._pretrained), self.galleries, record, reads, self.selection, momenta
        )
        if not self.workers.broadcast(is_ours):
            raise CommitConflict(
                f"task {record.done} was committed by another run of the same settings, with different results"
            )
        self.pauses.clear()
        if self.workers.size > 1:
            dist.barrier()
