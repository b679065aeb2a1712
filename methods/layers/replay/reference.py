"""Reference images and texts on which a strategy distills the pre-trained model.

Images and texts do not need labels, and need not correspond to each other. There are three sources:

- `embedded`: 336 drawn images of one colored shape each, with their captions. It is small and always available, but
  does not replace the ImageNet images and CC3M captions of ZSCL (arXiv:2303.06628), which may not be distributed.
- a folder: image files in it or its subfolders, and `captions.txt` with one text per line.
- a `.safetensors` file: `images` (N, 3, H, W) uint8 and `tokens` (R, L) int64 of the backbone's tokenizer.

Shapes: N images, R texts, L text length, S image size of the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ctvr.methods.backbone.clip import Clip
from ctvr.methods.layers.transfer import to_device
from ctvr.methods.settings import SettingError
from ctvr.methods.user_paths import expand_path, list_files

COLOURS = {
    "red": (215, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (x, y) in units of the radius -> bool, inside the shape
    "circle": lambda x, y: x**2 + y**2 < 1,
    "square": lambda x, y: torch.maximum(x.abs(), y.abs()) < 0.85,
    "triangle": lambda x, y: (y < 0.75) & (1.8 * x.abs() - y < 0.9),
    "diamond": lambda x, y: x.abs() + y.abs() < 1,
    "cross": lambda x, y: (torch.minimum(x.abs(), y.abs()) < 0.3) & (torch.maximum(x.abs(), y.abs()) < 0.95),
    "ring": lambda x, y: ((x**2 + y**2).rsqrt().reciprocal() - 0.75).abs() < 0.25,
}
_PLACES = ((0.5, 0.5), (0.35, 0.5), (0.65, 0.5), (0.5, 0.35), (0.5, 0.65))  # centers, taken in turn
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_KEPT = 8192  # maximum number of decoded images of a folder in memory


class ReferenceSet:
    """Reference images, read on access, and `tokens` (R, L) of reference texts, all on the CPU."""

    def __init__(self, clip: Clip, count: int, read: Callable[[int], Tensor], tokens: Tensor) -> None:
        """Store the set.

        Args:
            clip: provides mean and standard deviation of pixels.
            count: number of images.
            read: index of an image -> (3, S, S) uint8.
            tokens: (R, L) int64 texts.
        """
        self.tokens, self._count, self._read = tokens, count, read
        self.mean, self.std = clip.mean, clip.std

    def __len__(self) -> int:
        return self._count

    def images(self, rows: Sequence[int], device: torch.device) -> Tensor:
        """Return B images, given by index, as videos of one frame, (B, 1, 3, S, S) float, normalized for CLIP."""
        pixels = to_device(torch.stack([self._read(row) for row in rows]), device).float() / 255
        mean, std = (to_device(torch.tensor(x), device)[:, None, None] for x in (self.mean, self.std))
        return ((pixels - mean) / std)[:, None]


def load_reference(source: str, clip: Clip) -> ReferenceSet:
    """Load a reference set.

    Args:
        source: `embedded`, a folder or a .safetensors file; the module's docstring describes them.
        clip: provides image size, normalization and tokenizer.

    Raises:
        ValueError: if the set does not exist, lacks images or texts, or does not fit the backbone.
    """
    if source == "embedded":
        return _draw_embedded(clip)
    path = expand_path(source)
    if path.is_dir():
        return _read_folder(path, clip)
    if path.is_file() and path.suffix == ".safetensors":
        return _read_tensors(path, clip)
    raise SettingError(
        f"<reference>: {source} is neither `embedded` nor a folder of images nor a .safetensors file",
        "Set <reference>=embedded, or give an existing path.",
    )


def _draw_embedded(clip: Clip) -> ReferenceSet:
    scenes = [(*scene, _PLACES[i % len(_PLACES)]) for i, scene in enumerate(product(COLOURS, SHAPES, COLOURS))]
    scenes = [scene for scene in scenes if scene[0] != scene[2]]
    captions = [
        f"{_article(colour)} {colour} {shape} on {_article(ground)} {ground} ground"
        for colour, shape, ground, _ in scenes
    ]

    def read(row: int) -> Tensor:
        colour, shape, ground, (cx, cy) = scenes[row]
        axis = (torch.arange(clip.image_size, device="cpu") + 0.5) / clip.image_size
        inside = SHAPES[shape]((axis[None, :] - cx) / 0.28, (axis[:, None] - cy) / 0.28)  # (S, S)
        front, back = (torch.tensor(COLOURS[c], dtype=torch.uint8, device="cpu") for c in (colour, ground))
        return torch.where(inside, front[:, None, None], back[:, None, None])

    return ReferenceSet(clip, len(scenes), read, clip.tokenize(captions))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _read_folder(folder: Path, clip: Clip) -> ReferenceSet:
    files = [file for file in list_files(folder) if file.suffix.lower() in _SUFFIXES]
    captions_file = folder / "captions.txt"
    if not files:
        raise SettingError(f"<reference>: {folder} does not contain images ({', '.join(_SUFFIXES)})")
    if not captions_file.is_file():
        raise SettingError(f"<reference>: {captions_file} does not exist", "Add it with any texts, one per line.")
    captions = [line.strip() for line in captions_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not captions:
        raise SettingError(f"<reference>: {captions_file} is empty", "Add texts, one per line.")
    kept: dict[int, Tensor] = {}

    def read(row: int) -> Tensor:
        if row in kept:
            return kept[row]
        pixels = _decode(files[row], clip.image_size)
        if len(kept) < _KEPT:
            kept[row] = pixels
        return pixels

    return ReferenceSet(clip, len(files), read, clip.tokenize(captions))


def _decode(file: Path, size: int) -> Tensor:
    """Read an image file as (3, size, size) uint8: resize the shorter side to `size`, then crop the center."""
    try:
        with Image.open(file, formats=_FORMATS) as image:  # for some other formats Pillow runs external programs
            picture = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SettingError(f"<reference>: {file} is not a readable image", "Remove it from the folder.") from error
    factor = size / min(picture.size)
    width, height = (max(size, round(side * factor)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    picture = picture.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
    return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)


def _read_tensors(file: Path, clip: Clip) -> ReferenceSet:
    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise SettingError(f"<reference>: {file} is damaged ({error})", "Create it again.") from error
    images, tokens = tensors.get("images"), tensors.get("tokens")
    if images is None or tokens is None or not len(images) or not len(tokens):
        raise SettingError(
            f"<reference>: {file} must contain images (N, 3, H, W) and tokens (R, L); it contains {sorted(tensors)}"
        )
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise SettingError(
            f"<reference>: images of {file} must be (N, 3, H, W) uint8, got {tuple(images.shape)} {images.dtype}"
        )
    words = len(clip.text.token_embedding.weight)
    if tokens.ndim != 2 or tokens.shape[1] > clip.text.context_length or int(tokens.max()) >= words:
        raise SettingError(
            f"<reference>: tokens of {file} are not from this backbone's tokenizer, whose context length is "
            f"{clip.text.context_length} and whose vocabulary has {words} tokens",
            "Tokenize the texts with this backbone's tokenizer.",
        )
    if images.shape[2:] != (clip.image_size, clip.image_size):
        resized = F.interpolate(images.float(), (clip.image_size, clip.image_size), mode="bicubic", antialias=True)
        images = resized.round().clamp(0, 255).to(torch.uint8)
    return ReferenceSet(clip, len(images), lambda row: images[row], tokens.long())
