"""Progressive networks: columns equal aimagelab/mammoth@e75a491; properties of former columns."""

import copy
import re
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.base import Batch
from ctvr.methods.images.progressive import Columns, ImageProgressive, ImageProgressiveConfig
from ctvr.methods.images.resnet import ResNet18
from ctvr.methods.images.siamese import Siamese, SiameseConfig
from tests.methods.conftest import make_task
from tests.methods.released import FIXTURES, Weights, read

CHANNELS, CLASSES, SIDE = 4, 6, 16
LOSSES = ((2.506481170654297, 0.7663457989692688), (3.8727633953094482, 0.8081275820732117))  # mammoth.json
NAMES = (  # ours -> theirs; their blocks have a ReLU between them in their lists
    (r"^(.*layer\d|laterals\.\d)\.1\.", r"\1.2."),
    (r"downsample", "shortcut"),
    (r"^net\.", ""),
)


@pytest.fixture(scope="module")
def released() -> Weights:
    return read(FIXTURES / "pnn_released.npz")


def theirs(ours: str) -> str:
    for pattern, name in NAMES:
        ours = re.sub(pattern, name, ours)
    ours = re.sub(r"^laterals\.(\d)", lambda found: f"lateral_layer{int(found[1]) + 2}", ours)
    ours = re.sub(r"^adaptors\.(\d)\.mix", lambda found: f"adaptor{int(found[1]) + 1}.1", ours)
    return re.sub(r"^adaptors\.(\d)\.alpha", lambda found: f"adaptor{int(found[1]) + 1}.0.alpha", ours)


def recipe(name: str, shape: tuple[int, ...]) -> Tensor:
    z = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("running_var"):
        made = 1 + 0.2 * np.abs(z)
    elif name.endswith(("running_mean", "bias")):
        made = 0.1 * z
    elif len(shape) == 1:
        made = 1 + 0.2 * z
    else:
        made = 1.4 * z / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(made).float()


class Classified(nn.Module):
    """Columns with the classifiers of the last one, whose weights are those of the recipe."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        task = len(columns) - 1
        self.columns = columns
        self.heads = nn.ModuleList(nn.Linear(8 * CHANNELS, CLASSES) for _ in range(task + 1))
        column = columns.columns[-1]
        for place, side in enumerate((SIDE, SIDE // 2, SIDE // 4, 1) if task else ()):  # a factor for each pixel
            adaptor = column.adaptors[place]  # type: ignore[union-attr,index]
            adaptor.alpha = nn.Parameter(torch.zeros(1, CHANNELS << place, side, side))
        with torch.no_grad():
            for name, tensor in column.state_dict().items():
                if not name.endswith("num_batches_tracked"):
                    tensor.copy_(recipe(f"pnn.col{task}.{theirs(name)}", tuple(tensor.shape)))
            for head, name in zip(self.heads, ("classifier", "lateral_classifier")):
                head.weight.copy_(recipe(f"pnn.col{task}.{name}.weight", (CLASSES, 32)))
                head.bias.copy_(recipe(f"pnn.col{task}.{name}.bias", (CLASSES,)))

    def forward(self, images: Tensor) -> Tensor:
        parts = self.columns(images).split(8 * CHANNELS, dim=1)
        return torch.stack([head(part) for head, part in zip(self.heads, parts)]).sum(dim=0)


def learn(model: Classified, x: Tensor, labels: Tensor, losses: tuple[float, ...]) -> None:
    """Take the two steps that trained the reference columns."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    for expected in losses:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        torch.testing.assert_close(loss.detach(), torch.tensor(expected), rtol=0, atol=1e-5)
        loss.backward()
        optimizer.step()


def test_two_columns_and_their_training_are_the_released_ones(released, compared):
    def equal(found: Tensor, key: str, atol: float = 1e-5) -> None:
        compared("image_progressive", "steps" if "steps" in key else "forward", found, released[key], atol)

    x, labels = released["x"], released["y_task0"]
    columns = Columns(ResNet18(CHANNELS))
    first = Classified(columns)
    equal(first.eval()(x), "column0/out_eval")
    equal(copy.deepcopy(first).train()(x), "column0/out_train")
    learn(first.train(), x, labels, LOSSES[0])
    equal(first.eval()(x), "column0/out_eval_after_2_steps")

    columns.add(0.1)
    second = Classified(columns)
    former, last = columns.columns
    # As released, unlike ours: the former stem uses the new column's normalization, and its running statistics change
    former.net.bn1 = last.net.bn1  # type: ignore[union-attr]
    equal(second.eval()(x), "column1/out_eval")
    former.train(second.train().training)
    given = copy.deepcopy(last.state_dict())
    equal(second(x), "column1/out_train", 3e-5)
    last.load_state_dict(given)  # the reference was built again here, except for its running statistics
    learn(second, x, labels + 2, LOSSES[1])
    equal(second.eval()(x), "column1/out_eval_after_2_steps", 1e-4)


def made(**settings: object) -> ImageProgressive:
    torch.manual_seed(2)
    base = Siamese(SiameseConfig(width=7, bottleneck=5), ResNet18(4))
    return ImageProgressive(ImageProgressiveConfig(**settings), base).train()  # type: ignore[arg-type]


def batch(seed: int = 0) -> Batch:
    frames = torch.randn(6, 3, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Batch(frames, torch.zeros(6, 0, dtype=torch.int64), torch.arange(6), torch.zeros(6, dtype=torch.int64))


def step(method: ImageProgressive, seed: int = 0) -> None:
    weights = [weight for group in method.param_groups() for weight in group["params"]]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    sum(method.losses(batch(seed)).values()).backward()  # type: ignore[union-attr]
    optimizer.step()


def test_features_of_a_former_column_never_change():
    method, images = made(), batch(9).frames[:, :1]
    for index in range(3):
        method.begin_task(make_task(index))
        step(method.train(), index)
        if index:
            now = method.eval().encode_video_for_task(images, index - 1)
            assert torch.equal(now, before)  # noqa: F821
            assert not torch.allclose(method.encode_video_for_task(images, index), now)
        before = method.eval().encode_video_for_task(images, index)
        assert torch.equal(method.encode_video(images), before)
    grown = [sum(weight.numel() for weight in column.parameters()) for column in method.columns.columns]
    # Of each former column more, an adaptor reads C_i channels with C_i weights and a factor each
    assert grown[2] - grown[1] == sum(c * c + c for c in (4, 8, 16, 32))
    trained = {id(weight) for group in method.param_groups() for weight in group["params"]}
    *former, last = method.columns.columns
    assert not any(id(weight) in trained for column in former for weight in column.parameters())
    heads = [*method.base.projector.parameters(), *method.base.predictor.parameters()]
    assert trained == {id(weight) for weight in [*last.parameters(), *heads]}


def test_first_pnn_column_is_plain_and_later_ones_have_laterals():
    alone = Siamese(SiameseConfig(width=7, bottleneck=5), ResNet18(4))
    method = made()
    alone.load_state_dict({n.replace("columns.0.net.", ""): v for n, v in method.base.state_dict().items()})
    method.begin_task(make_task(0))
    assert torch.equal(method.losses(batch())["views"], alone.train().losses(batch())["views"])
    method.begin_task(make_task(1))
    method.train().losses(batch())["views"].backward()
    former, last = method.columns.columns
    assert all(weight.grad is None for weight in former.parameters())
    assert all(weight.grad is not None and weight.grad.any() for weight in last.adaptors.parameters())
    with torch.no_grad():
        found = method.losses(batch())["views"].item()
        for weight in former.parameters():
            weight.mul_(1.5)
        assert method.losses(batch())["views"].item() != found
