"""Scenes and captions of the embedded stream of worlds: every task is a domain with its own appearance and vocabulary.

A world consists of three places, five colors, a camera, a name, a verb for each axis of motion and a meaning for each
noun. The nouns and the words for places are the same in all worlds. With `conflict` they name another shape and another
place in each world, so that a later task contradicts an earlier task. A clip and its reversal hold the same frames;
their captions differ in the direction only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ctvr.methods.settings import SettingError
from ctvr.orchestrator.synthetic.cvlm import CameraStyle
from ctvr.orchestrator.synthetic.drawing import (
    BACKGROUNDS,
    COLOURS,
    SIZES,
    Array,
    Pixels,
    Sprite,
    background,
    draw,
    shade,
    to_pixels,
)
from ctvr.orchestrator.synthetic.scenes import pick, with_articles

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross")
NOUNS = ("runner", "player", "piece", "gem", "robot", "toy")
SIGNS = ("base", "camp", "field")
MOVES = (("left", "right"), ("up", "down"), ("closer", "away"))  # forward, backward
VERBS = (
    "drifts", "glides", "heads", "cruises", "rolls", "swims", "floats", "slides", "flies", "hurries", "travels",
    "sails",
)  # fmt: skip
NAMES = (
    "sport", "microscope", "radar", "diving", "mine", "kitchen", "harbor", "garden", "theater", "arcade",
    "museum", "factory", "market", "airport", "library", "castle", "jungle", "island", "station", "circus",
    "hospital", "school", "farm", "temple", "tunnel", "bridge", "valley", "prison", "palace", "studio",
    "cellar", "attic", "rooftop", "highway", "village", "canyon", "glacier", "volcano", "orchard", "stadium",
    "submarine", "telescope", "workshop", "bakery", "ballroom", "barn", "courtyard", "lagoon", "swamp", "zoo",
)  # fmt: skip
RADIUS, BESIDE = 0.19, 0.13  # radius of the main object if large, and of the other one


@dataclass(frozen=True)
class Dials:
    """Parameters of the stream, as in the name `worlds-5_conflict0_motion0.2`."""

    shift: float = 1.0  # strength of the cameras, 0 (one camera for all worlds) to 1
    conflict: float = 1.0  # share of nouns and call signs with another meaning in each world
    motion: float = 0.5  # share of scenes that are shown in both directions
    pairs: int = 480  # training pairs of a task
    distractors: int = 0  # further things in a clip that no caption mentions, 0 to 3

    def __post_init__(self) -> None:
        for name in ("shift", "conflict", "motion"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"<{name}> must be between 0 and 1, got {getattr(self, name)}")
        if not 8 <= self.pairs <= 5000:
            raise SettingError(f"<pairs> must be between 8 and 5000, got {self.pairs}", "The default is 480.")
        if not 0 <= self.distractors <= 3:
            raise SettingError(f"<distractors> must be between 0 and 3, got {self.distractors}", "The default is 0.")


@dataclass(frozen=True)
class World:
    """A domain: everything that its clips and captions have in common."""

    name: str
    places: tuple[str, ...]
    colours: tuple[str, ...]
    verbs: tuple[str, ...]  # a verb for each axis of MOVES
    nouns: dict[str, str]  # shape -> noun
    signs: dict[str, str]  # place -> call sign
    style: CameraStyle
    vignette: float


def world(index: int, shift: float = 1.0, conflict: float = 1.0) -> World:
    """Return world `index`. It depends on two parameters of the stream, but not on the seed."""
    rng = np.random.default_rng([5000, index])
    places = tuple(str(p) for p in rng.permutation(list(BACKGROUNDS))[:3])
    colours = tuple(str(c) for c in rng.permutation(list(COLOURS))[:5])
    verbs = tuple(str(v) for v in rng.permutation(VERBS)[:3])
    nouns, signs = (_rotate(words, index, conflict) for words in (NOUNS, SIGNS))
    strength = shift * rng.uniform(0.6, 1)
    gain, gamma, fog = rng.uniform(-0.3, 0.2, 3), rng.uniform(-0.4, 0.4), rng.uniform(0, 0.3)
    red, green, blue = (int(c) for c in rng.integers(40, 220, 3))
    style = CameraStyle(
        gain=tuple(1 + strength * gain),
        gamma=float(np.exp(strength * gamma)),
        fog=float(strength * fog),
        fog_colour=(red, green, blue),
        pixel=2 if shift > 0 and index % 5 == 2 else 1,
        letterbox=0.1 * shift if index % 5 == 4 else 0.0,
    )
    vignette = 0.5 * shift if index % 5 == 1 else 0.0
    return World(
        NAMES[index], places, colours, verbs, dict(zip(SHAPES, nouns)), dict(zip(places, signs)), style, vignette
    )


def _rotate(words: tuple[str, ...], index: int, conflict: float) -> list[str]:
    """Rotate a share `conflict` of the words by the index of the world; with 0, no word moves."""
    count = round(conflict * len(words))
    if count < 2:
        return list(words)
    head = list(words[:count])
    turn = index % count
    return [*head[turn:], *head[:turn], *words[count:]]


@dataclass(frozen=True)
class Scene:
    """Description of a clip with one event. With direction, number and size of frames, it determines the pixels."""

    world: int
    place: str
    colour: str
    shape: str
    size: str
    other_colour: str
    other_shape: str
    axis: int  # index into MOVES
    distractors: int
    shift: float
    seed: int  # positions, shades, background

    def render(self, backward: bool, frames: int, size: int) -> Pixels:
        """Render the scene, (frames, size, size, 3) uint8; backward reverses the order of the frames."""
        rng = np.random.default_rng(self.seed)
        scenery = background(self.place, np.random.default_rng([self.seed, size]), size)
        path, sprite = self._path(rng, frames), self._sprite(rng, self.shape, self.colour)
        beside = self._beside(rng, path[0, 1 if self.axis == 0 else 0])
        clip = np.empty((frames, size, size, 3), np.uint8)
        for t, (x, y, radius) in enumerate(path):
            clip[t] = scenery
            for each in beside:
                draw(clip[t], each)
            draw(clip[t], Sprite(sprite.shape, x, y, radius, sprite.colour, sprite.angle))
        clip = self._develop(clip)
        return np.ascontiguousarray(clip[::-1]) if backward else clip

    def _path(self, rng: Generator, frames: int) -> Array:
        """Return x, y and radius of the main thing, (T, 3), forward: to the left, up or closer."""
        u, radius = np.linspace(0, 1, frames), RADIUS * SIZES[self.size]
        across = (0.3 if rng.random() < 0.5 else 0.7) + rng.uniform(-0.06, 0.06)
        still, moving = np.full(frames, across), 0.87 - 0.74 * u
        if self.axis == 0:
            return np.stack([moving, still, np.full(frames, radius)], axis=1)
        if self.axis == 1:
            return np.stack([still, moving, np.full(frames, radius)], axis=1)
        middle = np.full(frames, 0.5 + rng.uniform(-0.12, 0.12))
        return np.stack([still, middle, radius * (0.45 + u)], axis=1)

    def _beside(self, rng: Generator, across: float) -> list[Sprite]:
        """Return the static sprites: the distractors and the other object, away from the main object."""
        colours = world(self.world).colours
        things = [self._sprite(rng, pick(rng, SHAPES), pick(rng, colours)) for _ in range(self.distractors)]
        other = self._sprite(rng, self.other_shape, self.other_colour)
        if self.axis == 0:
            other.y = 1 - across
        else:
            other.x = 1 - across
        return [*things, other]

    def _sprite(self, rng: Generator, shape: str, colour: str) -> Sprite:
        x, y = rng.uniform(0.15, 0.85, 2)
        return Sprite(shape, x, y, BESIDE, shade(rng, colour), rng.normal(0, 0.1))

    def _develop(self, clip: Pixels) -> Pixels:
        """Apply the camera of the world equally to every frame."""
        shown = world(self.world, self.shift)
        clip = shown.style.camera().apply(clip)
        if shown.vignette:
            at = (np.arange(clip.shape[1]) + 0.5) / clip.shape[1] - 0.5
            dark = np.where(np.hypot(at[:, None], at) > 0.5, 1 - shown.vignette, 1)
            clip = to_pixels(np.asarray(clip * dark[..., None], np.float64))
        return shown.style.develop(clip, np.random.default_rng(0))  # no camera shakes, so the generator is unused


def draw_scene(index: int, dials: Dials, rng: Generator) -> Scene:
    """Return a random scene of a world; its two things differ in color and shape."""
    here = world(index)
    colour, other_colour = (str(c) for c in rng.permutation(here.colours)[:2])
    shape, other_shape = (str(s) for s in rng.permutation(SHAPES)[:2])
    return Scene(
        index, pick(rng, here.places), colour, shape, pick(rng, list(SIZES)), other_colour, other_shape,
        int(rng.integers(len(MOVES))), dials.distractors, dials.shift, int(rng.integers(2**31)),
    )  # fmt: skip


def caption(scene: Scene, backward: bool, dials: Dials, rng: Generator) -> str:
    """Describe a scene in the words of its world; rng selects the parts besides noun, verb and direction."""
    here = world(scene.world, dials.shift, dials.conflict)
    size, colour, other = (
        f"{word} " if rng.random() < rate else ""
        for word, rate in ((scene.size, 0.85), (scene.colour, 0.5), (scene.other_colour, 0.5))
    )
    text = f"a {size}{colour}{here.nouns[scene.shape]} {here.verbs[scene.axis]} {MOVES[scene.axis][backward]}"
    if rng.random() < 0.9:
        text += f" near a {other}{here.nouns[scene.other_shape]}"
    if rng.random() < 0.85:
        text += f" at the {here.signs[scene.place]}"
    if rng.random() < 0.3:
        text = f"{text} in the {here.name}" if rng.random() < 0.5 else f"in the {here.name} {text}"
    return with_articles(text)
