"""Drawing for the embedded streams: colors, shapes, backgrounds, cameras and sprites.

Coordinates: x to the right and y down, both in [0, 1] of the frame; radii in the same unit; angles in
radians. Frames are (T, S, S, 3) uint8. Everything is computed in float64 and rounded to uint8 once per layer, so that
last-bit differences between processors do not affect pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
    "pink": (250, 150, 190),
    "cyan": (60, 210, 220),
}
SIZES = {"small": 0.62, "large": 1.0}  # factor on the radius
OUTLINE = 0.10  # width of the dark outline in radii


# ---------------------------------------------------------------- shapes: signed distance, negative inside


def _triangle(x: Array, y: Array) -> Array:
    return np.maximum(0.87 * np.abs(x) - 0.5 * y - 0.47, y - 0.62)


def _star(x: Array, y: Array) -> Array:
    return (np.hypot(x, y) - 0.66 - 0.34 * np.cos(5 * np.arctan2(x, -y))) * 0.6


def _cross(x: Array, y: Array) -> Array:
    x, y = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(x - 0.95, y - 0.3), np.maximum(y - 0.95, x - 0.3))


def _heart(x: Array, y: Array) -> Array:
    x, y = np.abs(x), 0.05 - y
    lobes = np.hypot(x - 0.42, y - 0.3) - 0.5
    point = np.maximum(x * 0.8 - y * 0.6 - 0.56, np.maximum(y - 0.3, 0) + (x - 0.92) * 0.6)
    return np.minimum(lobes, point)


# name -> distance to the edge in units of the radius, at points (x, y) of the same unit
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 0.9,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - 0.78,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "diamond": lambda x, y: 0.9 * np.abs(x) + 0.612 * np.abs(y) - 0.72,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.22,
    "heart": _heart,
    "hexagon": lambda x, y: np.maximum(0.5 * np.abs(x) + 0.866 * np.abs(y), np.abs(x)) - 0.85,
    "bar": lambda x, y: np.maximum(np.abs(x) - 1.05, np.abs(y) - 0.38),
}


# ---------------------------------------------------------------- backgrounds: (x, y, rng) -> (S, S, 3) in 0..255


def _mix(first: ArrayLike, second: ArrayLike, weight: Array) -> Array:
    w = np.asarray(weight, np.float64)[..., None]
    return np.asarray(first, np.float64) * (1 - w) + np.asarray(second, np.float64) * w


def noise(rng: Generator, size: int, cells: int) -> Array:
    """Return smooth noise in [0, 1]: a (cells + 1)^2 grid of random values, bilinear between them."""
    grid = rng.random((cells + 1, cells + 1))
    at = np.linspace(0, cells, size, endpoint=False)
    low = at.astype(int)
    high = (at - low)[:, None]
    rows = grid[low] * (1 - high) + grid[low + 1] * high
    return rows[:, low] * (1 - high.T) + rows[:, low + 1] * high.T


def _wave(phase: Array) -> Array:
    """Return a sine in [0, 1] with period 1."""
    return 0.5 + 0.5 * np.sin(2 * np.pi * phase)


def _ocean(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    return _mix((20, 90, 150), (90, 180, 215), _wave(y * (5 + 2 * p[0]) + 0.08 * np.sin(2 * np.pi * (x * 2 + p[1]))))


def _sky(x: Array, y: Array, rng: Generator) -> Array:
    return _mix((130, 190, 240), (240, 245, 250), np.clip(noise(rng, len(x), 4) * 2 - 0.8, 0, 1))


def _night(x: Array, y: Array, rng: Generator) -> Array:
    image = _mix((8, 8, 35), (30, 20, 70), y)
    image[rng.random(x.shape) > 0.985] = 210  # stars
    return image


def _road(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    image = _mix((95, 95, 100), (120, 120, 125), noise(rng, len(x), 6))
    dashes = (np.abs(y - 0.45 - 0.1 * p[0]) < 0.02) & ((x * 4 + p[1]) % 1 < 0.5)
    image[dashes] = (230, 220, 150)
    return image


def _stage(x: Array, y: Array, rng: Generator) -> Array:
    light = 1 - 1.6 * np.hypot(x - 0.5, y - 0.4 - 0.2 * rng.random())
    return _mix((35, 10, 20), (120, 40, 60), 0.9 * np.clip(light, 0, 1))


def _forest(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    trunks = _wave(x * (5 + 3 * p[0]) + p[1]) > 0.6
    return _mix((20, 60, 25), (70, 50, 25), 0.8 * trunks + 0.2 * noise(rng, len(x), 6))


def _meadow(x: Array, y: Array, rng: Generator) -> Array:
    return _mix((90, 170, 60), (60, 130, 45), noise(rng, len(x), 6))


def _floor(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    grain = 0.6 + 0.4 * noise(rng, len(x), 6)
    return _mix((160, 110, 60), (120, 75, 40), 0.5 + (_wave(y * (4 + 2 * p[0]) + p[1]) - 0.5) * grain)


def _paper(x: Array, y: Array, rng: Generator) -> Array:
    cells, p = 6 + rng.integers(3), rng.random(2)
    return _mix((238, 238, 230), (150, 180, 220), ((x * cells + p[0]) % 1 < 0.12) | ((y * cells + p[1]) % 1 < 0.12))


def _brick(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    row = y * 6 + p[0]
    mortar = (row % 1 < 0.14) | ((x * 3 + 0.5 * (np.floor(row) % 2) + p[1]) % 1 < 0.08)
    return _mix((150, 70, 55), (200, 190, 180), mortar)


def _city(x: Array, y: Array, rng: Generator) -> Array:
    image = _mix((150, 170, 190), (190, 200, 210), y)
    left = np.cumsum(rng.uniform(0.08, 0.2, 14)) - 0.05
    for start, end, roof in zip(left[:-1], left[1:], rng.uniform(0.2, 0.75, 13)):
        image[(x >= start) & (x < end) & (y > roof)] = 70 + 50 * roof
    return image


def _sunset(x: Array, y: Array, rng: Generator) -> Array:
    return _mix((250, 120, 60), (110, 50, 110), np.clip(np.abs(y - 0.45 - 0.2 * rng.random()) * 1.8, 0, 1))


def _checker(x: Array, y: Array, rng: Generator) -> Array:
    cells, p = 4 + rng.integers(2), rng.random(2)
    return _mix((205, 205, 205), (120, 120, 120), (np.floor(x * cells + p[0]) + np.floor(y * cells + p[1])) % 2)


def _mountain(x: Array, y: Array, rng: Generator) -> Array:
    image = _mix((170, 200, 225), (210, 225, 235), y)
    for nearer in range(3):
        peak, height = rng.uniform(0.1, 0.9), rng.uniform(0.2, 0.45)
        image[y > height + np.abs(x - peak) * 1.3] = (110 - 15 * nearer, 105 - 12 * nearer, 115 - 10 * nearer)
    return image


def _metal(x: Array, y: Array, rng: Generator) -> Array:
    shine = 8 * np.sin(2 * np.pi * (x + y) * 12)
    return _mix((150, 155, 165), (190, 195, 205), noise(rng, len(x), 3)) + shine[..., None]


def _lab(x: Array, y: Array, rng: Generator) -> Array:
    rim = np.hypot(x - 0.5, y - 0.5) > 0.47
    return _mix((215, 235, 225), (160, 205, 195), 0.8 * rim + 0.2 * noise(rng, len(x), 6))


def _desert(x: Array, y: Array, rng: Generator) -> Array:
    p = rng.random(2)
    return _mix((225, 190, 120), (195, 150, 90), _wave(y * 3 + 0.25 * np.sin(2 * np.pi * (x + p[0])) + p[1]))


def _snow(x: Array, y: Array, rng: Generator) -> Array:
    image = _mix((225, 232, 240), (200, 212, 228), noise(rng, len(x), 6))
    image[rng.random(x.shape) > 0.98] = 255  # flakes
    return image


def _ice(x: Array, y: Array, rng: Generator) -> Array:
    cracks = np.sin(2 * np.pi * (x * 1.5 + y * 2.5 + rng.random()) + 3 * noise(rng, len(x), 6))
    return _mix((175, 215, 235), (215, 240, 250), np.clip(2 * cracks, 0, 1))


def _lava(x: Array, y: Array, rng: Generator) -> Array:
    return _mix((70, 20, 15), (250, 110, 20), np.clip(noise(rng, len(x), 5) * 3 - 1.3, 0, 1))


@dataclass(frozen=True)
class Background:
    """A background: its name in captions and the function that paints it."""

    words: str
    paint: Callable[[Array, Array, Generator], Array]


BACKGROUNDS: dict[str, Background] = {
    "ocean": Background("the ocean", _ocean),
    "sky": Background("a cloudy sky", _sky),
    "night": Background("the night sky", _night),
    "road": Background("a grey road", _road),  # prose: allow
    "stage": Background("a dark stage", _stage),
    "forest": Background("a forest", _forest),
    "meadow": Background("a green meadow", _meadow),
    "floor": Background("a wooden floor", _floor),
    "paper": Background("grid paper", _paper),
    "brick": Background("a brick wall", _brick),
    "city": Background("the city", _city),
    "sunset": Background("a sunset", _sunset),
    "checker": Background("a checkered board", _checker),
    "mountain": Background("the mountains", _mountain),
    "metal": Background("a metal plate", _metal),
    "lab": Background("a glass dish", _lab),
    "desert": Background("the desert", _desert),
    "snow": Background("the snow", _snow),
    "ice": Background("the ice", _ice),
    "lava": Background("hot lava", _lava),
}


def to_pixels(image: Array) -> Pixels:
    """Round 0..255 floats to uint8, clipping."""
    return np.rint(np.clip(image, 0, 255)).astype(np.uint8)


def background(name: str, rng: Generator, size: int) -> Pixels:
    """Paint one background, (size, size, 3) uint8, with random layout, brightness (+-10 %) and grain (SD 4 of 255)."""
    y, x = np.mgrid[0:size, 0:size] / size
    image = BACKGROUNDS[name].paint(x, y, rng) * (0.9 + 0.2 * rng.random())
    return to_pixels(image + rng.normal(0, 4, (size, size, 1)))


def shade(rng: Generator, colour: str, spread: float = 14.0) -> Array:
    """Return a random shade of a named color, (3,) in 0..255: the reference value plus normal noise."""
    return np.clip(np.asarray(COLOURS[colour], np.float64) + rng.normal(0, spread, 3), 0, 255)


# ---------------------------------------------------------------- sprites


@dataclass
class Sprite:
    """One shape at one moment."""

    shape: str
    x: float
    y: float
    radius: float
    colour: Array  # (3,) in 0..255
    angle: float = 0.0  # radians, clockwise
    alpha: float = 1.0  # 0 invisible, 1 opaque
    becomes: str | None = None  # with `blend`: the shape into which it is turning
    blend: float = 0.0  # 0 shows `shape`, 1 shows `becomes`


def draw(frame: Pixels, sprite: Sprite) -> None:
    """Paint a sprite with a soft edge and a dark outline into frame (S, S, 3), in place."""
    size, reach = len(frame), sprite.radius * 1.35
    left, right = max(0, int((sprite.x - reach) * size)), min(size, int((sprite.x + reach) * size) + 2)
    top, bottom = max(0, int((sprite.y - reach) * size)), min(size, int((sprite.y + reach) * size) + 2)
    if sprite.alpha <= 0.003 or sprite.radius <= 0.004 or right <= left or bottom <= top:
        return
    across = ((np.arange(left, right) + 0.5) / size - sprite.x)[None, :] / sprite.radius
    down = ((np.arange(top, bottom) + 0.5) / size - sprite.y)[:, None] / sprite.radius
    cos, sin = np.cos(sprite.angle), np.sin(sprite.angle)
    u, v = cos * across + sin * down, cos * down - sin * across
    distance = SHAPES[sprite.shape](u, v)
    if sprite.becomes is not None and sprite.blend > 0:
        distance = (1 - sprite.blend) * distance + sprite.blend * SHAPES[sprite.becomes](u, v)
    edge = sprite.radius * size  # pixels per unit of distance
    inside = np.clip(0.5 - distance * edge, 0, 1)[..., None] * sprite.alpha
    outline = np.clip(0.5 - (distance - OUTLINE) * edge, 0, 1)[..., None] * sprite.alpha
    patch = frame[top:bottom, left:right]
    patch[:] = to_pixels(patch * (1 - 0.6 * outline) * (1 - inside) + inside * sprite.colour)


# ---------------------------------------------------------------- cameras


@dataclass(frozen=True)
class Camera:
    """Camera response: gamma, a gain per channel, then fog. `Camera()` leaves frames unchanged."""

    gain: Array = field(default_factory=lambda: np.ones(3))  # (3,)
    gamma: float = 1.0
    fog: float = 0.0  # 0 none, 1 only fog
    fog_colour: Array = field(default_factory=lambda: np.zeros(3))  # (3,) in 0..255

    def apply(self, frames: Pixels) -> Pixels:
        """Apply to frames (..., 3) by one table of 256 values per channel."""
        value = (np.arange(256)[:, None] / 255) ** self.gamma * 255 * self.gain  # (256, 3)
        table = to_pixels(value * (1 - self.fog) + self.fog * self.fog_colour)
        applied = np.empty_like(frames)
        for c in range(3):  # `translate` looks up bytes about four times as fast as an index does
            bytes_of = frames[..., c].tobytes().translate(table[:, c].tobytes())
            applied[..., c] = np.frombuffer(bytes_of, np.uint8).reshape(frames.shape[:-1])
        return applied
