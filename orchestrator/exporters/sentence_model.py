"""Embed the captions of a table by a model of sentence-transformers, and its videos if the model embeds images.

With images (clip-ViT-B-32), each sampled frame has one vector. Other models embed captions only: omit --videos, and
import the features of the videos from another model. Vectors are those of `encode`.

    pip install "sentence-transformers>=6" torch av pillow
    python SCRIPT --model clip-ViT-B-32 --table my.csv --videos VIDEOS --out features
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from PIL import Image

from ctvr.orchestrator.exporters.embedder import ImageEmbedder, name_of
from ctvr.orchestrator.exporters.huggingface import add_model, find_commit
from ctvr.orchestrator.exporters.pipeline import run


class SentenceModel(ImageEmbedder):
    """A SentenceTransformer."""

    libraries = ("sentence-transformers", "transformers")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(options.model, revision=options.revision, device="cpu")
        self.has_videos = self.model.supports("image")
        prefix = self.model.prompts.get(self.model.default_prompt_name) or ""  # which `encode` adds
        is_unit = any(type(module).__name__ == "Normalize" for module in self.model)
        self.card = {
            "embedder": name_of(options.model),
            "revision": find_commit(self.model, options.revision),
            "pooling": "one vector a frame; of canaries the mean over frames" if self.has_videos else "",
            "normalisation": "unit" if is_unit else "none",
            "prompt": f"{prefix}{{}}",
        }

    def prepare_image(self, image: Image.Image) -> Any:
        return image

    def embed_images(self, images: list[Any]) -> torch.Tensor:
        return self._encode(images)

    def embed_texts(self, texts: list[str]) -> torch.Tensor:
        return self._encode(texts)

    def _encode(self, inputs: list[Any]) -> torch.Tensor:
        size = self.options.batch_size
        found: torch.Tensor = self.model.encode(
            inputs, batch_size=size, convert_to_tensor=True, show_progress_bar=False
        )
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Embed the captions and images of a table by sentence-transformers.")
    add_model(parser)
    return run(SentenceModel, parser, "'sentence-transformers>=6'")


if __name__ == "__main__":
    raise SystemExit(main())
