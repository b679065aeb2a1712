"""LUMP and DER over images, as in divyam3897/UCL@cfaa81d (models/mixup.py, models/der.py).

LUMP: Madaan et al., arXiv:2110.06976, section 4. DER: Buzzega et al., arXiv:2004.07211, eq. 5, with features of the
backbone instead of logits. methods/lump.py and methods/der.py apply these strategies to text-video retrievers, and
write the buffer when a task ends. Here the buffer is written after every step, and read from the second step of the
first task on.

a(m) is a stored plain image m with a new augmentation. In a step, numpy draws random numbers for rows, lambda and
slots, in this order.

Shapes: B images, H = W image size, R stored images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ctvr.methods.base import Batch
from ctvr.methods.images import views
from ctvr.methods.images.siamese import FIRST, PLAIN, SECOND, Siamese, SiameseStrategy
from ctvr.methods.settings import SettingError, require, setting

Again = Callable[[Tensor], Tensor]  # plain images (R, 3, H, W) in [0, 1] -> augmented and normalized


@dataclass(frozen=True, kw_only=True)
class ImageReplayConfig:
    """Settings of replay; the default values are from the configurations of the released code."""

    UNPUBLISHED = ("base.lr",)

    base: str = setting("image_finetune", doc="name of the wrapped siamese network, whose settings are base.*")
    buffer_size: int = setting(256, doc="maximum number of images in the replay buffer", part="loss")
    rows: int = setting(256, doc="number of images sampled from the replay buffer in a step")
    alpha: float = setting(
        0.4,
        doc="in LUMP, parameter of the distribution Beta(alpha, alpha) of mixing factors; in DER, weight of the "
        "distance to the stored outputs",
        unpublished=True,
        part="loss",
    )
    norm: Literal["cifar", "tiny-imagenet"] = setting(
        "cifar", doc="data set whose mean and standard deviation normalize stored images"
    )

    def __post_init__(self) -> None:
        require(self, "> 0", "alpha", hint="The released code uses 0.4.")
        require(self, ">= 1", "rows", hint="The released code uses 256.")


class ImageReplay(SiameseStrategy):
    """Base class of strategies with a replay buffer that is written after every step.

    Args:
        config: settings of the strategy.
        base: siamese method that is trained.
        again: augmentation of stored images; if None, `views.reaugment`.
        seed: seed of the random numbers of the buffer; if None, a random seed from torch's generator.
    """

    Config = ImageReplayConfig
    config: ImageReplayConfig

    @classmethod
    def keeps_videos(cls, config: ImageReplayConfig, of_base: bool = False) -> bool:
        return True  # it stores images

    def __init__(
        self, config: ImageReplayConfig, base: Siamese, again: Again | None = None, seed: int | None = None
    ) -> None:
        super().__init__(config, base)
        self.again = again or partial(views.reaugment, norm=config.norm)
        self.memory = ImageBuffer(config.buffer_size, int(torch.randint(2**31, ())) if seed is None else seed)
        self._new: tuple[Tensor, Tensor] | None = None  # written after the optimizer step

    def after_step(self) -> None:
        if self._new is not None:
            self.memory.write(*self._new)
            self._new = None


class ImageLUMP(ImageReplay):
    """LUMP: trains on mixtures of current and stored images only.

    x1 and x2 are the views of a current image. The mixed views are x1~ = lambda x1 + (1 - lambda) a(m) and
    x2~ = lambda x2 + (1 - lambda) m'. m' is the second view, which was stored with m. A batch has one
    lambda ~ Beta(alpha, alpha).
    """

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        first, second = self.mixed(batch)
        self._new = batch.frames[:, PLAIN], batch.frames[:, SECOND]
        return {"views": self.base.alike(first, second)}

    def mixed(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return both views (B, 3, H, W) of a batch, mixed with stored images; unmixed if the buffer is empty.

        Raises:
            ValueError: if fewer stored images are sampled than the batch has images.
        """
        first, second = batch.frames[:, FIRST], batch.frames[:, SECOND]
        if not len(self.memory):
            return first, second
        rows = self.memory.sample(self.config.rows)[: len(first)]
        if len(rows) < len(first):
            raise SettingError(
                f"<buffer_size>: {len(rows)} stored images are drawn for a batch of {len(first)}, which is too few",
                f"Use a <buffer_size> and rows of at least {len(first)} images, or smaller batches.",
            )
        share = float(self.memory.random.beta(self.config.alpha, self.config.alpha))
        again = self.again(self.memory.images[rows])
        return share * first + (1 - share) * again, share * second + (1 - share) * self.memory.kept[rows]


class ImageDER(ImageReplay):
    """DER: keeps the features of stored images close to their features when they were stored.

    The loss is L(x1, x2) + alpha mean (f(a(m)) - o_m)^2, where f is the backbone, o_m the stored feature of image m,
    and the mean is over stored images and feature dimensions. o = f(x1) is computed by an additional pass in training
    mode before the optimizer step, and stored after it.
    """

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        terms = self.base.losses(batch)
        with torch.no_grad():
            answers = self.base.backbone(batch.frames[:, FIRST])
        if len(self.memory):
            rows = self.memory.sample(self.config.rows)
            features = self.base.backbone(self.again(self.memory.images[rows]))
            terms["distillation"] = self.config.alpha * (features - self.memory.kept[rows]).square().mean()
        self._new = batch.frames[:, PLAIN], answers
        return terms


# Reservoir of images that is written in every step, as in divyam3897/UCL@cfaa81d (utils/buffer.py).
#
# An image is offered each time that it is trained on. So the buffer may contain an image several times, and it also
# contains images of the current task. Random numbers are drawn by numpy, one by one in the order of the released code.
#
# Shapes: B images offered, M slots, R stored images.


class ImageBuffer(nn.Module):
    """Buffer of at most `capacity` images with one additional tensor for each; the state dict contains everything.

    Args:
        capacity: number M of slots.
        seed: seed of `random`.

    Attributes:
        images: (R, 3, H, W), R <= M.
        kept: (R, ...) tensors stored with the images.
        random: random state for slots and rows; the strategy that owns the buffer also uses it.
    """

    images: Tensor
    kept: Tensor
    seen: Tensor  # () number of images offered so far

    def __init__(self, capacity: int, seed: int = 0) -> None:
        super().__init__()
        if capacity < 1:
            raise SettingError(
                f"<buffer_size> counts images and must be >= 1, got {capacity}", "The released code uses 256."
            )
        self.capacity, self.random = capacity, np.random.RandomState(seed)
        self.register_buffer("images", torch.empty(0))
        self.register_buffer("kept", torch.empty(0))
        self.register_buffer("seen", torch.tensor(0))

    def __len__(self) -> int:
        return len(self.images)

    def sample(self, count: int) -> Tensor:
        """Sample indices (min(count, R),) of stored images without replacement, on the CPU."""
        size = min(count, len(self))
        return torch.from_numpy(self.random.choice(len(self), size=size, replace=False)) if size else torch.arange(0)

    @torch.no_grad()
    def write(self, images: Tensor, kept: Tensor) -> None:
        """Offer images (B, 3, H, W) with tensors `kept` (B, ...), which may replace stored ones.

        After N > M offers in total, each of the N images is in the buffer with probability M / N.
        """
        if not len(self):
            self.images, self.kept = images[:0].clone(), kept[:0].clone()
        places: dict[int, int] = {}  # slot -> row; the last row offered for a slot is stored
        seen = int(self.seen)
        for row in range(len(images)):
            place = seen if seen < self.capacity else int(self.random.randint(0, seen + 1))
            if place < self.capacity:
                places[place] = row
            seen += 1
        self.seen.fill_(seen)
        new = [row for place, row in sorted(places.items()) if place >= len(self)]
        old = {place: row for place, row in places.items() if place < len(self)}
        if old:
            where, rows = list(old), list(old.values())
            self.images[where], self.kept[where] = images[rows], kept[rows]
        if new:
            self.images, self.kept = torch.cat([self.images, images[new]]), torch.cat([self.kept, kept[new]])

    def get_extra_state(self) -> Tensor:
        """Return the state of `random`: the 624 words of the Mersenne twister and its position."""
        state = self.random.get_state(legacy=False)["state"]
        return torch.tensor([*state["key"].tolist(), state["pos"]])

    def set_extra_state(self, state: Tensor) -> None:
        *words, position = state.tolist()
        self.random.set_state(("MT19937", np.array(words, dtype=np.uint32), position, 0, 0.0))
