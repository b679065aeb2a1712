"""Augmentation of whole batches on the device, with one random draw for all frames of a video.

`crop_and_flip` uses the areas, aspect ratios and mirroring of the released codes of CTVR and StructAlign, but another
crop region. The released codes crop from the whole frame of any shape. Here the store contains the central square of a
frame, so that a video is decoded once, and the crop is from that square. The outer 44 % of a 16:9 frame are not used.

Shapes: B videos, T frames, H = W image size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.layers.transfer import to_device

TRIES = 10  # attempts to draw a crop that fits into the frame; after that the whole frame is used


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Apply a random resized crop (area 0.5 to 1, aspect ratio 3/4 to 4/3), and mirror with p = 0.5.

    Takes and returns (B, T, 3, H, W) in [0, 1]. All frames of a video get the same crop.
    """
    batch, _, _, height, width = x.shape
    draw = torch.rand(batch, 3 + 2 * TRIES, generator=generator, device=x.device)
    area = 0.5 + 0.5 * draw[:, 3 : 3 + TRIES]
    ratio = (math.log(4 / 3) * (2 * draw[:, 3 + TRIES :] - 1)).exp()
    tried = (
        torch.stack([area * ratio, area / ratio], dim=-1).rsqrt().reciprocal()
    )  # (B, TRIES, 2), relative to the frame
    fits = (tried <= 1).all(dim=-1)
    first = tried[torch.arange(batch, device=x.device), fits.int().argmax(dim=1)]
    sides = torch.where(fits.any(dim=1)[:, None], first, 1.0)  # (B, 2) width and height
    theta = x.new_zeros(batch, 2, 3)
    theta[:, 0, 0] = sides[:, 0] * torch.where(draw[:, 0] < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = sides[:, 1]
    theta[:, :, 2] = (1 - sides) * (2 * draw[:, 1:3] - 1)  # center in [-1, 1] coordinates
    grid = F.affine_grid(theta.repeat_interleave(x.shape[1], dim=0), [batch * x.shape[1], 3, height, width], False)
    out = F.grid_sample(x.flatten(0, 1), grid, padding_mode="border", align_corners=False)
    return out.view_as(x).clamp(0, 1)


def gray_and_jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """Apply grayscale with p = 0.2, and jitter of brightness, contrast and saturation by +-40 %, sampled per video.

    Takes and returns (B, T, 3, H, W) in [0, 1]. BMU-MoCo (section 4.1) names both augmentations, but not their
    strengths.
    """
    draw = torch.rand(len(x), 4, generator=generator, device=x.device)
    brightness, contrast, saturation = (0.6 + 0.8 * draw[:, i].view(-1, 1, 1, 1, 1) for i in range(3))
    x = x * brightness
    x = (x - x.mean(dim=(1, 2, 3, 4), keepdim=True)) * contrast + x.mean(dim=(1, 2, 3, 4), keepdim=True)
    weights = to_device(torch.tensor([0.299, 0.587, 0.114]), x.device).view(1, 1, 3, 1, 1)
    gray = (x * weights).sum(dim=2, keepdim=True)
    x = gray + (x - gray) * saturation
    is_gray = (draw[:, 3] < 0.2).view(-1, 1, 1, 1, 1)
    return torch.where(is_gray, gray.expand_as(x), x).clamp(0, 1)
