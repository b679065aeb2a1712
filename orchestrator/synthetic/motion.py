"""Motions of two objects in the embedded stream: one small function per kind of motion.

A motion is a pure function of the time u (T,), 0 at the start and 1 at the end of the event. Reversed time gives the
time-reversed clip (its twin).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ctvr.orchestrator.synthetic.drawing import SIZES, Array, Camera, Pixels, Sprite, background, draw, shade

REST = 0.5  # share of the clip that shows the end state of a motion that has one


@dataclass(frozen=True)
class Thing:
    """An object that a caption mentions: one colored shape."""

    colour: str
    shape: str
    size: str


@dataclass
class Track:
    """One thing over time; every array has T entries (color: (T, 3))."""

    x: Array
    y: Array
    radius: Array
    colour: Array
    angle: Array
    alpha: Array
    blend: Array
    shape: str
    becomes: str | None = None

    def arrays(self) -> list[Array]:
        return [self.x, self.y, self.radius, self.colour, self.angle, self.alpha, self.blend]

    def at(self, t: int) -> Sprite:
        return Sprite(
            self.shape, self.x[t], self.y[t], self.radius[t], self.colour[t], self.angle[t], self.alpha[t],
            self.becomes, self.blend[t],
        )  # fmt: skip


@dataclass
class Stage:
    """The state that a motion can change: the main object, the other object, the light and the zoom."""

    main: Track
    other: Track
    light: Array  # (T,) brightness factor
    zoom: Array  # (T,) 1 shows the whole background
    colour: Array  # (3,) the color into which a thing may turn
    shape: str  # the shape into which a thing may turn
    rng: Generator
    high: bool  # drawn at random: whether the main thing is above (or left of) the other
    piece: Track | None = None  # a second part of the main thing
    main_in_front: bool = True

    def off(self, amount: float = 0.05) -> float:
        """Return a random offset in [-amount, amount]."""
        return float(self.rng.uniform(-amount, amount))

    def place(self, axis: str, main: float, other: float) -> None:
        """Put the two objects on opposite sides of the center; `high` selects the sides."""
        first, second = (main, other) if self.high else (1 - main, 1 - other)
        setattr(self.main, axis, np.full_like(self.light, first + self.off()))
        setattr(self.other, axis, np.full_like(self.light, second + self.off()))


def smooth(u: Array) -> Array:
    """Return u with ease-in and ease-out."""
    return u * u * (3 - 2 * u)


def _slide(s: Stage, u: Array) -> None:
    s.place("y", 0.3, 0.7)
    s.main.x = 0.12 + 0.76 * u


def _rise(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.72)
    s.main.y = 0.85 - 0.7 * u


def _orbit(s: Stage, u: Array) -> None:
    s.other.x, s.other.y = 0.5 + s.off() + 0 * u, 0.5 + s.off() + 0 * u
    angle = s.rng.uniform(0, 2 * np.pi) + 4.2 * u
    s.main.x, s.main.y = s.other.x + 0.33 * np.cos(angle), s.other.y + 0.33 * np.sin(angle)


def _overtake(s: Stage, u: Array) -> None:
    s.place("y", 0.3, 0.7)
    s.main.x, s.other.x = 0.12 + 0.76 * u, 0.3 + 0.4 * u


def _fade(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.7)
    s.main.alpha = smooth(u)


def _recolour(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.7)
    turned = smooth(u)[:, None]
    s.main.colour = s.main.colour * (1 - turned) + s.colour * turned


def _grow(s: Stage, u: Array) -> None:
    s.place("x", 0.35, 0.8)
    s.main.radius = 0.06 + 0.22 * u


def _spin(s: Stage, u: Array) -> None:
    s.place("x", 0.35, 0.8)
    s.main.angle = s.rng.uniform(0, 2 * np.pi) + 4.0 * u
    s.main.radius = s.main.radius * 1.25


def _morph(s: Stage, u: Array) -> None:
    s.main.y, s.other.y = 0.3 + s.off() + 0 * u, 0.75 + s.off() + 0 * u
    s.main.x = 0.5 + s.off(0.2) + 0 * u
    s.main.radius, s.main.becomes, s.main.blend = s.main.radius * 1.2, s.shape, smooth(u)


def _push(s: Stage, u: Array) -> None:
    s.main.y = s.other.y = 0.5 + s.off(0.2) + 0 * u
    s.main.x = 0.08 + 0.5 * u
    s.other.x = np.maximum(0.45, s.main.x + 0.95 * (s.main.radius + s.other.radius))


def _enter(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.72)
    s.main.y = -0.15 + 0.65 * np.minimum(1.6 * u, 1)


def _brighten(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.7)
    s.light = 0.35 + 0.85 * u


def _chase(s: Stage, u: Array) -> None:
    s.main.x, s.other.x = 0.35 + 0.55 * u, 0.05 + 0.55 * u
    s.main.y = 0.5 + s.off(0.2) + 0 * u
    s.other.y = s.main.y + s.off(0.1)


def _hide(s: Stage, u: Array) -> None:
    s.other.x, s.other.y = 0.68 + s.off() + 0 * u, 0.5 + s.off() + 0 * u
    s.main.x, s.main.y = 0.1 + 0.58 * np.minimum(1.3 * u, 1), s.other.y + s.off()
    s.main.radius, s.other.radius = s.main.radius * 0.8, s.other.radius * 1.5
    s.main_in_front = False


def _approach(s: Stage, u: Array) -> None:
    s.other.x, s.other.y = 0.72 + s.off() + 0 * u, 0.5 + s.off(0.2) + 0 * u
    angle = s.off(0.8)
    distance: Array = 0.6 - 0.4 * smooth(u)
    s.main.x = s.other.x - math.cos(angle) * distance
    s.main.y = s.other.y - math.sin(angle) * distance


def _split(s: Stage, u: Array) -> None:
    s.main.y, s.other.y = 0.35 + s.off() + 0 * u, 0.78 + s.off() + 0 * u
    apart, m = 0.26 * smooth(u), s.main
    part, shown = 0.85 * m.radius, m.alpha * (u > 0.04)
    s.piece = Track(0.5 + apart, m.y, part, m.colour, m.angle, shown, m.blend, m.shape)
    m.x, m.radius = 0.5 - apart, m.radius * (1.2 - 0.35 * smooth(u))


def _zoom(s: Stage, u: Array) -> None:
    s.zoom = 0.6 + 0.9 * u
    for thing, x in ((s.main, 0.3), (s.other, 0.7)):
        thing.x = 0.5 + (x + s.off() - 0.5) * s.zoom
        thing.y = 0.5 + s.off(0.15) * s.zoom
        thing.radius = thing.radius * s.zoom


def _flash(s: Stage, u: Array) -> None:
    s.place("x", 0.3, 0.7)
    s.main.alpha = np.where((u > 0.1) & (u < 0.45), 1.0, 0.12)
    s.other.alpha = np.where((u > 0.55) & (u < 0.9), 1.0, 0.12)


def _speed(s: Stage, u: Array) -> None:
    s.main.x, s.main.y = 0.08 + 0.62 * u**2.2, (0.4 if s.high else 0.6) + s.off() + 0 * u
    s.other.x, s.other.y = 0.85 + s.off(0.03) + 0 * u, s.main.y + s.off(0.15)


def _jump(s: Stage, u: Array) -> None:
    s.main.x, s.main.y = 0.2 + 0.6 * np.clip(2 * u - 1, 0, 1), 0.82 - 0.62 * np.clip(2 * u, 0, 1)
    s.other.x, s.other.y = 0.62 + s.off() + 0 * u, 0.62 + s.off() + 0 * u


@dataclass(frozen=True)
class Motion:
    """A kind of motion. `reverses`: whether its two directions have the same frames in opposite order."""

    move: Callable[[Stage, Array], None]
    reverses: bool = False

    def clock(self, frames: int, backward: bool) -> Array:
        """Return the time (T,) of each frame, from 0 to 1, or from 1 to 0 if `backward`.

        If the motion does not reverse (`reverses`), it stops early: the last frames, a share REST, show its last state.
        """
        u = np.linspace(0, 1, frames)
        if self.reverses:
            return u[::-1] if backward else u
        u = np.minimum(u / (1 - REST), 1)
        return 1 - u if backward else u


MOTIONS: dict[str, Motion] = {
    "slide": Motion(_slide),
    "rise": Motion(_rise),
    "orbit": Motion(_orbit, reverses=True),
    "overtake": Motion(_overtake, reverses=True),
    "fade": Motion(_fade),
    "recolour": Motion(_recolour),
    "grow": Motion(_grow),
    "spin": Motion(_spin, reverses=True),
    "morph": Motion(_morph),
    "push": Motion(_push, reverses=True),
    "enter": Motion(_enter),
    "brighten": Motion(_brighten),
    "chase": Motion(_chase, reverses=True),
    "hide": Motion(_hide),
    "approach": Motion(_approach),
    "split": Motion(_split),
    "zoom": Motion(_zoom),
    "flash": Motion(_flash, reverses=True),
    "speed": Motion(_speed),
    "jump": Motion(_jump),
}


def render_clip(
    motion: str,
    place: str,
    things: tuple[Thing, Thing],
    turns_into: Thing,
    camera: Camera,
    seed: int,
    *,
    backward: bool = False,
    frames: int = 24,
    size: int = 96,
) -> Pixels:
    """Render one clip, (frames, size, size, 3) uint8; equal arguments give equal pixels.

    Args:
        motion: a key of MOTIONS.
        place: a key of BACKGROUNDS.
        things: the main and the other thing.
        turns_into: color and shape into which the main thing may turn.
        camera: the camera response.
        seed: fixes positions, shades and the background.
        backward: whether to show the event in the other direction.
        frames: T.
        size: side of the square frame in pixels.
    """
    rng = np.random.default_rng(seed)
    u = MOTIONS[motion].clock(frames, backward)
    scenery = background(place, np.random.default_rng([seed, size]), size)
    stage = _stage(things, turns_into, rng, frames)
    MOTIONS[motion].move(stage, u)
    pieces = [stage.main] if stage.piece is None else [stage.main, stage.piece]
    order = [stage.other, *pieces] if stage.main_in_front else [*pieces, stage.other]
    state = np.column_stack([stage.light, stage.zoom, *(values for track in order for values in track.arrays())])
    clip = np.empty((frames, size, size, 3), np.uint8)
    for t in range(frames):
        if t and np.array_equal(state[t], state[t - 1]):  # half of the frames of a motion with an end state
            clip[t] = clip[t - 1]
            continue
        clip[t] = scenery if np.all(stage.zoom == 1) else _zoomed(scenery, stage.zoom[t])
        for track in order:
            draw(clip[t], track.at(t))
        if stage.light[t] != 1:
            clip[t] = Camera(gain=np.full(3, stage.light[t])).apply(clip[t])
    return camera.apply(clip)


def _stage(things: tuple[Thing, Thing], turns_into: Thing, rng: Generator, frames: int) -> Stage:
    one = np.ones(frames)
    tracks = []
    for thing, spread in zip(things, (0.0, 0.25)):
        x, y = 0.5 + rng.uniform(-spread, spread), 0.5 + rng.uniform(-spread, spread)
        radius, colour = 0.18 * SIZES[thing.size], shade(rng, thing.colour)
        angle = rng.normal(0, 0.1)
        tracks.append(
            Track(x * one, y * one, radius * one, colour * one[:, None], angle * one, one, 0 * one, thing.shape)
        )
    colour = shade(rng, turns_into.colour)
    return Stage(tracks[0], tracks[1], one, one, colour, turns_into.shape, rng, bool(rng.random() < 0.5))


def _zoomed(scenery: Pixels, zoom: float) -> Pixels:
    size = len(scenery)
    at = (np.arange(size) + 0.5) / size
    index = np.clip(((0.5 + (at - 0.5) / zoom * 0.6) * size).astype(int), 0, size - 1)
    return scenery[index][:, index]
