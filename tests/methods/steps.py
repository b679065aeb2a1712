"""Training steps as the loop takes them, for tests of whole methods."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ctvr.methods.base import Batch, Method, Task
from tests.methods.conftest import RegeneratedPairs, make_batch, make_task


def train_task(method: Method, task: Task, batches: Iterable[Batch], lr: float = 0.05, seed: int = 0) -> list[float]:
    """Train `task` from begin to end by plain gradient descent; return the loss of every step."""
    batches = list(batches)
    method.set_pair_source(RegeneratedPairs())
    torch.manual_seed(seed + 100 * task.index)
    method.begin_task(task)
    parameters = [p for group in method.param_groups() for p in group["params"]]
    for parameter in method.parameters():
        parameter.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    method.train()
    losses = [step(method, parameters, batch, lr) for batch in batches]
    method.eval()
    method.end_task(task, iter(batches))
    return losses


def step(method: Method, parameters: list[torch.nn.Parameter], batch: Batch, lr: float = 0.05) -> float:
    """Take one step: losses, gradient, descent, `after_step`; return the loss."""
    total = torch.stack(list(method.losses(batch).values())).sum()
    for parameter in parameters:
        parameter.grad = None
    total.backward()
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter -= lr * parameter.grad
    method.after_step()
    return float(total.detach())


def train_stream(method: Method, tasks: int = 2, steps: int = 3, pairs: int = 4, lr: float = 0.05) -> list[float]:
    """Train several tasks of a few random batches each; the batches are the same for every method."""
    losses = []
    for index in range(tasks):
        batches = [make_batch(pairs, 2, seed=10 * index + i) for i in range(steps)]
        losses += train_task(method, make_task(index), batches, lr)
    return losses


def weights(module: torch.nn.Module) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def begin(method: Method, index: int = 0) -> Method:
    """Begin a task with all parameters trained and no gradient yet."""
    torch.manual_seed(index)
    method.begin_task(make_task(index))
    for parameter in method.parameters():
        parameter.requires_grad_(True)
    method.zero_grad()
    return method


def largest_gradient(method: Method) -> float:
    return max(float(p.grad.abs().max()) for p in method.parameters() if p.grad is not None)


def moved(method: Method, by: float = 0.05) -> Method:
    """Return the same strategy with its retriever moved: a student that differs from its teacher."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in method.base.parameters():  # type: ignore[union-attr, operator]
            parameter += by * torch.randn_like(parameter)
    return method


def distilled_by_hand(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute T^2 (mean KL over rows + mean KL over columns) of scaled similarities, by the definition of KL."""

    def divergence(new: Tensor, old: Tensor) -> Tensor:
        p, q = (old / temperature).softmax(dim=-1), (new / temperature).softmax(dim=-1)
        return (p * (p.log() - q.log())).sum(dim=-1).mean()

    return temperature**2 * (divergence(student, teacher) + divergence(student.mT, teacher.mT))


def gradient_of(loss: Tensor, parameter: torch.nn.Parameter) -> float:
    """Return the derivative of a loss with respect to one number."""
    (found,) = torch.autograd.grad(loss, parameter)
    return float(found)
