"""ResNet-18 for small images (He et al., arXiv:1512.03385), as in divyam3897/UCL@cfaa81d for 32 and 64 pixels.

The stem is a 3x3 convolution of stride 1 without pooling, and the classification layer is omitted. Parameters have the
names of the released code, so that its checkpoints can be loaded.

Shapes: B images, H = W image size, C channels.
"""

from __future__ import annotations

from torch import Tensor, nn

# Name of a backbone -> number of channels of its first stage; we added 8, for few images
RESNETS = {"resnet18": 64, "resnet18-8": 8}


class Block(nn.Module):
    """Residual block of two 3x3 convolutions: (B, C, H, W) -> (B, C', H / stride, W / stride)."""

    def __init__(self, before: int, behind: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, behind, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(behind)
        self.conv2 = nn.Conv2d(behind, behind, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(behind)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != behind:
            around = nn.Conv2d(before, behind, 1, stride, bias=False)
            self.downsample = nn.Sequential(around, nn.BatchNorm2d(behind))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        out: Tensor = (self.bn2(self.conv2(y)) + self.downsample(x)).relu()
        return out


def make_stage(before: int, behind: int, stride: int) -> nn.Sequential:
    """Build a stage of two blocks, the first with `stride`: (B, C, H, W) -> (B, C', H / stride, W / stride)."""
    return nn.Sequential(Block(before, behind, stride), Block(behind, behind, 1))


class ResNet18(nn.Module):
    """ResNet-18 that returns the spatial mean of the last block: (B, 3, H, W) -> (B, 8 `channels`); H >= 8.

    Args:
        channels: number of channels of the first stage; each of the other three stages doubles it.
    """

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.channels, self.width = channels, 8 * channels  # channels of the first stage; width of the features
        self.conv1, self.bn1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        stages, before = [], channels
        for stage in range(4):
            behind = channels << stage
            stages.append(make_stage(before, behind, 1 if stage == 0 else 2))
            before = behind
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    @property
    def stages(self) -> list[nn.Module]:
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    def stem(self, x: Tensor) -> Tensor:
        """Apply the first convolution, batch normalization and ReLU: (B, 3, H, W) -> (B, channels, H, W)."""
        found: Tensor = self.bn1(self.conv1(x)).relu()
        return found

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean(dim=(2, 3))
