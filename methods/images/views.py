"""Random augmentation of images: the two views of siamese training, and stored images of a replay buffer.

The operations are those of divyam3897/UCL@cfaa81d, with separate random numbers for each image. The released code cuts
a crop out and resizes it. Here a crop is interpolated from the whole image, so values at its edge also depend on pixels
outside of the crop.

Shapes: B images, S = H = W.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# (mean, standard deviation) per channel of the data sets of the released code
CIFAR = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615))
TINY_IMAGENET = ((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821))
NORMS = {"cifar": CIFAR, "tiny-imagenet": TINY_IMAGENET}
TRIES = 10  # number of random crops; if none of them fits into the image, the whole image is used
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in gray


def normalise(x: Tensor, norm: tuple[tuple[float, ...], tuple[float, ...]] = CIFAR) -> Tensor:
    """Normalize images (..., 3, S, S) with values in [0, 1] by the mean and standard deviation of a data set."""
    mean, std = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in norm)
    return (x - mean) / std


def view(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return a random view (B, 3, S, S) of each image by crop, flip, color jitter, grayscale and blur.

    The probability is 0.5 for flip, 0.8 for jitter, 0.2 for gray and 0.5 for blur, which is applied only if S > 32.

    Args:
        x: (B, 3, S, S) images with values in [0, 1].
        generator: random generator on the device of x; if None, torch's default.
    """
    x = flip(crop(x, 0.2, "bilinear", generator), generator)
    draw = torch.rand(len(x), 4, generator=generator, device=x.device)
    x = torch.where(_rows(draw[:, 0] < 0.8), jitter(x, generator), x)
    x = torch.where(_rows(draw[:, 1] < 0.2), _gray(x).expand_as(x), x)
    if x.shape[-1] > 32:
        x = torch.where(_rows(draw[:, 2] < 0.5), blur(x, 0.1 + 1.9 * draw[:, 3]), x)
    return x


def reaugment(plain: Tensor, norm: str = "cifar") -> Tensor:
    """Crop and flip stored plain images (R, 3, S, S) with torch's default generator, and normalize by `NORMS[norm]`."""
    return normalise(flip(crop(plain, 0.08, "bicubic")), NORMS[norm])


def crop(x: Tensor, least: float, how: str, generator: torch.Generator | None = None) -> Tensor:
    """Return a random crop of each image (B, 3, S, S), resized to S x S.

    The area of a crop is `least` to 1 of the image, and its aspect ratio 3:4 to 4:3. `how` is the interpolation mode.
    """
    draw = torch.rand(len(x), 2 + 2 * TRIES, generator=generator, device=x.device)
    area = least + (1 - least) * draw[:, 2 : 2 + TRIES]
    ratio = (math.log(4 / 3) * (2 * draw[:, 2 + TRIES :] - 1)).exp()
    tried = torch.stack([area * ratio, area / ratio], dim=-1).rsqrt().reciprocal()  # (B, TRIES, 2)
    fits = (tried <= 1).all(dim=-1)
    first = tried[torch.arange(len(x), device=x.device), fits.int().argmax(dim=1)]
    sides = torch.where(fits.any(dim=1)[:, None], first, 1.0)  # (B, 2) width and height
    theta = x.new_zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = sides[:, 0], sides[:, 1]
    theta[:, :, 2] = (1 - sides) * (2 * draw[:, :2] - 1)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode=how, padding_mode="border", align_corners=False).clamp(0, 1)


def flip(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image horizontally with probability 0.5."""
    mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(_rows(mirrored), x.flip(-1), x)


def jitter(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Change brightness, contrast, saturation (factors 0.6 to 1.4) and hue (-0.1 to 0.1 turns), in random order."""
    draw = torch.rand(len(x), 8, generator=generator, device=x.device)
    by, order = 0.6 + 0.8 * draw[:, :3], draw[:, 4:].argsort(dim=1)
    turn = 0.2 * draw[:, 3] - 0.1
    for place in range(4):
        done = (
            x * _rows(by[:, 0]),
            _between(_gray(x).mean(dim=(1, 2, 3), keepdim=True), x, by[:, 1]),
            _between(_gray(x), x, by[:, 2]),
            turned(x, turn),
        )
        for which, changed in enumerate(done):
            x = torch.where(_rows(order[:, place] == which), changed.clamp(0, 1), x)
    return x


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue (HSV) of images (B, 3, S, S) with values in [0, 1] by `turn` (B,), as shares of a full turn."""
    high, low = x.amax(dim=1), x.amin(dim=1)
    spread = high - low
    safe = torch.where(spread > 0, spread, 1.0)
    red, green, blue = ((high[:, None] - x) / safe[:, None]).unbind(dim=1)
    hue = torch.where(x[:, 0] == high, blue - green, torch.where(x[:, 1] == high, 2 + red - blue, 4 + green - red))
    hue = (hue / 6 + turn.view(-1, 1, 1)) % 1 * 6
    shares = torch.stack([(hue + shift) % 6 for shift in (5, 3, 1)], dim=1)  # red, green, blue
    return high[:, None] - spread[:, None] * torch.minimum(shares, 4 - shares).clamp(0, 1)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image by a Gaussian of standard deviation `sigma` (B,), in pixels, with kernel size 2 (S // 20) + 1."""
    reach = x.shape[-1] // 20
    away = torch.arange(-reach, reach + 1, device=x.device)
    weights = (-0.5 * (away / sigma[:, None]).square()).exp()
    kernel = (weights / weights.sum(dim=1, keepdim=True)).repeat_interleave(3, dim=0)  # (3B, K)
    flat = F.pad(x.flatten(0, 1)[None], (reach,) * 4, mode="reflect")  # (1, 3B, ., .)
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=len(kernel))
    return F.conv2d(flat, kernel[:, None, None, :], groups=len(kernel))[0].view_as(x)


def _gray(x: Tensor) -> Tensor:
    weights = torch.tensor(LUMA, device=x.device).view(1, 3, 1, 1)
    return (x * weights).sum(dim=1, keepdim=True)


def _between(other: Tensor, x: Tensor, by: Tensor) -> Tensor:
    return other + (x - other) * _rows(by)


def _rows(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
