"""The second embedded stream: five small data sets, one after the other (protocol of BMU-MoCo).

Each task is a whole data set with its own places, motions, vocabulary, camera and caption style, in the order VATEX,
ActivityNet, MSR-VTT, DiDeMo, MSVD. The data sets imitate properties that distinguish the published data
sets (paragraphs or several short captions, steady or shaking cameras, letterbox, poor color, coarse pixels), not their
content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from ctvr.orchestrator.synthetic.drawing import BACKGROUNDS, COLOURS, SHAPES, SIZES, Camera, Pixels, to_pixels
from ctvr.orchestrator.synthetic.motion import Thing, render_clip
from ctvr.orchestrator.synthetic.scenes import FLAT_SPIN, pick, with_articles
from ctvr.orchestrator.synthetic.video_files import Clip, render_files

VERSION = 1  # increase it when pixels or captions change
SPLITS = {"test": (1, 16), "val": (2, 8), "train": (0, 16)}  # split -> its key in seeds, clips per category
NOUN_RATE = 0.7  # probability that a caption uses the noun instead of the shape
SETTINGS: dict[str, Any] = {
    "backbone.name": "tiny-clip",
    "backbone.weights": "shipped",
    "data.num_frames": 8,
    "data.batch_size": 8,
    "optim.epochs": 4,
    "optim.lr_scale": 50,
    "preset": "shapes",  # used if the method has it
}


@dataclass(frozen=True)
class CameraStyle:
    """The camera effects of a data set, applied to every clip."""

    gain: tuple[float, float, float] = (1.0, 1.0, 1.0)
    gamma: float = 1.0
    fog: float = 0.0
    fog_colour: tuple[int, int, int] = (128, 128, 128)
    saturation: float = 1.0  # 0 is gray
    shake: float = 0.0  # largest jump between frames, share of the frame
    pixel: int = 1  # side of the blocks of a frame, in pixels
    letterbox: float = 0.0  # share of the height that is black, at the top and at the bottom

    def camera(self) -> Camera:
        return Camera(np.array(self.gain), self.gamma, self.fog, np.array(self.fog_colour, np.float64))

    def develop(self, frames: Pixels, rng: Generator) -> Pixels:
        """Apply everything except the camera to frames (T, S, S, 3)."""
        size = frames.shape[1]
        if self.saturation < 1:
            grey = frames @ np.array([0.299, 0.587, 0.114])
            frames = to_pixels(self.saturation * frames + (1 - self.saturation) * grey[..., None])
        reach = round(self.shake * size)
        if reach:
            padded = np.pad(frames, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
            at = rng.integers(0, 2 * reach + 1, (len(frames), 2))
            frames = np.stack([padded[t, y : y + size, x : x + size] for t, (y, x) in enumerate(at)])
        if self.pixel > 1:
            index = np.arange(size) // self.pixel * self.pixel
            frames = np.ascontiguousarray(frames[:, index][:, :, index])
        bar = round(self.letterbox * size)
        frames[:, :bar] = frames[:, size - bar :] = 0
        return frames


@dataclass(frozen=True)
class Action:
    """A category of a data set. In its phrases A is the main object, B the other; A turns into color C and shape D."""

    name: str
    motion: str
    forward: str
    backward: str


@dataclass(frozen=True)
class DataSet:
    """One task. In a template EVENT is the phrase of an action, P the place, and A and B are as in `Action`.

    THE-A is "the" with the color and noun of the main object.
    """

    name: str
    places: tuple[str, ...]
    nouns: dict[str, str]  # shape -> noun; only these shapes appear
    actions: tuple[Action, ...]
    templates: tuple[str, ...]
    captions: int  # captions per clip
    look: CameraStyle = field(default_factory=CameraStyle)

    def colours(self) -> list[str]:
        """Return the six colors of the data set's main and other objects."""
        return [str(c) for c in np.random.default_rng([4000, *map(ord, self.name)]).permutation(list(COLOURS))[:6]]


DATA_SETS: tuple[DataSet, ...] = (
    DataSet(
        "vatex-like",
        ("meadow", "snow", "ocean", "desert"),
        {"triangle": "skier", "bar": "surfer", "circle": "ball", "star": "dancer", "heart": "horse"},
        (
            Action("crossing", "slide", "A moves from left to right past B", "A moves from right to left past B"),
            Action("sprinting", "speed", "A runs faster and faster toward B", "A leaves B and stops"),
            Action("climbing", "rise", "A climbs up beside B", "A comes down beside B"),
            Action("jumping", "jump", "A jumps up and then goes right around B", "A goes left and then falls around B"),
        ),
        ("EVENT on P", "someone films how EVENT", "on P EVENT", "on P EVENT while we watch"),
        captions=3,
        look=CameraStyle(gain=(1.15, 1.08, 0.85), gamma=0.8),
    ),
    DataSet(
        "activitynet-like",
        ("floor", "stage", "paper", "checker"),
        {"ring": "pan", "square": "table", "diamond": "cup", "bar": "broom", "circle": "cake"},
        (
            Action("turning", "spin", "A spins clockwise near B", "A spins counterclockwise near B"),
            Action("moving", "push", "A pushes B to the right", "A drags B to the left"),
            Action("baking", "grow", "A grows bigger by B", "A shrinks smaller by B"),
            Action("conjuring", "fade", "A slowly appears next to B", "A slowly vanishes next to B"),
        ),
        ("we see B on P . then EVENT . later it stops", "B is on P . next EVENT . then it stays"),
        captions=1,
        look=CameraStyle(gain=(0.8, 0.8, 0.95), gamma=1.4, letterbox=0.11),
    ),
    DataSet(
        "msrvtt-like",
        ("city", "road", "brick", "metal"),
        {"square": "robot", "hexagon": "singer", "ring": "wheel", "bar": "car", "cross": "drone"},
        (
            Action("racing", "overtake", "A overtakes B", "A falls behind B"),
            Action("landing", "enter", "A drops from the top and lands near B", "A lifts off near B and leaves"),
            Action("meeting", "approach", "A moves toward B", "A breaks away from B"),
            Action("hiding", "hide", "A hides behind B", "A comes out from behind B"),
        ),
        ("a video of P where EVENT", "EVENT", "there is P and EVENT", "a clip of how EVENT", "EVENT on P"),
        captions=3,
        look=CameraStyle(fog=0.2, fog_colour=(90, 140, 200)),
    ),
    DataSet(
        "didemo-like",
        ("forest", "sky", "mountain", "sunset"),
        {"heart": "dog", "star": "cat", "circle": "toy", "hexagon": "table", "diamond": "rider"},
        (
            Action("circling", "orbit", "THE-A circles clockwise around B", "THE-A circles counterclockwise around B"),
            Action("following", "chase", "THE-A leads and B follows", "B leads and THE-A follows"),
            Action("waving", "flash", "THE-A shows before B", "B shows before THE-A"),
            Action("panning", "zoom", "the camera zooms in on B", "the camera zooms out from B"),
        ),
        ("first A on P . then EVENT while the camera shakes", "A is in the shot . later EVENT on P"),
        captions=1,
        look=CameraStyle(gain=(1.1, 0.9, 1.0), gamma=1.15, shake=0.06),
    ),
    DataSet(
        "msvd-like",
        ("ice", "lava", "lab", "night"),
        {"circle": "egg", "square": "phone", "cross": "fish", "triangle": "knife", "star": "cookie"},
        (
            Action("cutting", "split", "A splits over B", "two pieces merge into A over B"),
            Action("painting", "recolour", "A turns C near B", "A that was C turns back near B"),
            Action("shaping", "morph", "A becomes a D above B", "a D becomes A above B"),
            Action("lighting", "brighten", "A by B gets brighter", "A by B gets darker"),
        ),
        ("EVENT", "EVENT", "EVENT on P"),
        captions=4,
        look=CameraStyle(saturation=0.45, pixel=3, fog=0.1, fog_colour=(150, 140, 110)),
    ),
)


@dataclass(frozen=True)
class Shot:
    """Description of a clip of a data set; with direction, number and size of frames, it determines the pixels."""

    data_set: int
    action: int
    place: str
    main: Thing
    other: Thing
    turns_into: Thing
    seed: int

    def render(self, backward: bool, frames: int, size: int) -> Pixels:
        """Render the clip, (frames, size, size, 3) uint8."""
        source = DATA_SETS[self.data_set]
        clip = render_clip(
            source.actions[self.action].motion, self.place, (self.main, self.other), self.turns_into,
            source.look.camera(), self.seed, backward=backward, frames=frames, size=size,
        )  # fmt: skip
        return source.look.develop(clip, np.random.default_rng([self.seed, frames, size]))

    def caption(self, backward: bool, rng: Generator) -> str:
        """Describe the clip by one of the data set's templates."""
        source = DATA_SETS[self.data_set]
        action = source.actions[self.action]
        main, other = (source.nouns[t.shape] if rng.random() < NOUN_RATE else t.shape for t in (self.main, self.other))
        words = {
            "A": f"a {self._size(self.main, rng)}{self.main.colour} {main}",
            "THE-A": f"the {self.main.colour} {main}",
            "B": f"a {self._size(self.other, rng)}{self.other.colour} {other}",
            "C": self.turns_into.colour,
            "D": self.turns_into.shape,
            "P": BACKGROUNDS[self.place].words,
        }
        phrase = pick(rng, source.templates).replace("EVENT", action.backward if backward else action.forward)
        return with_articles(" ".join(words.get(word, word) for word in phrase.split()))

    def _size(self, thing: Thing, rng: Generator) -> str:
        said = rng.random() < 0.4 and DATA_SETS[self.data_set].actions[self.action].motion != "grow"
        return f"{thing.size} " if said else ""


def draw_shot(data_set: int, action: int, rng: Generator) -> Shot:
    """Return a random clip of one category of one data set."""
    source = DATA_SETS[data_set]
    first, second = (str(c) for c in rng.permutation(source.colours())[:2])
    shape, other = (str(s) for s in rng.permutation(list(source.nouns))[:2])
    if source.actions[action].motion == "spin" and shape in FLAT_SPIN:
        shape = "diamond" if other == "bar" else "bar"
    turned = Thing(
        pick(rng, [c for c in COLOURS if c not in (first, second)]),
        pick(rng, [s for s in SHAPES if s not in (shape, other)]),
        "large",
    )
    sizes = [pick(rng, list(SIZES)) for _ in range(2)]
    main, beside = Thing(first, shape, sizes[0]), Thing(second, other, sizes[1])
    return Shot(data_set, action, pick(rng, source.places), main, beside, turned, int(rng.integers(2**31)))


def render_cvlm(root: Path, videos: bool = True) -> dict[str, Any]:
    """Render the five data sets below `root` unless they exist, and return the stream's manifest.

    Per task 64 training, 32 validation and 64 test clips in four categories. Arguments, errors and the
    manifest are those of `stream.render_stream`, with the protocol "cvlm".
    """
    folder = Path(root) / f"shapes-cvlm-v{VERSION}-seed0"
    plan = _plan(0)
    if videos:
        render_files(folder, [clip for _, _, clip, _ in plan])
    tasks = []
    for index, source in enumerate(DATA_SETS):
        task: dict[str, Any] = {"name": source.name, "categories": [_category(source, a) for a in source.actions]}
        for split in ("train", "val", "test"):
            task[split] = [
                {**item, "path": f"{folder.name}/{clip.path}", "captions": list(item["captions"])}
                for owner, part, clip, item in plan
                if owner == index and part == split
            ]
        tasks.append(task)
    return {"format": 1, "name": "shapes-cvlm", "protocol": "cvlm", "tasks": tasks, "settings": dict(SETTINGS)}


def _category(source: DataSet, action: Action) -> str:
    return f"{source.name.removesuffix('-like')}/{action.name}"


@lru_cache(maxsize=2)
def _plan(seed: int) -> tuple[tuple[int, str, Clip, dict[str, Any]], ...]:
    """Return (data set, split, clip, item without its path) of every clip."""
    return tuple(
        (index, split, clip, item)
        for index, source in enumerate(DATA_SETS)
        for action in range(len(source.actions))
        for split, clip, item in _plan_category(seed, index, action)
    )


def _plan_category(seed: int, data_set: int, action: int) -> Iterator[tuple[str, Clip, dict[str, Any]]]:
    """Yield the clips of one category; captions are unique in the category, over all splits."""
    source, used = DATA_SETS[data_set], set[str]()
    category = _category(source, source.actions[action])
    for split, (key, count) in SPLITS.items():
        for number in range(count):
            backward = number % 2 == 1
            rng = np.random.default_rng([seed, 100 + data_set, action, key, number])
            take, captions = _new_take(data_set, action, backward, rng, used)
            name = f"{category.replace('/', '_')}_{number:02d}"
            item = {"video": f"{split}_{name}", "category": category, "captions": captions, "twin": None}
            yield split, Clip(f"{split}/{name}.mp4", take, backward), item


def _new_take(
    data_set: int, action: int, backward: bool, rng: Generator, used: set[str]
) -> tuple[Shot, tuple[str, ...]]:
    """Return a random clip with its captions, as many as in its data set and none in `used`; add them to `used`."""
    wanted = DATA_SETS[data_set].captions
    for _ in range(1000):
        take = draw_shot(data_set, action, rng)
        captions: dict[str, None] = {}
        for _ in range(20 * wanted):
            captions.setdefault(take.caption(backward, rng))
            if len(captions) == wanted:
                break
        if len(captions) == wanted and used.isdisjoint(captions):
            used.update(captions)
            return take, tuple(captions)
    raise RuntimeError(f"no new clip of {_category(DATA_SETS[data_set], DATA_SETS[data_set].actions[action])}")
