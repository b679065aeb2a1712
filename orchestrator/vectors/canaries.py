"""The 32 canary inputs, 16 clips and 16 sentences, that every embedder can embed again.

Clips are (24, H, W, 3) uint8 at 12 frames per second, drawn without random numbers. Most inputs have a partner, so
that each change of an embedder's pipeline has its own effect on the vectors:

    clip without colors                 a change of channels, frames, pooling, crop or resize leaves it unchanged
    red, blue; scene_a, moving, *_bgr   one is the other with exchanged channels
    halves, halves_back                 scene_a then scene_b, and the reverse: the pooling follows from these four
    tail, flicker                       depend on the number of frames and on which are sampled
    border; wide, wide_border           differ from scene_a, or from each other, only where a center crop cuts
    checker                             a pattern of single pixels, which depends on the interpolation
    prefixed sentences                  equal another sentence if a pipeline adds that prompt
    capital, stop, long_a, long_b       depend on case, punctuation and the longest text
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from ctvr.orchestrator.data.array_files import CANARIES
from ctvr.orchestrator.output_dir import new_folder
from ctvr.orchestrator.synthetic.drawing import COLOURS, Pixels, Sprite, draw, to_pixels
from ctvr.orchestrator.vectors.card import CARD, KEYS

VERSION = 1  # increase it when a pixel or a sentence changes, because stored vectors then belong to other inputs
FRAMES, FPS, SIZE, WIDE, RIM = 24, 12, 96, 160, 5
BASE, SECOND = "a red square moves to the left", "a dog runs along the beach"
_LONG = "a man in a blue coat walks slowly past a row of parked cars and then stops in front of a small shop"
TEXTS: dict[str, str] = {
    "base": BASE,
    "second": SECOND,
    "onion": "someone cuts an onion in a kitchen",
    "tennis": "two people play tennis",
    "train": "a train arrives at the station",
    "video_of": f"a video of {BASE}",
    "photo_of": f"a photo of {BASE}",
    "query": f"query: {BASE}",
    "clip_shows": f"this clip shows {BASE}",
    "second_video_of": f"a video of {SECOND}",
    "capital": "A Dog Runs Along The Beach",
    "stop": f"{SECOND}.",
    "accents": "un café à l’aube – 20 °C",
    "word": "guitar",
    "long_a": f"{_LONG} while rain begins to fall, so he waits there without an umbrella until a yellow bus comes",
    "long_b": f"{_LONG} where a green dragon sings to four dancing robots and two red planes land on the water",
}
# Text -> (the same text without its prompt, the prompt)
PROMPTED = {
    "video_of": ("base", "a video of {}"),
    "photo_of": ("base", "a photo of {}"),
    "query": ("base", "query: {}"),
    "clip_shows": ("base", "this clip shows {}"),
    "second_video_of": ("second", "a video of {}"),
}
CLIPS = (
    *("grey", "red", "blue", "scene_a", "scene_a_bgr", "scene_b", "halves", "halves_back", "tail", "moving"),
    *("moving_bgr", "border", "wide", "wide_border", "checker", "flicker"),
)
TWINS = {"red": "blue", "scene_a": "scene_a_bgr", "moving": "moving_bgr"}  # clip -> the same with exchanged channels
STATIC = ("grey", "red", "blue", "scene_a", "scene_a_bgr", "scene_b", "border", "wide", "wide_border", "checker")


def _gradient(first: tuple[int, int, int], second: tuple[int, int, int], width: int = SIZE) -> Pixels:
    """Return an image (SIZE, width, 3) that changes from one color to another, from left to right and down."""
    y, x = np.mgrid[0:SIZE, 0:width]
    weight = ((x / width + y / SIZE) / 2)[..., None]
    return to_pixels(np.asarray(first) * (1 - weight) + np.asarray(second) * weight)


def _draw_sprites(picture: Pixels, *sprites: tuple[str, float, float, float, str]) -> Pixels:
    """Return a copy of an image with sprites, each given by shape, x, y, radius and color."""
    made = picture.copy()
    for shape, x, y, radius, colour in sprites:
        draw(made, Sprite(shape, x, y, radius, np.asarray(COLOURS[colour], np.float64)))
    return made


def _stripes(width: int) -> Pixels:
    y, x = np.mgrid[0:SIZE, 0:width]
    return np.where(((x + y) // 6 % 2)[..., None] > 0, (250, 230, 20), (200, 0, 120)).astype(np.uint8)


@cache
def clips() -> dict[str, Pixels]:
    """Draw the clips: id -> (FRAMES, SIZE, SIZE or WIDE, 3) uint8, RGB, in the order of CLIPS."""
    scene_a = _draw_sprites(
        _gradient((20, 60, 160), (60, 190, 150)),
        ("star", 0.36, 0.4, 0.22, "red"),
        ("square", 0.68, 0.66, 0.15, "yellow"),
    )
    scene_b = _draw_sprites(
        _gradient((230, 170, 90), (120, 40, 30)),
        ("circle", 0.6, 0.42, 0.24, "green"),
        ("cross", 0.3, 0.7, 0.14, "white"),
    )
    path = np.linspace(0.15, 0.85, FRAMES)
    moving = np.stack(
        [_draw_sprites(_gradient((30, 40, 90), (90, 140, 220)), ("circle", x, 0.5, 0.18, "red")) for x in path]
    )
    rim = _stripes(SIZE)
    rim[RIM:-RIM, RIM:-RIM] = scene_a[RIM:-RIM, RIM:-RIM]
    wide, bordered, left = np.zeros((SIZE, WIDE, 3), np.uint8), _stripes(WIDE), (WIDE - SIZE) // 2
    for picture in (wide, bordered):
        picture[:, left : left + SIZE] = scene_b
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    pictures = {
        "grey": np.full((SIZE, SIZE, 3), 128, np.uint8),
        "red": np.full((SIZE, SIZE, 3), (210, 60, 30), np.uint8),
        "blue": np.full((SIZE, SIZE, 3), (30, 60, 210), np.uint8),
        "scene_a": scene_a,
        "scene_b": scene_b,
        "border": rim,
        "wide": wide,
        "wide_border": bordered,
        "checker": np.where(((x + y // 2) % 2)[..., None] > 0, (235, 235, 215), (20, 30, 40)).astype(np.uint8),
    }
    made = {name: np.repeat(picture[None], FRAMES, 0) for name, picture in pictures.items()}
    half, third = FRAMES // 2, FRAMES // 3
    made["halves"] = np.concatenate([made["scene_a"][:half], made["scene_b"][:half]])
    made["halves_back"] = made["halves"][::-1]
    made["tail"] = np.concatenate([made["scene_a"][: FRAMES - third], made["scene_b"][:third]])
    made["flicker"] = np.stack([scene_b if number % 2 else scene_a for number in range(FRAMES)])
    made["moving"] = moving
    made |= {f"{name}_bgr": made[name][..., ::-1] for name in ("scene_a", "moving")}
    found = {name: np.ascontiguousarray(made[name]) for name in CLIPS}
    for frames in found.values():
        frames.flags.writeable = False  # every caller gets the same arrays
    return found


def write_canaries(folder: Path) -> str:
    """Write the inputs to a new folder: videos/ID.npy and ID.mp4, texts.json and a card to fill in.

    Returns:
        A report with the next step.

    Raises:
        ConfigError: if the folder exists and is not empty, or cannot be written.
    """
    from ctvr.orchestrator.synthetic.video_files import VideoFormat, encode  # loads FFmpeg

    with new_folder(folder) as new:
        (new / "videos").mkdir()
        for name, frames in clips().items():
            np.save(new / "videos" / f"{name}.npy", frames, allow_pickle=False)
            (new / "videos" / f"{name}.mp4").write_bytes(encode(frames, FPS, VideoFormat(intra=True).options()))
        (new / "texts.json").write_text(json.dumps(TEXTS, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (new / CARD).write_text("".join(f"{key}:  # {meaning}\n" for key, meaning in KEYS.items()), encoding="utf-8")
    return (
        f"{folder}: {len(CLIPS)} clips (videos/ID.npy, {FRAMES} RGB frames of uint8, and the same as ID.mp4) and "
        f"{len(TEXTS)} sentences (texts.json), version {VERSION}\n"
        f"next: fill in {CARD}, embed them exactly as your videos and captions, and save the vectors next to it:\n"
        f'  np.savez("{CANARIES}", video_ids=IDS, videos=ARRAY, text_ids=IDS, texts=ARRAY)'
    )
