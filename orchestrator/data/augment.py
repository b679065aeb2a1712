"""Augmentation of whole batches on the device, one draw for all frames of a video.

Shapes: B videos, T frames, H = W image size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Random resized crop (area 0.5 to 1, square) and mirroring with p = 0.5; one draw for all frames of a video.

    Takes and returns (B, T, 3, H, W) in [0, 1]. The released CTVR code trains with these.
    """
    batch, _, _, height, width = x.shape
    draw = torch.rand(batch, 4, generator=generator, device=x.device)
    side = (0.5 + 0.5 * draw[:, 0]).sqrt()  # of the crop, relative
    flip = torch.where(draw[:, 3] < 0.5, -1.0, 1.0)
    shift = (1 - side)[:, None] * (2 * draw[:, 1:3] - 1)  # centre in [-1, 1] coordinates
    theta = x.new_zeros(batch, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = side * flip, side
    theta[:, :, 2] = shift
    out = []
    for video, matrix in zip(x, theta):
        grid = torch.nn.functional.affine_grid(matrix.expand(len(video), 2, 3), list(video.shape), align_corners=False)
        out.append(torch.nn.functional.grid_sample(video, grid, padding_mode="border", align_corners=False))
    return torch.stack(out).reshape(batch, -1, 3, height, width).clamp(0, 1)


def gray_and_jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """Gray scale with p = 0.2 and brightness, contrast, saturation jitter of +-40 %, one draw per video.

    Takes and returns (B, T, 3, H, W) in [0, 1]. BMU-MoCo (section 4.1) names the two, not their strengths.
    """
    draw = torch.rand(len(x), 4, generator=generator, device=x.device)
    brightness, contrast, saturation = (0.6 + 0.8 * draw[:, i].view(-1, 1, 1, 1, 1) for i in range(3))
    x = x * brightness
    x = (x - x.mean(dim=(1, 2, 3, 4), keepdim=True)) * contrast + x.mean(dim=(1, 2, 3, 4), keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(1, 1, 3, 1, 1)
    gray = (x * weights).sum(dim=2, keepdim=True)
    x = gray + (x - gray) * saturation
    is_gray = (draw[:, 3] < 0.2).view(-1, 1, 1, 1, 1)
    return torch.where(is_gray, gray.expand_as(x), x).clamp(0, 1)
