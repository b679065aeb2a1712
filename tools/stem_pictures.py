"""Images and clips that teach a tiny CLIP shapes and positions, with captions that require distinguishing them.

Shapes: N images, G groups, S side of an image in pixels, T frames, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from ctvr.orchestrator.synthetic import worlds
from ctvr.orchestrator.synthetic.drawing import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    Pixels,
    Sprite,
    background,
    draw,
    shade,
)
from ctvr.orchestrator.synthetic.scenes import pick, with_articles
from tools.train_tiny_clip import IMAGE_SIZE

GROUP = 8  # images of a group
FRAMES = 4  # of a clip
PLACES_IN_PICTURE = [
    f"at the {row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right")
]
CENTERS = (0.22, 0.5, 0.78)  # of rows and columns
# class of words -> its values
CLASSES: dict[str, list[str]] = {
    "shape": list(SHAPES),
    "colour": list(COLOURS),
    "size": list(SIZES),
    "position": PLACES_IN_PICTURE,
    "place": [each.words for each in BACKGROUNDS.values()],
}


@dataclass(frozen=True)
class Thing:
    """One object on a background; its fields are the indices of its values in CLASSES, the classes of words."""

    shape: int
    colour: int
    size: int
    position: int
    place: int

    @staticmethod
    def draw(rng: Generator, **fixed: int) -> Thing:
        return Thing(**{name: int(rng.integers(len(values))) for name, values in CLASSES.items()} | fixed)

    def words(self, named: set[str]) -> str:
        """Describe the thing by its words of the classes in `named`, in a fixed order."""
        said = {name: CLASSES[name][getattr(self, name)] if name in named else "" for name in CLASSES}
        shape, place = said["shape"] or "thing", f"on {said['place']}" if said["place"] else ""
        return " ".join(f"a {said['size']} {said['colour']} {shape} {said['position']} {place}".split())

    def sprite(self, rng: Generator, radius: float) -> Sprite:
        row, column = divmod(self.position, 3)
        x, y = (CENTERS[i] + rng.uniform(-0.07, 0.07) for i in (column, row))
        size = radius * list(SIZES.values())[self.size] * rng.uniform(0.9, 1.1)
        return Sprite(
            CLASSES["shape"][self.shape], x, y, size, shade(rng, CLASSES["colour"][self.colour]), rng.normal(0, 0.12)
        )


def paint(thing: Thing, rng: Generator, radius: float = 0.2, plain: float = 0.0, other: Thing | None = None) -> Pixels:
    """Draw an image (S, S, 3) of a thing.

    Args:
        plain: probability of a gray background.
        other: a second thing, drawn below the first.
    """
    if rng.random() < plain:
        picture = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), rng.integers(60, 200), np.uint8)
    else:
        picture = background(list(BACKGROUNDS)[thing.place], rng, IMAGE_SIZE)
    for each in (other, thing):
        if each is not None:
            draw(picture, each.sprite(rng, radius))
    return picture


@dataclass
class Pictures:
    """Images of single objects for the first stage of training, the easiest first."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: dict[str, Tensor]  # class of words -> (N,)

    @staticmethod
    def make(count: int, rng: Generator, easiest: float = 0.0) -> Pictures:
        things = [Thing.draw(rng) for _ in range(count)]
        shares = [1 - easiest * (1 - number / count) for number in range(count)]  # difficulty in [0, 1]
        pictures = [paint(t, rng, 0.3 - 0.1 * d, 1 - d) for t, d in zip(things, shares)]
        labels = {name: torch.tensor([getattr(t, name) for t in things]) for name in CLASSES}
        return Pictures(as_images(pictures), labels)


@dataclass
class Groups:
    """Images and captions for the second stage of training; captions of a group differ in one class of words."""

    images: Tensor  # (G, 8, 3, S, S) uint8
    tokens: Tensor  # (G, 8, L)


@dataclass
class Clips:
    """Clips for the second stage of training: three motions of one thing, with captions for both time directions."""

    frames: Tensor  # (G, 3, T, 3, S, S) uint8, forward
    tokens: Tensor  # (G, 6, L), forward and backward of each motion


def as_images(pictures: Sequence[Pixels]) -> Tensor:
    """Stack images as (N, 3, S, S) uint8."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def make_group(rng: Generator, name: str) -> tuple[list[Pixels], list[str]]:
    """Draw eight images whose captions differ only in words of the class `name`; for "size", four shapes, two sizes."""
    base = Thing.draw(rng)
    fixed = vars(base)
    if name == "size":
        shapes = rng.permutation(len(CLASSES["shape"]))[: GROUP // 2]
        things = [Thing(**fixed | {"size": size, "shape": int(shape)}) for size in range(2) for shape in shapes]
    else:
        values = rng.permutation(len(CLASSES[name]))[:GROUP]
        things = [Thing(**fixed | {name: int(value)}) for value in values]
    named = {name, *(each for each in CLASSES if rng.random() < 0.6), *(["shape"] if name == "size" else [])}
    other, nearby = None, ""
    if rng.random() < 0.5:
        across = [(base.position + step) % 9 for step in (3, 4, 5, 6)]
        other = Thing.draw(rng, size=0, position=pick(rng, across))
        nearby = f" near {other.words({'shape', 'colour'})}" if rng.random() < 0.6 else ""
    pictures = [paint(t, rng, pick(rng, (0.2, 0.25)), 0.15, other) for t in things]
    place = f" on {CLASSES['place'][base.place]}" if nearby and "place" in named and name != "place" else ""
    if nearby and name != "place":
        named.discard("place")
    return pictures, [with_articles(f"{t.words(named)}{nearby}{place}") for t in things]


def make_clips(rng: Generator) -> tuple[list[list[Pixels]], list[str]]:
    """Draw clips of a thing that moves left, up and closer, and six captions: of each clip and of its reversal."""
    thing = Thing.draw(rng)
    named = {each for each in CLASSES if rng.random() < 0.5 and each not in ("size", "position", "place")} | {"shape"}
    clips, captions = [], []
    for axis, directions in enumerate(worlds.MOVES):
        scenery = background(list(BACKGROUNDS)[thing.place], rng, IMAGE_SIZE)
        sprite, still = thing.sprite(rng, 0.2), rng.uniform(0.25, 0.75, 2)
        frames = []
        for u in np.linspace(0, 1, FRAMES):
            sprite.x, sprite.y = (0.87 - 0.74 * u if axis == i else still[i] for i in range(2))
            radius = 0.2 * (0.45 + u) if axis == 2 else 0.18
            frames.append(scenery.copy())
            draw(frames[-1], Sprite(sprite.shape, sprite.x, sprite.y, radius, sprite.colour, sprite.angle))
        clips.append(frames)
        verb = pick(rng, ("moves ", "goes ", "", "is moving "))
        captions += [with_articles(f"{thing.words(named)} {verb}{direction}") for direction in directions]
    return clips, captions


def make_groups(tokenizer: SimpleTokenizer, count: int, rng: Generator) -> Groups:
    names = list(CLASSES)
    made = [make_group(rng, names[number % len(names)]) for number in range(count)]
    images = as_images([picture for pictures, _ in made for picture in pictures])
    return Groups(
        images.unflatten(0, (-1, GROUP)),
        tokenizer([c for _, captions in made for c in captions]).unflatten(0, (-1, GROUP)),
    )


def make_clip_pool(tokenizer: SimpleTokenizer, count: int, rng: Generator) -> Clips:
    made = [make_clips(rng) for _ in range(count)]
    images = as_images([frame for clips, _ in made for clip in clips for frame in clip])
    return Clips(
        images.unflatten(0, (-1, 3, FRAMES)),
        tokenizer([c for _, captions in made for c in captions]).unflatten(0, (-1, 6)),
    )
