"""The training cases: a method with settings, and the results that a worker reports."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ctvr.methods import find_method, trust
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.base import Method, Task
from ctvr.methods.layers import gather
from ctvr.methods.layers.adapter_groups import AdapterGroup
from ctvr.orchestrator.errors import Interrupted, NonFiniteLoss
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.training import loop
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.epoch_state import EpochReports
from ctvr.orchestrator.learning.training.interruption import Interruption, Request
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from tests.methods.conftest import make_small_clip
from tests.workers.stream import make_data


@dataclass(frozen=True)
class Case:
    """One run. Its name is that of the method, followed by its special settings if it has any."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)  # dotted
    presets: tuple[str, ...] = ()
    random: bool = False  # dropout, routing noise and augmentation, other on each worker
    fault: str = ""  # a name of FAULTS
    after: int = 0  # resumes after the first task of a run on so many workers
    label: str = ""
    pauses: bool = False  # every process ends after one epoch or task, and another continues
    device: str = "cpu"  # cuda: a pretended GPU for each worker (tests/devices)

    @property
    def name(self) -> str:
        """Name of the method and all special settings."""
        settings = [f"{name.rpartition('.')[2]}={value}" for name, value in self.settings.items()]
        words = [self.method, *self.presets, *settings, self.label, self.fault]
        words += ["random"] * self.random + ["paused"] * self.pauses
        words += [f"after {self.after}"] * bool(self.after) + ["cuda"] * (self.device != "cpu")
        return " ".join(word for word in words if word)

    def group(self, name: str) -> dict[str, Any]:
        """Settings of a group, without its name."""
        return {key.partition(".")[2]: value for key, value in self.settings.items() if key.startswith(f"{name}.")}


def make_method(case: Case) -> tuple[Method, Clip]:
    """Return the method on the small CLIP, with one learning rate for all parts."""
    trust([case.method])
    made = resolve({"method": case.method, "stream": "s", "data.num_frames": 4, **case.settings}, presets=case.presets)
    torch.manual_seed(5)
    clip, cls = make_small_clip(layers=2), find_method(made.run.method)
    method = cls(made.method, find_method(made.method.base)(made.base, clip) if cls.wraps else clip)
    plain = method.param_groups
    method.param_groups = lambda: [{**group, "lr": 0.01} for group in plain()]  # type: ignore[method-assign]
    return method, clip


class Watched(loop.Loop):
    """A loop that records every tensor as it was after training."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.start: dict[str, Tensor] = {}
        self.waits: Counter[str] = Counter()  # of the steps of the last task, for a GPU

    def _train(self, task: Task) -> None:
        with ExitStack() as stack:
            if self.workers.device.type == "cuda":
                from tests.devices.fake_cuda import watching

                self.waits = stack.enter_context(watching()).waits
            super()._train(task)

    def _begin(self, task: Task) -> None:
        super()._begin(task)
        for name, value in self.method.state_dict().items():
            self.start.setdefault(name, value.cpu().clone())


def _key(case: Case, size: int) -> str:
    """Return the key of a run's commits."""
    words = f"{case.name} {size}".replace("=", " ").replace(",", " ").replace(":", " ").lower()
    return "-".join(words.split())


def run(case: Case, workers: Workers, folder: str) -> dict[str, Any]:
    """Train a case and return this worker's results; equal `bits` mean equal bits on the workers.

    Args:
        folder: folder of the store, shared with runs on other numbers of workers.
    """
    with ExitStack() as stack:
        if case.device == "cuda":
            from tests.devices.fake_cuda import pretended
            from tests.devices.nccl import nccl

            workers = replace(workers, device=stack.enter_context(pretended()))
            stack.enter_context(nccl())
        return _run(case, workers, folder)


def _run(case: Case, workers: Workers, folder: str) -> dict[str, Any]:
    while True:
        try:
            return _live(case, workers, folder)
        except Interrupted:
            continue


def _live(case: Case, workers: Workers, folder: str) -> dict[str, Any]:
    method, clip = make_method(case)
    common = {"epochs": 1, "schedule": "constant", "warmup": 0.0, "grad_clip": None}
    common["eps"] = 1.0  # with the usual one AdamW would not see a gradient that is W times too large
    optim = OptimConfig(**common | case.group("optim"))  # type: ignore[arg-type]
    evaluation = EvaluationConfig(**{"batch_size": 3} | case.group("evaluation"))  # type: ignore[arg-type]
    augment = {"augment": "crop_flip"} if case.random else {}
    store, key = Store.open(folder), _key(case, workers.size)
    if case.after and workers.rank == 0:
        former = store.get_json("commits", f"{_key(replace(case, after=0), case.after)}/task_001")
        store.put_json("commits", f"{key}/task_001", former)
    workers.broadcast(None)
    data = make_data(clip, workers.device, method.domain, **case.group("data"), **augment)
    request: Request = "stop" if case.pauses else ""
    epochs = EpochReports(interruption=Interruption(lambda: request))
    rest = (None, None, None, epochs)
    made = Watched(method, data, loop.LoopConfig(optim, evaluation), Commits(store, key), workers, *rest)
    behind: list[bytes] = []
    with ExitStack() as stack:
        for switched in (None if case.random else quiet(), gradients(behind)):
            if switched is not None:
                stack.enter_context(switched)
        if case.fault:
            stack.enter_context(FAULTS[case.fault](workers.rank, method))
        try:
            record = made.run()
        except NonFiniteLoss as error:
            return {"diverged": str(error), "bits": "", "behind": ""}
    state = {name: value.cpu() for name, value in method.state_dict().items()}
    told = {"metrics": record.metrics, "training": record.training, "own": record.own, "steps": record.steps}
    bits = hashlib.sha256(json.dumps(told, sort_keys=True).encode())  # read from a pause, names are sorted
    for value in [*state.values(), *made.galleries]:
        bits.update(value.numpy().tobytes())
    found = {
        "waits": {
            place: n for place, n in made.waits.items() if not place.startswith("torch ")
        },  # `gradients` reads, too
        "bits": bits.hexdigest(),
        "behind": hashlib.sha256(b"".join(behind)).hexdigest(),
        **told,
    }
    if workers.rank == 0:
        found |= {"state": {name: value.clone() for name, value in state.items()}, "start": made.start}
        found["galleries"] = made.galleries
    return found


# ---------------------------------------------------------------------------------------- what is switched


def draw_nothing(group: AdapterGroup, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return noise of 0, and a mask that cancels the scale of dropout."""
    is_noisy = group.routers is not None and group.routers.is_noisy
    eps = x.new_zeros(group.places, len(x), group.num_experts, dtype=torch.float32) if is_noisy else None
    return eps, x.new_full((group.places, *x.shape), 1 - group.dropout) if group.dropout else None


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the random draws that each worker makes alone: dropout and routing noise."""
    with (
        mock.patch.object(nn.functional, "dropout", lambda x, *args, **named: x),
        mock.patch.object(torch, "randn_like", torch.zeros_like),
        mock.patch.object(AdapterGroup, "_draw", draw_nothing),
    ):
        yield


@contextmanager
def gradients(seen: list[bytes]) -> Iterator[None]:
    """Record every gradient that reaches `gather` in the backward pass: after `gather` all workers compute the same."""
    plain = gather._AllGather.backward

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        seen.append(grad.cpu().numpy().tobytes())
        with mock.patch.multiple(dist, **dict.fromkeys(("all_reduce", "all_gather", "broadcast"), _refuse)):
            return plain(ctx, grad)

    with mock.patch.object(gather._AllGather, "backward", staticmethod(backward)):
        yield


def _refuse(*given: Any, **named: Any) -> None:
    raise AssertionError("a backward pass has a collective of its own, which could cross those of the averaging")


@contextmanager
def no_sum(rank: int, method: Method) -> Iterator[None]:
    """Give a worker's rows only the gradient of its own loss."""

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        start = dist.get_rank() * ctx.rows
        return grad[start : start + ctx.rows]

    with mock.patch.object(gather._AllGather, "backward", staticmethod(backward)):
        yield


@contextmanager
def times_workers(rank: int, method: Method) -> Iterator[None]:
    """Sum gradients over workers without averaging them."""

    def sum_up(optimizer: torch.optim.Optimizer, *given: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad *= dist.get_world_size()

    planted = register_optimizer_step_pre_hook(sum_up)
    try:
        yield
    finally:
        planted.remove()


@contextmanager
def one_waits(rank: int, method: Method) -> Iterator[None]:
    """Let the last worker wait for a message that no worker sends."""
    plain = method.losses

    def waiting(batch: Any) -> dict[str, Tensor]:
        if rank == dist.get_world_size() - 1:
            dist.recv(torch.zeros(()), src=0)
        return plain(batch)

    with mock.patch.object(method, "losses", waiting):
        yield


@contextmanager
def one_diverges(rank: int, method: Method) -> Iterator[None]:
    """Make a loss term of the last worker NaN, to which no other worker contributes."""
    plain = method.losses

    def broken(batch: Any) -> dict[str, Tensor]:
        nothing = float("nan") if rank == dist.get_world_size() - 1 else 0.0
        return plain(batch) | {"own": torch.tensor(nothing)}

    with mock.patch.object(method, "losses", broken):
        yield


FAULTS: dict[str, Callable[..., Any]] = {
    "no sum": no_sum,
    "times workers": times_workers,
    "one waits": one_waits,
    "one diverges": one_diverges,
}
