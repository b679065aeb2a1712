"""Three steps of LUMP (divyam3897/UCL@cfaa81d) from the reference weights.

Its small network under SimSiam's loss replaces a retriever, and a picture's two views replace a video of two frames.
Memory and shares are those of the run.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch, Method, ParamGroup
from ctvr.methods.lump import LUMP, LUMPConfig
from ctvr.orchestrator.learning.training.optimizer import lr_factor, make_optimizer, set_learning_rates
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.presets import presets_of
from tests.methods.conftest import make_batch, make_small_clip
from tests.methods.released import Weights, floats, read


def layers(before: int, behind: int, last: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(before, behind), nn.BatchNorm1d(behind)]
    return nn.Sequential(*parts, *([] if last else [nn.ReLU()]))


class SimSiam(Method):
    """The release's network under its names; it also reads captions, which LUMP requires."""

    def __init__(self) -> None:
        super().__init__()
        self.clip = make_small_clip(layers=1)
        self.backbone, self.projector, self.predictor = nn.Module(), nn.Module(), nn.Module()
        self.backbone.conv1, self.backbone.bn1 = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.backbone.conv2, self.backbone.bn2 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.projector.layer1, self.projector.layer2 = layers(8, 12), layers(12, 12)  # nothing passes the second one
        self.projector.layer3 = layers(12, 12, last=True)
        self.predictor.layer1, self.predictor.layer2 = layers(12, 6), nn.Linear(6, 12)

    def param_groups(self) -> list[ParamGroup]:
        own = [parameter for name, parameter in self.named_parameters() if not name.startswith("clip.")]
        return [ParamGroup(name="all", params=own, lr=3 * 6 / 256)]

    def pair(self, view: Tensor) -> tuple[Tensor, Tensor]:
        part = self.backbone
        x = part.bn2(part.conv2(part.bn1(part.conv1(view)).relu())).relu().mean(dim=(2, 3))
        z = self.projector.layer3(self.projector.layer1(x))
        return z, self.predictor.layer2(self.predictor.layer1(z))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        (z1, p1), (z2, p2) = (self.pair(view) for view in batch.frames.unbind(dim=1))
        likeness = F.cosine_similarity(p1, z2.detach()) + F.cosine_similarity(p2, z1.detach())
        return {"views": -likeness.mean() / 2, "none": 0 * self.clip.text(batch.tokens).sum()}


class Stored:
    """Pictures of the memory: the plain one, augmented again, and the second view as it was stored."""

    def __init__(self, file: Weights, places: list[tuple[int, int]]) -> None:
        plain, view = (torch.stack([file[f"step{s}/{name}"][row] for s, row in places]) for name in ("plain", "view2"))
        self.frames = torch.stack([(plain - 0.45) / 0.25, view], dim=1)

    def pairs(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        return self.frames[numbers], make_batch(len(numbers), 1).tokens


def test_three_steps_from_the_reference_weights_are_the_released_ones(shared, compared, monkeypatch):
    folder = shared / "reference" / "replay"
    given, after = read(folder / "ucl_steps_data.npz"), read(folder / "ucl_lump.npz")
    steps = json.loads((folder / "ucl.json").read_text())["steps"]["lump"]
    base = SimSiam()
    base.load_state_dict(floats(given, "state/"), strict=False)
    method = LUMP(LUMPConfig(), base).train()
    recipe = {name.removeprefix("optim."): v for name, v in presets_of("lump")["original"].items() if "optim." in name}
    optimizer = make_optimizer(base.param_groups(), OptimConfig(**recipe), base)
    places: list[tuple[int, int]] = []  # (step, row) of every picture of the memory, which has 8 places
    for step, record in enumerate(steps):
        views = torch.stack([given[f"step{step}/view{view}"] for view in (1, 2)], dim=1)
        memory = method.memory
        memory.pairs = memory.videos = memory.tasks = memory.categories = torch.arange(len(places))
        if places:
            drawn = torch.tensor(record["choice"][0][1 : 1 + len(views)])
            monkeypatch.setattr(memory, "sample", lambda count, drawn=drawn: drawn)
            monkeypatch.setattr("ctvr.methods.lump.sample_lambda", lambda *given, record=record: record["beta"][0])
            memory.source = Stored(given, places)
        blank = make_batch(len(views), 1)
        loss = torch.stack(
            list(method.losses(Batch(views, blank.tokens, blank.video_ids, blank.categories)).values())
        ).sum()
        compared("lump", "loss", loss, record["loss"])
        optimizer.zero_grad()
        loss.backward()
        set_learning_rates(optimizer, lr_factor(step, 10, 10, True, OptimConfig(**recipe)))
        for name, parameter in base.named_parameters():
            if f"step{step}/grad/{name}" in after:
                compared("lump", "gradients", parameter.grad, after[f"step{step}/grad/{name}"])
        optimizer.step()
        for name, value in base.state_dict().items():
            if f"step{step}/after/{name}" in after:
                compared("lump", "steps", value, after[f"step{step}/after/{name}"])
        if step < 2:
            places = kept(places, step, len(views), [value for _, value in record["randint"]])


def kept(places: list[tuple[int, int]], step: int, count: int, drawn: list[int]) -> list[tuple[int, int]]:
    """Compute the release's reservoir of 8 places after a step, from the numbers that it drew."""
    numbers, found = iter(drawn), list(places)
    for row in range(count):
        if len(found) < 8:
            found.append((step, row))
        elif (place := next(numbers)) < 8:
            found[place] = (step, row)
    return found
