"""Co2L (chaht01/Co2L@3af7064) compared with its authors' program: loss, gradients, steps, contents of its memory.

A row is a view of a picture here and represents both a caption and a video. The released network replaces a retriever
whose own loss is the supervised one of the current rows. With the strategy's terms `negatives` and `distillation` it
must equal the released loss. Two factors differ: the release divides by 0.07 / T, and averages over all rows where ours
averages over the current ones.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method, ParamGroup
from ctvr.methods.co2l import _UNIT, Co2L, Co2LConfig
from ctvr.methods.layers.replay.buffer import ReplayBuffer
from ctvr.orchestrator.learning.training.optimizer import make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import presets_of
from tests.methods.conftest import make_task
from tests.methods.released import FIXTURES, Weights, floats, read

OWN = {name.removeprefix("method."): value for name, value in presets_of("co2l")["original"].items()}


class Rows(Method):
    """Features of all rows of a step, computed at once for batch normalization; `frames` are numbers of rows."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network
        self.seen = self.given = torch.empty(0)

    def show(self, given: Tensor) -> Tensor:
        """Return unit features of `given`: of pictures, or `given` itself where there is no network."""
        self.seen = given if self.network is None else F.normalize(self.network(given), dim=-1)
        return self.seen

    def encode_video(self, frames: Tensor) -> Tensor:
        return self.seen[frames.flatten()]

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return self.seen[tokens.flatten()]

    def score(self, queries: Tensor, gallery: Tensor) -> Tensor:
        """Return similarities without those of a row to itself."""
        same = (queries[:, None] == gallery[None]).all(dim=-1)
        return (queries @ gallery.mT).masked_fill(same, -torch.inf)

    def scale(self) -> Tensor:
        return torch.tensor(1 / 0.5)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute Khosla et al., arXiv:2004.11362, eq. 2, over the current rows."""
        z = self.encode_video(batch.frames)
        logs = (self.scale() * self.score(z, z)).log_softmax(dim=1)
        alike = batch.categories[:, None] == batch.categories[None]
        alike.fill_diagonal_(False)
        return {"own": -(logs.masked_fill(~alike, 0).sum(dim=1) / alike.sum(dim=1)).mean()}


class Numbers:
    """The memory's rows; their pictures are those of the step."""

    def pairs(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(numbers)[:, None]
        return rows, rows


def released_loss(method: Co2L, labels: Tensor, present: tuple[int, ...] = (2, 3)) -> Tensor:
    """Compute the release's loss of the rows that the retriever has read; old ones (by label) are in the memory."""
    is_new = torch.isin(labels, torch.tensor(present))
    new, old = is_new.nonzero(), (~is_new).nonzero()
    memory = method.memory
    memory.pairs = memory.videos = old[:, 0]
    memory.categories, memory.tasks = labels[old[:, 0]], torch.zeros_like(old[:, 0])
    memory.source = Numbers()
    memory.sample = lambda count: torch.arange(len(old))  # type: ignore[method-assign]
    terms = method.losses(Batch(new, new, new[:, 0], labels[new[:, 0]]))
    share = len(new) / len(labels)
    distilled = terms.pop("distillation", torch.zeros(()))  # already times _UNIT, the preset's weight
    return (share * torch.stack(list(terms.values())).sum() + distilled) / _UNIT


def strategy(network: nn.Module | None = None, **changed: float) -> Co2L:
    own = {name: OWN[name] for name in ("buffer_size", "weight", "kappa", "kappa_teacher", "ird")}
    return Co2L(Co2LConfig(**{**own, **changed}), Rows(network))  # type: ignore[arg-type]


def test_the_whole_loss_equals_the_released_one_in_value_and_gradient(compared):
    """Former rows are negatives and not anchors; without former rows, the loss is the retriever's."""
    file, relations = read(FIXTURES / "co2l_released.npz"), read(FIXTURES / "losses_released.npz")
    for case in ("mixed", "current_only"):
        features = file[f"{case}/features"].flatten(0, 1).clone().requires_grad_()  # (2N, d)
        method = strategy()
        method.base.show(features)
        loss = released_loss(method, file[f"{case}/labels"].repeat_interleave(2))
        loss.backward()
        compared("co2l", "loss", loss, file[f"{case}/loss"], 2e-5)
        compared("co2l", "gradients", features.grad, file[f"{case}/grad"].flatten(0, 1), 2e-5)
    for case, kappas in (("basic", (0.2, 0.01)), ("other_temperatures", (0.5, 0.05))):
        given = {name.rpartition("/")[2]: value for name, value in relations.items() if f"ird/{case}/" in name}
        raw = given["student"].clone().requires_grad_()  # of unit length; relations are made of unit vectors here
        method = strategy(kappa=kappas[0], kappa_teacher=kappas[1])
        method.begin_task(make_task(1))
        method.teacher.module.show(given["teacher"])  # type: ignore[union-attr]
        method.base.show(F.normalize(raw, dim=-1))
        loss = released_loss(method, given["labels"].repeat(2))
        loss.backward()
        compared("co2l", "loss", loss, given["loss"], 2e-5)
        along = (given["grad_total"] * given["student"]).sum(dim=-1, keepdim=True) * given["student"]
        compared("co2l", "gradients", raw.grad, given["grad_total"] - along, 2e-5)


class Small(nn.Module):
    """The release's small network and its head, under their names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.conv1, self.encoder.bn1 = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.encoder.conv2, self.encoder.bn2 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        part = self.encoder
        x = part.bn1(part.conv1(x)).relu()
        answers: Tensor = self.head(part.bn2(part.conv2(x)).relu().mean(dim=(2, 3)))
        return answers


def start(file: Weights) -> tuple[Co2L, torch.optim.Optimizer]:
    """Begin the second task: the teacher exists, and the student has changed since."""
    network = Small()
    method = strategy(network)
    network.load_state_dict({**floats(file, "state/"), **floats(file, "teacher/")})  # its running statistics are alike
    method.begin_task(make_task(1))
    network.load_state_dict(floats(file, "state/"))
    optim = {name.removeprefix("optim."): value for name, value in OWN.items() if name.startswith("optim.")}
    group = ParamGroup(name="all", params=list(network.parameters()), lr=OWN["base.lr"])
    return method.train(), make_optimizer([group], OptimConfig(**optim), method)


def test_steps_with_the_recipe_of_the_preset_are_the_released_ones(shared, compared):
    """The preset's rate, decay and weight apply to a loss that is _UNIT times the released one."""
    file = read(shared / "reference" / "replay" / "co2l_steps.npz")
    for mode in ("teacher_train", "teacher_eval"):
        method, optimizer = start(file)
        teacher = method.teacher.module.train(mode == "teacher_train")  # type: ignore[union-attr]
        network = method.base.network
        for step in range(3):
            pictures = torch.cat([file[f"step{step}/view{view}"] for view in (1, 2)])
            with torch.no_grad():
                teacher.show(pictures)
            method.base.show(pictures)
            loss = released_loss(method, file[f"step{step}/labels"].repeat(2))
            compared("co2l", "loss", loss, file[f"{mode}/loss"][step], 2e-5)
            optimizer.zero_grad()
            (_UNIT * loss).backward()
            set_learning_rates(optimizer, 1.0)
            for name, parameter in network.named_parameters():
                if mode == "teacher_train" and step == 0:
                    released = file[f"{mode}/step{step}/grad/{name}"]
                    compared("co2l", "gradients", parameter.grad / _UNIT, released, 2e-5)
            optimizer.step()
            for name, parameter in network.named_parameters():
                if mode == "teacher_train" and step < 2:
                    compared("co2l", "steps", parameter, file[f"{mode}/step{step}/after/{name}"])


def test_the_memory_keeps_as_many_of_each_task_as_the_released_one(compared):
    """Equal shares fill the memory, up to rounding, which is random in the release; a dropped row never returns."""
    facts = json.loads((FIXTURES / "co2l_released.json").read_text())
    memory, former = ReplayBuffer(20, "ring"), {0: set(), 1: set()}
    for task, chosen in enumerate(facts["chosen"]):
        if task:  # before it, that is at the end of the one before
            rows = torch.tensor([row for row in range(300) if row % 10 // 2 == task - 1])
            memory.write(make_task(task - 1), [Batch(rows[:, None], rows[:, None], rows, rows % 10, rows)])
        for who, kept in enumerate((set(chosen), set(memory.pairs.tolist()))):
            offered = {row for row in kept if row % 10 // 2 == task - 1}
            assert kept - offered <= former[who]
            former[who] = kept
        theirs, ours = (
            torch.bincount(torch.as_tensor(rows, dtype=torch.int64) % 10 // 2, minlength=5)
            for rows in (chosen, memory.pairs)
        )
        assert (theirs - ours).abs().max() <= 1, (theirs, ours)
        compared("co2l", "recipe", len(memory), facts["sizes"][task], 0.0)
