"""Models that embed clips and captions, as the scripts of `ctvr streams export-script` use them.

Shapes: B captions or images, T frames, H x W pixels, d dimensions of a vector.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ctvr.orchestrator.errors import ConfigError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Embedder:
    """A loaded model on its device. Each script has one subclass.

    Attributes:
        model: the torch.nn.Module; the card states the digest of its weights.
        card: the keys of the card that depend on the model: embedder, revision, pooling, normalization.
        libraries: packages whose versions the card states.
        has_videos: whether the model embeds videos.
        clips_at_once: clips in one call of `embed_clips`.
        weights_in: dtype of the weights; if None, it is unchanged and the model computes in mixed precision.
    """

    model: Any
    card: dict[str, str]
    libraries: tuple[str, ...] = ()
    has_videos = True
    clips_at_once = 1
    weights_in: torch.dtype | None = None

    def __init__(self, options: argparse.Namespace) -> None:
        """Load the model that the command line names."""
        self.options = options

    def prepare(self, frames: np.ndarray, seconds: np.ndarray) -> Any:
        """Prepare a clip (T, H, W, 3) uint8 RGB, with the times (T,) of its frames, on the CPU. Threads call it."""
        raise NotImplementedError

    def embed_clips(self, clips: Sequence[Any]) -> list[torch.Tensor]:
        """Embed prepared clips: (T, d) or (1, d) each."""
        raise NotImplementedError

    def embed_texts(self, texts: list[str]) -> torch.Tensor:
        """Embed captions: (B, d)."""
        raise NotImplementedError


class ImageEmbedder(Embedder):
    """An embedder of single frames: a clip has one vector for each frame."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.clips_at_once = max(1, options.batch_size // options.num_frames)

    def prepare_image(self, image: Image.Image) -> Any:
        """Resize, crop and scale an image as the model's package does."""
        raise NotImplementedError

    def embed_images(self, images: list[Any]) -> torch.Tensor:
        """Embed prepared images: (B, d)."""
        raise NotImplementedError

    def prepare(self, frames: np.ndarray, seconds: np.ndarray) -> Any:
        return [self.prepare_image(Image.fromarray(frame)) for frame in frames]

    def embed_clips(self, clips: Sequence[Any]) -> list[torch.Tensor]:
        images, size = [image for clip in clips for image in clip], self.options.batch_size
        made = [self.embed_images(images[start : start + size]) for start in range(0, len(images), size)]
        return list(torch.cat(made).split([len(clip) for clip in clips]))


def name_of(model: str) -> str:
    """Return a model's name for its card; for a folder, only its last component, because the others are private."""
    return Path(model).resolve().name if Path(model).is_dir() else model


def load(make: Callable[[argparse.Namespace], Embedder], options: argparse.Namespace, packages: str) -> Embedder:
    """Load the model and complete its card.

    Raises:
        ConfigError: if a package is missing, or the model or the device cannot be used.
    """
    torch.backends.cudnn.allow_tf32 = False  # float32 is computed without TF32
    try:
        embedder = make(options)
        embedder.model.eval()
        embedder.card["weights"] = _digest_weights(embedder.model)
        embedder.model.to(options.device, embedder.weights_in)
    except ImportError as error:
        raise ConfigError(f"a package is missing ({error})", "--model", remedy=f"pip install {packages}") from error
    except Exception as error:  # the packages raise any class for a name, a file or a network
        reason = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
        fault = f"cannot be loaded ({type(error).__name__}: {reason})"
        raise ConfigError(fault, "--model", options.model, "Correct the name or the files, or --device.") from error
    if options.videos is not None and not embedder.has_videos:
        fault = f"{options.model} embeds captions only"
        raise ConfigError(fault, "--videos", options.videos, "Omit it, and embed the videos by another model.")
    frames = f"{options.num_frames}, {options.sampling}, decoded by {options.decoder} in ctvr's reader"
    is_mixed = options.precision != "float32" and embedder.weights_in is None
    embedder.card |= {
        "frames": frames if embedder.has_videos else "",
        "prompt": embedder.card.get("prompt", "{}").replace("{}", options.prompt),
        "dtype": f"{options.precision} (autocast)" if is_mixed else options.precision,
        "made_by": "ctvr streams export-script",
    }
    if options.normalize:
        embedder.card["normalisation"] = options.normalize
    return embedder


def _digest_weights(model: torch.nn.Module) -> str:
    """Return the SHA-256 of all weights with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def embed_captions(embedder: Embedder, captions: list[str]) -> np.ndarray:
    """Embed captions: (B, d) float32."""
    size, prompt = embedder.options.batch_size, embedder.options.prompt
    given = [prompt.replace("{}", caption) for caption in captions]
    parts = [given[start : start + size] for start in range(0, len(given), size)]
    return np.concatenate([_compute(embedder, _embed_texts, part)[0] for part in parts])


def embed_clips(embedder: Embedder, clips: list[Any]) -> list[np.ndarray]:
    """Embed prepared clips: (T, d) or (1, d) float32 each."""
    return _compute(embedder, lambda model, given: model.embed_clips(given), clips)


def _embed_texts(embedder: Embedder, captions: list[str]) -> list[torch.Tensor]:
    return [embedder.embed_texts(captions)]


def _compute(
    embedder: Embedder, embed: Callable[[Embedder, list[Any]], list[torch.Tensor]], inputs: list[Any]
) -> list[np.ndarray]:
    """Compute vectors in the precision of the command line, and normalize them as the card states.

    Raises:
        ConfigError: if a value is not finite.
    """
    options = embedder.options
    is_mixed = options.precision != "float32" and embedder.weights_in is None
    kind = torch.device(options.device).type
    with torch.inference_mode(), torch.autocast(kind, PRECISIONS[options.precision], enabled=is_mixed):
        made = [each.float() for each in embed(embedder, inputs)]
    if embedder.card["normalisation"] == "unit":
        made = [torch.nn.functional.normalize(each, dim=-1) for each in made]
    found = [each.cpu().numpy() for each in made]
    if not all(np.isfinite(each).all() for each in found):
        fault = "the model computes values that are not finite"
        is_half = options.precision == "float16"
        remedy = "Use bfloat16 or float32." if is_half else "Check the weights, or use --device cpu."
        raise ConfigError(fault, "--precision", options.precision, remedy)
    return found
