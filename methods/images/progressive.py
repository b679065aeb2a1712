"""Progressive networks over images, the row PNN of BMU-MoCo's Table 4: a new network for each task.

Rusu et al., arXiv:1606.04671, eq. 2 and section 2.1. The network of a task is called a column. It reads the features of
earlier columns, and is frozen after its task. So it does not forget, but evaluation needs the task of an image to
select the column. The connections are those of the ResNet-18 in aimagelab/mammoth@e75a491. The repository whose
protocol the table uses (divyam3897/UCL@cfaa81d) has code for the method, which cannot be trained. We replace
classification by SimSiam or Barlow Twins, and build new heads for each column.

Two details follow the paper and not mammoth: an earlier column keeps its inputs from the columns before it, and its
batch normalization keeps its running statistics. The factor alpha is learned for each channel, because the image size
is not known here. In mammoth it is learned for each channel and pixel, in the paper for each column.

Shapes: B images, H = W image size, C features; a stage i = 1..4 of a column has C_i channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctvr.methods.base import ParamGroup, Task
from ctvr.methods.images.resnet import ResNet18, make_stage
from ctvr.methods.images.siamese import Siamese, SiameseStrategy
from ctvr.methods.settings import require, setting


@dataclass(frozen=True, kw_only=True)
class ImageProgressiveConfig:
    """Settings of progressive networks; `base.*` are the settings of the siamese network of each column."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("image_finetune", doc="name of the wrapped siamese network, whose settings are base.*")
    alpha: float = setting(0.1, doc="upper bound of the random initial factors of the outputs of earlier columns")

    def __post_init__(self) -> None:
        require(self, "> 0", "alpha", hint="Use 0.1; with 0 columns could not read earlier columns.")


class Adaptor(nn.Module):
    """Adapter relu(V (alpha h) + b) of eq. 2 on K concatenated columns: (B, K C, H, W) -> (B, C, H, W)."""

    def __init__(self, columns: int, channels: int, most: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(most * torch.rand(columns * channels, 1, 1))
        self.mix = nn.Conv2d(columns * channels, channels, 1)

    def forward(self, h: Tensor) -> Tensor:
        return self.mix(h * self.alpha).relu()


class Column(nn.Module):
    """Network of one task (column), with connections from earlier columns.

    Args:
        net: the ResNet-18 of the column.
        columns: number of earlier columns.
        alpha: see `ImageProgressiveConfig`.
    """

    def __init__(self, net: ResNet18, columns: int, alpha: float) -> None:
        super().__init__()
        self.net = net
        widths = [net.channels << stage for stage in range(4)]
        self.adaptors = nn.ModuleList(Adaptor(columns, width, alpha) for width in widths if columns)
        self.laterals = nn.ModuleList(make_stage(width, 2 * width, 2) for width in widths[:3] if columns)

    def forward(self, images: Tensor, former: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Compute the outputs of the stages, h_i = stage_i(h_{i-1}) + lateral_i(adaptor_{i-1}(h'_{i-1})).

        Args:
            images: (B, 3, H, W).
            former: outputs h' of all stages, for each earlier column.

        Returns:
            h_1 to h_4 (B, C_i, H_i, W_i).
        """
        h, found = self.net.stem(images), list[Tensor]()
        for place, stage in enumerate(self.net.stages):
            h = stage(h)
            if former and place:
                beside = torch.cat([outputs[place - 1] for outputs in former], dim=1)
                h = h + self.laterals[place - 1](self.adaptors[place - 1](beside))
            found.append(h)
        return found

    def aside(self, former: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return input (B, C) of the heads from earlier columns: spatial means of their last stages, adapted."""
        last = torch.cat([outputs[-1].mean(dim=(2, 3), keepdim=True) for outputs in former], dim=1)
        found: Tensor = self.adaptors[-1](last)
        return found.flatten(1)


class Columns(nn.Module):
    """Columns of all tasks so far, of which only the last is trained.

    `forward` computes the input of the heads of the last column: (B, 3, H, W) -> (B, C), or (B, 2C) after task 0.
    """

    def __init__(self, first: ResNet18) -> None:
        super().__init__()
        self.columns = nn.ModuleList([Column(first, 0, 0.0)])
        self.channels = first.channels

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        """Width of the output of `forward`: C, or 2C if there are earlier columns."""
        return 8 * self.channels * min(2, len(self))

    def add(self, alpha: float) -> None:
        """Freeze the existing columns and add a new one."""
        self.requires_grad_(False)
        self.columns.append(Column(ResNet18(self.channels), len(self), alpha))
        self.train(self.training)

    def train(self, mode: bool = True) -> Columns:
        """Set the mode of the last column; earlier columns stay in evaluation mode, so their statistics are fixed."""
        super().train(mode)
        for column in self.columns[:-1]:
            column.eval()
        return self

    def outputs(self, images: Tensor, count: int) -> list[list[Tensor]]:
        """Compute the outputs of the four stages of each of the first `count` columns."""
        found: list[list[Tensor]] = []
        for column in self.columns[:count]:
            with torch.set_grad_enabled(torch.is_grad_enabled() and column is self.columns[-1]):
                found.append(column(images, found))
        return found

    def features(self, images: Tensor, task: int) -> Tensor:
        """Compute the features of the column of `task`: (B, 3, H, W) -> (B, C)."""
        return self.outputs(images, task + 1)[-1][-1].mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        *former, own = self.outputs(images, len(self))
        features = own[-1].mean(dim=(2, 3))
        return torch.cat([features, self.columns[-1].aside(former)], dim=1) if former else features  # type: ignore


class ImageProgressive(SiameseStrategy):
    """Strategy that trains a separate network for each task, which reads features of earlier tasks' networks."""

    Config = ImageProgressiveConfig
    config: ImageProgressiveConfig

    def __init__(self, config: ImageProgressiveConfig, base: Siamese) -> None:
        super().__init__(config, base)
        base.backbone = Columns(base.backbone)  # type: ignore[arg-type]

    @property
    def columns(self) -> Columns:
        assert isinstance(self.base.backbone, Columns)
        return self.base.backbone

    def begin_task(self, task: Task) -> None:
        if task.index:
            self.columns.add(self.config.alpha)
            self.base = Siamese(self.base.config, self.columns)
        super().begin_task(task)

    def param_groups(self) -> list[ParamGroup]:
        """Return the weights of the last column and its heads; weight decay applies to all of them."""
        groups = self.base.param_groups()
        for group in groups:
            group["params"] = [weight for weight in group["params"] if weight.requires_grad]
        return groups

    def encode_video(self, frames: Tensor) -> Tensor:
        """Encode images with the last column: (B, 1, 3, H, W) -> (B, C)."""
        return self.encode_video_for_task(frames, len(self.columns) - 1)

    def encode_video_for_task(self, frames: Tensor, task: int) -> Tensor:
        """Encode images with the column of their task: (B, 1, 3, H, W) -> (B, C)."""
        return self.columns.features(frames[:, 0], task)
