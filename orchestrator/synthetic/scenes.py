"""The categories and the grammar of the embedded stream: the event of a clip and its captions.

A category is a place, a kind of motion, a camera and a vocabulary. Two nouns are unique to it; five more are shared by
all categories but name another shape in each one, so that a later task contradicts an earlier task unless the model
takes the place into account.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.random import Generator

from ctvr.orchestrator.synthetic.drawing import BACKGROUNDS, COLOURS, SHAPES, SIZES, Camera, Pixels
from ctvr.orchestrator.synthetic.motion import Thing, render_clip

T = TypeVar("T")

SHARED_NOUNS = ("player", "piece", "toy", "gem", "runner")  # another shape in every category
NOUN_RATE = 0.7  # probability that a caption uses the noun instead of the shape
PLACE_RATE = 0.75  # probability that a caption names the place
CAMERA_SHIFT = 0.6  # 0: one camera for all categories; 1: zero-shot retrieval fails
FLAT_SPIN = ("circle", "ring")  # shapes whose rotation is invisible


@dataclass(frozen=True)
class Category:
    """A category. In its phrases A is the main object, B the other object; A turns into color C and shape D."""

    name: str
    place: str
    nouns: dict[str, str]  # noun -> shape, used only by this category
    motion: str
    forward: str
    backward: str


CATEGORIES: tuple[Category, ...] = (
    Category("sailing", "ocean", {"boat": "triangle", "buoy": "ring"}, "slide",
             "A sails from left to right past B", "A sails from right to left past B"),
    Category("balloons", "sky", {"balloon": "circle", "kite": "diamond"}, "rise",
             "A rises up from the ground beside B", "A sinks down to the ground beside B"),
    Category("space", "night", {"planet": "circle", "comet": "star"}, "orbit",
             "A orbits clockwise around B", "A orbits counterclockwise around B"),
    Category("traffic", "road", {"car": "bar", "truck": "square"}, "overtake",
             "A starts behind and then overtakes B", "A starts ahead and then falls behind B"),
    Category("magic", "stage", {"card": "diamond", "hat": "triangle"}, "fade",
             "A slowly appears next to B", "A slowly vanishes next to B"),
    Category("chameleon", "forest", {"leaf": "heart", "bug": "hexagon"}, "recolour",
             "A turns C near B", "A that was C turns back near B"),
    Category("gardening", "meadow", {"flower": "star", "bush": "circle"}, "grow",
             "A grows bigger and bigger by B", "A shrinks smaller and smaller by B"),
    Category("spinning", "floor", {"top": "triangle", "stick": "bar"}, "spin",
             "A spins clockwise near B", "A spins counterclockwise near B"),
    Category("morphing", "paper", {"blob": "circle", "box": "square"}, "morph",
             "A changes into a D above B", "A emerges out of a D above B"),
    Category("pushing", "brick", {"crate": "square", "barrel": "ring"}, "push",
             "A pushes B to the right", "A drags B to the left"),
    Category("elevator", "city", {"lift": "bar", "lamp": "hexagon"}, "enter",
             "A drops into view from the top and lands near B", "A lifts off near B and leaves at the top"),
    Category("daylight", "sunset", {"bird": "heart", "sun": "circle"}, "brighten",
             "it gets brighter while A stays by B", "it gets darker while A stays by B"),
    Category("parade", "checker", {"drum": "hexagon", "flag": "diamond"}, "chase",
             "A leads and B follows to the right", "B leads and A follows to the left"),
    Category("tunnel", "mountain", {"train": "bar", "cart": "square"}, "hide",
             "A goes into hiding behind B", "A comes out from behind B"),
    Category("magnets", "metal", {"magnet": "cross", "disc": "circle"}, "approach",
             "A moves toward B and touches it", "A breaks away from B and moves off"),
    Category("cells", "lab", {"cell": "circle", "virus": "star"}, "split",
             "A splits into two pieces over B", "two pieces merge into A over B"),
    Category("camera", "desert", {"pyramid": "triangle", "cactus": "cross"}, "zoom",
             "the camera zooms in on A and B", "the camera zooms out from A and B"),
    Category("signals", "snow", {"signal": "ring", "beacon": "diamond"}, "flash",
             "first A flashes and then B flashes", "first B flashes and then A flashes"),
    Category("skating", "ice", {"skater": "triangle", "puck": "circle"}, "speed",
             "A glides and speeds up toward B", "A slows down and stops after leaving B"),
    Category("fountain", "lava", {"rock": "hexagon", "spark": "star"}, "jump",
             "A jumps up first and then goes right around B", "A goes left first and then drops down around B"),
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Description of a clip with one event; with direction, number and size of frames, it determines the pixels."""

    category: int
    main: Thing
    other: Thing
    turns_into: Thing
    seed: int  # positions, shades, background
    camera_seed: int
    captions: tuple[str, str]  # forward, backward

    def render(self, backward: bool, frames: int = 24, size: int = 96) -> Pixels:
        """Render the scene, (frames, size, size, 3) uint8."""
        category, things = CATEGORIES[self.category], (self.main, self.other)
        return render_clip(
            category.motion, category.place, things, self.turns_into, camera_of(self.category, self.camera_seed),
            self.seed, backward=backward, frames=frames, size=size,
        )  # fmt: skip


def pick(rng: Generator, items: Sequence[T]) -> T:
    """Return one of the items, chosen uniformly at random."""
    return items[int(rng.integers(len(items)))]


@cache
def palette(category: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the six colors and five shapes of a category; the shapes of its own nouns come first."""
    rng = np.random.default_rng(1000 + category)
    colours = tuple(str(c) for c in rng.permutation(list(COLOURS))[:6])
    shapes = [*CATEGORIES[category].nouns.values(), *(str(s) for s in rng.permutation(list(SHAPES)))]
    return colours, tuple(dict.fromkeys(shapes))[:5]


@cache
def vocabulary(category: int) -> Mapping[str, str]:
    """Return shape -> this category's noun for it: two unique nouns and three shared nouns."""
    nouns = {shape: noun for noun, shape in CATEGORIES[category].nouns.items()}
    shared = np.random.default_rng(3000 + category).permutation(list(SHARED_NOUNS))
    unnamed = [shape for shape in palette(category)[1] if shape not in nouns]
    return nouns | {shape: str(noun) for shape, noun in zip(unnamed, shared)}


def camera_of(category: int, seed: int) -> Camera:
    """Return the camera of a category (color cast, gamma, fog: fixed by its index), slightly varied in every clip."""
    fixed, varied = np.random.default_rng(2000 + category), np.random.default_rng(seed)
    gain = 1 + CAMERA_SHIFT * fixed.uniform(-0.4, 0.25, 3)
    fog = CAMERA_SHIFT * fixed.uniform(0, 0.4)
    fog_colour, gamma = fixed.uniform(60, 230, 3), float(np.exp(CAMERA_SHIFT * fixed.uniform(-0.5, 0.5)))
    gain = gain * (1 + 0.04 * varied.normal(size=3))
    return Camera(gain, gamma, float(np.clip(fog + 0.04 * varied.normal(), 0, 0.6)), fog_colour)


def draw_scene(category: int, rng: Generator) -> Scene:
    """Return a random scene of a category with its two captions."""
    colours, shapes = palette(category)
    colour, shape = pick(rng, colours), pick(rng, shapes)
    other_colour = pick(rng, [c for c in colours if c != colour])
    other_shape = pick(rng, [s for s in shapes if s != shape])
    if CATEGORIES[category].motion == "spin" and shape in FLAT_SPIN:
        shape = "triangle" if other_shape == "bar" else "bar"
    turned = Thing(
        pick(rng, [c for c in COLOURS if c not in (colour, other_colour)]),
        pick(rng, [s for s in SHAPES if s not in (shape, other_shape)]),
        "large",
    )
    main = Thing(colour, shape, pick(rng, list(SIZES)))
    other = Thing(other_colour, other_shape, pick(rng, list(SIZES)))
    seeds = [int(s) for s in rng.integers(2**31, size=2)]
    scene = Scene(category, main, other, turned, seeds[0], seeds[1], ("", ""))
    return replace(scene, captions=(caption(scene, False, rng), caption(scene, True, rng)))


def caption(scene: Scene, backward: bool, rng: Generator) -> str:
    """Describe a scene in the words of its category; rng chooses nouns, sizes and whether the place is named."""
    category, nouns = CATEGORIES[scene.category], vocabulary(scene.category)

    def name(thing: Thing, size_rate: float) -> str:
        noun = nouns[thing.shape] if thing.shape in nouns and rng.random() < NOUN_RATE else thing.shape
        return " ".join(["a", *([thing.size] if rng.random() < size_rate else []), thing.colour, noun])

    main = name(scene.main, 0.0 if category.motion == "grow" else 0.6)
    words = {"A": main, "B": name(scene.other, 0.5), "C": scene.turns_into.colour, "D": scene.turns_into.shape}
    phrase = category.backward if backward else category.forward
    text = " ".join(words.get(word, word) for word in phrase.split())
    if rng.random() < PLACE_RATE:
        place = BACKGROUNDS[category.place].words
        text = f"{text} on {place}" if rng.random() < 0.6 else f"on {place} {text}"
    return with_articles(text)


def with_articles(text: str) -> str:
    """Replace `a` before a vowel by `an`."""
    return re.sub(r"\ba (?=[aeiou])", "an ", text)
