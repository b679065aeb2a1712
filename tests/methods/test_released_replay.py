"""Replay codes compared on a small network, which takes the place of a retriever here.

ER, DER, EWC (aimagelab/mammoth@e75a491), LUMP (divyam3897/UCL@cfaa81d) and MoCo's loss (facebookresearch/moco@132aea9).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ctvr.methods.base import Batch, Method, ParamGroup
from ctvr.methods.der import DER, DERConfig
from ctvr.methods.er_ring import ERRing, ERRingConfig
from ctvr.methods.ewc import EWC, EWCConfig
from ctvr.methods.families.strategy import ReplayStrategy
from ctvr.methods.layers.replay.buffer import reservoir_index
from ctvr.methods.layers.replay.momentum import Negatives, momentum_contrast
from ctvr.methods.layers.replay.queues import Pair
from ctvr.methods.lump import LUMP, LUMPConfig
from ctvr.orchestrator.learning.training.optimizer import lr_factor, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import presets_of
from tests.methods.conftest import make_batch, make_small_clip, make_task
from tests.methods.released import FIXTURES, Weights, read

CLASSES = 6


class Network(Method):
    """The release's classifier in place of a retriever: `frames` are its inputs, `categories` its labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, CLASSES))

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="all", params=list(self.parameters()), lr=0.2)]

    def encode_video(self, frames: Tensor) -> Tensor:
        answers: Tensor = self.layers(frames)
        return answers

    def encode_text(self, tokens: Tensor, task: int | None = None) -> Tensor:
        return torch.zeros(len(tokens), CLASSES)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"labels": F.cross_entropy(self.encode_video(batch.frames), batch.categories)}


class Images:
    """A memory's images, as the release replays them."""

    def __init__(self, images: Tensor) -> None:
        self.images = 2 * images - 0.3

    def pairs(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.images[list(numbers)], torch.zeros(len(numbers), 1, dtype=torch.int64)


@pytest.fixture(scope="module")
def released() -> Weights:
    return read(FIXTURES / "replay_released.npz")


def batch_of(released: Weights, step: int) -> Batch:
    labels = released[f"mlp/labels{step}"]
    none = torch.zeros(len(labels), 1, dtype=torch.int64)
    return Batch(released[f"mlp/inputs{step}"], none, torch.arange(len(labels)), labels)


def fill(method: ReplayStrategy, released: Weights, key: str, step: int) -> None:
    """Fill the memory as in the release before this step; it draws the rows that the release drew."""
    kept, answers, drawn = (released[f"{key}/{name}{step}"] for name in ("kept", "answers", "drawn"))
    memory, count = method.memory, torch.arange(len(kept))
    memory.pairs = memory.videos = count
    memory.tasks = torch.zeros_like(count)
    memory.categories = answers.long() if key == "er" else torch.zeros_like(count)
    memory.video_features = answers.float() if key == "der" else torch.empty(len(kept), 0)
    memory.text_features = torch.zeros(len(kept), CLASSES)
    memory.source = Images(kept)

    def draw(count: int | Sequence[int]) -> Tensor:
        asked = count if isinstance(count, int) else sum(count)
        assert key == "der" or asked == len(drawn)
        return drawn

    memory.sample = draw  # type: ignore[method-assign]


def test_three_training_steps_of_replay_equal_the_released_ones(compared, released):
    """Loss, gradient and weights are equal. DER's published alpha of 0.3 is 2 * 0.3 / d here, over features of d
    numbers.
    """
    for name, key in (("er_ring", "er"), ("der", "der")):
        base = Network()
        vector_to_parameters(released["mlp/start"].clone(), base.parameters())
        method: ReplayStrategy = ERRing(ERRingConfig(), base)
        if name == "der":
            method = DER(DERConfig(alpha=2 * 0.3 / CLASSES), base)
        steps_equal(compared, released, method, name, key)


def steps_equal(compared, released: Weights, method: ReplayStrategy, name: str, key: str) -> None:
    base = method.base
    recipe = {name.removeprefix("optim."): v for name, v in presets_of(name)["original"].items() if "optim." in name}
    optimizer = make_optimizer(base.param_groups(), OptimConfig(**recipe), base)
    for step in range(3):
        batch = batch_of(released, step)
        if step:
            fill(method, released, key, step)
        if isinstance(method, ERRing):  # 4 rows of the memory for 6 new ones, and for 4
            method.config = replace(method.config, ratio=4 / len(batch.video_ids))
        loss = torch.stack(list(method.losses(batch).values())).sum()
        compared(name, "loss", loss, released[f"{key}/losses"][step])
        optimizer.zero_grad()
        loss.backward()
        if step == 1:
            found = torch.cat([parameter.grad.flatten() for parameter in base.parameters()])
            compared(name, "gradients", found, released[f"{key}/grad1"])
        set_learning_rates(optimizer, lr_factor(step, 10, 10, True, OptimConfig(**recipe)))
        optimizer.step()
        compared(name, "steps", parameters_to_vector(base.parameters()), released[f"{key}/after{step}"])


def test_the_pull_of_ewc_equals_the_released_value_and_gradient(compared, released):
    """`ewc_on` has no factor 1/2 before its sum: e_lambda = 0.7 is a weight of 1.4. Its Fisher matrix is given."""
    base = Network()
    method = EWC(EWCConfig(weight=2 * 0.7), base)
    method.begin_task(make_task(0))
    vector_to_parameters(released["ewc/weights"].clone(), base.parameters())
    for kind in ("fisher", "anchor"):
        parts = released[f"ewc/{kind}"].split([parameter.numel() for parameter in base.parameters()])
        for (name, parameter), part in zip(base.named_parameters(), parts):
            getattr(method, f"{kind}-{name.replace('.', '-')}").copy_(part.view_as(parameter))
    method.begin_task(make_task(1))
    penalty = method.losses(batch_of(released, 0))["consolidation"]
    compared("ewc", "loss", penalty, released["ewc/penalty"])
    gradients = torch.autograd.grad(penalty, list(base.parameters()))
    compared("ewc", "gradients", parameters_to_vector(gradients), released["ewc/grad"])


def test_a_reservoir_keeps_what_the_released_one_keeps(compared, released, monkeypatch):
    """The random numbers are given; each has the same upper bound, one above the number of offered items."""
    for names, release, room in ((("er_ring", "der"), "mammoth", 6), (("lump",), "ucl", 7)):
        asked, drawn = [], iter(released[f"reservoir/{release}/drawn"].tolist())

        def randint(high: int, size: tuple[int, ...], asked: list[int] = asked, drawn: Iterator[int] = drawn) -> Tensor:
            asked.append(high)
            return torch.tensor(next(drawn))

        monkeypatch.setattr("ctvr.methods.layers.replay.buffer.torch.randint", randint)
        places = released[f"reservoir/{release}/places"]
        found = [reservoir_index(offered, room) for offered in range(len(places))]
        assert asked == list(range(room + 1, len(places) + 1))
        for name in names:
            compared(name, "recipe", [-1 if place is None else place for place in found], places, 0.0)


def test_queue_loss_and_gradient_equal_the_release(compared, released):
    """MoCo's one direction is given twice: L_V2T + L_T2V is twice its loss. Gradients precede normalization."""
    for version, steps, tau in (("v1", 4, 0.07), ("v2", 2, 0.2)):
        for step in range(steps):
            file = {name.split("/")[-1]: value for name, value in released.items() if f"moco/{version}/{step}/" in name}
            raw = file["q_raw"].clone().requires_grad_()
            query, none = F.normalize(raw, dim=-1), torch.zeros(len(raw), file["queue"].shape[1], dtype=torch.bool)
            queue, keys = file["queue"].mT, file["k"]
            loss = momentum_contrast(Pair(query, query), [Pair(keys, keys)], Negatives(Pair(queue, queue), none), tau)
            compared("base_moco", "loss", loss / 2, file["loss"])
            (loss / 2).backward()
            compared("base_moco", "gradients", raw.grad, file["q_raw_grad"])


class Seen(Network):
    """Records the frames that it gets; it also reads captions, which LUMP requires."""

    def __init__(self) -> None:
        super().__init__()
        self.clip, self.frames = make_small_clip(layers=1), torch.empty(0)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        self.frames = batch.frames
        return {"none": self.clip.text(batch.tokens).sum()}


def test_mixed_pictures_equal_the_released_ones(compared, released):
    """Both of its views are equal, whichever of a pair counts as the first."""
    base = Seen()
    method, share = LUMP(LUMPConfig(), base), float(released["lump/share"])
    blank = make_batch(len(released["lump/view1"]), 1)
    for view in (1, 2):
        new, kept = (replace(blank, frames=released[f"lump/{name}{view}"][:, None]) for name in ("view", "memory"))
        with torch.no_grad():
            method.mixed(new, kept, share)
            compared("lump", "forward", base.frames[:, 0], released[f"lump/mixed{view}"], 1e-6)
            method.mixed(kept, new, 1 - share)
            compared("lump", "forward", base.frames[:, 0], released[f"lump/mixed{view}"], 1e-6)
