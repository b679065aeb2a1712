"""Pictures of frames in rows, with the attention of a model to patches, its merges, or the weights of its experts.

Shapes: T frames, H = W pixels, P patches of a frame (rows x columns).
"""

from __future__ import annotations

import colorsys
import io
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

from ctvr.orchestrator.retrieval.attention import AttentionMaps, Merges, enlarged

SIDE, GAP, TOP = 168, 4, 18  # pixels: side of a drawn frame, gap between frames, height of a line of text
DIM = 0.15  # remaining brightness of a pixel without attention
GOLDEN = 0.618033988749895  # step between hues that keeps any number of them far apart


def draw_attention(found: AttentionMaps, names: Sequence[str]) -> list[Image.Image]:
    """Draw a picture for each video: frames, FFA attention between frames (if any), CLIP attention within frames."""
    size = found.frames.shape[2]
    block = found.block + 1
    rows = {"frames": None, f"between frames (FFA, block {block})": found.temporal}
    rows[f"within frames (CLIP, block {block})"] = found.spatial
    maps = {
        said: None if each is None else enlarged(each, found.rows, size).numpy()
        for said, each in rows.items()
        if each is not None or said == "frames"
    }
    drawn = []
    for number, name in enumerate(names):
        frames = found.frames[number].numpy()
        parts = [
            (said, frames if each is None else (frames * (DIM + (1 - DIM) * each[number])[..., None]).astype(np.uint8))
            for said, each in maps.items()
        ]
        drawn.append(_stacked(name, parts))
    return drawn


def draw_merges(found: Merges, names: Sequence[str]) -> list[Image.Image]:
    """Draw a picture for each video: its frames, without and with the colors of merged patches (`merged_patches`)."""
    drawn = []
    for number, name in enumerate(names):
        frames, tokens = found.frames[number].numpy(), found.tokens[number].numpy()
        left = len(np.unique(tokens))
        said = f"{tokens.size} patches have become {left} tokens"
        drawn.append(_stacked(name, [("frames", frames), (said, merged_patches(frames, tokens, found.rows))]))
    return drawn


def draw_expert_weights(
    frames: np.ndarray, weights: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str]
) -> list[Image.Image]:
    """Draw a picture for each of V videos: the weights of the experts of each gate above its frames.

    Args:
        frames: pixels (V, T, H, W, 3), uint8.
        weights: gate -> expert -> weight for each video.
        names: names of the videos.
    """
    drawn = []
    for number, name in enumerate(names):
        lines = [
            f"gate of {gate}: " + ", ".join(f"{expert} {shares[number]:.2f}" for expert, shares in experts.items())
            for gate, experts in weights.items()
        ]
        drawn.append(_stacked(name, [("; ".join(lines), frames[number])]))
    return drawn


def merged_patches(frames: np.ndarray, tokens: np.ndarray, rows: int) -> np.ndarray:
    """Return frames (T, H, W, 3) in which the patches (T, P) of one token have their mean color and a common border.

    Patches that were not merged are unchanged.
    """
    patch = frames.shape[1] // rows
    cells = frames.reshape(len(frames), rows, patch, rows, patch, 3).swapaxes(2, 3).copy()  # (T, r, c, p, p, 3)
    flat = cells.reshape(-1, patch, patch, 3)
    counted = Counter(tokens.flatten().tolist())
    shared = [token for token in counted if counted[token] > 1]
    edge = max(1, patch // 10)
    for order, token in enumerate(shared):
        rows_of = np.flatnonzero(tokens.flatten() == token)
        hue = colorsys.hsv_to_rgb(order * GOLDEN % 1, 0.75, 0.6 + 0.4 * (order % 2))
        inner = flat[rows_of].reshape(-1, 3).mean(axis=0)
        flat[rows_of] = np.round(255 * np.asarray(hue)).astype(np.uint8)
        flat[rows_of, edge:-edge, edge:-edge] = np.round(inner).astype(np.uint8)
    return flat.reshape(cells.shape).swapaxes(2, 3).reshape(frames.shape)


def encode_pictures(pictures: Sequence[Image.Image], form: str) -> bytes:
    """Encode pictures, one below the other, as "png" or "pdf", without the date: equal pictures give equal bytes."""
    width, height = max(each.width for each in pictures), sum(each.height for each in pictures)
    whole, top = Image.new("RGB", (width, height), "white"), 0
    for each in pictures:
        whole.paste(each, (0, top))
        top += each.height
    buffer = io.BytesIO()
    dates = {"creationDate": None, "modDate": None} if form == "pdf" else {}
    whole.save(buffer, form.upper(), **dates)
    return buffer.getvalue()


def _stacked(title: str, parts: Sequence[tuple[str, np.ndarray]]) -> Image.Image:
    count = len(parts[0][1])
    width, height = GAP + count * (SIDE + GAP), TOP + len(parts) * (TOP + SIDE + GAP)
    drawn = Image.new("RGB", (max(width, 480), height), "white")
    pen = ImageDraw.Draw(drawn)
    pen.text((GAP, 3), title, fill="black")
    for row, (said, frames) in enumerate(parts):
        top = TOP + row * (TOP + SIDE + GAP)
        pen.text((GAP, top + 3), said, fill="black")
        for column, frame in enumerate(frames):
            small = Image.fromarray(frame).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            drawn.paste(small, (GAP + column * (SIDE + GAP), top + TOP))
    return drawn
