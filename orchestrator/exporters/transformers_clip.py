"""Embed the videos and captions of a table by a CLIPModel, SiglipModel or Siglip2Model of transformers.

Each sampled frame has one vector: get_image_features of the frame, prepared by the model's own image processor. A
caption has the vector of get_text_features. By default vectors are not normalized. Files of SigLIP2 load as SiglipModel
if their images have a fixed size, and as Siglip2Model if not (NaFlex). We compared random weights with direct calls,
but not released weights.

    pip install "transformers>=5" torch torchvision av pillow
    python SCRIPT --model google/siglip2-base-patch16-224 --table my.csv --videos VIDEOS --out features
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from PIL import Image

from ctvr.orchestrator.exporters.embedder import ImageEmbedder, name_of
from ctvr.orchestrator.exporters.huggingface import add_model, find_commit, load_whole
from ctvr.orchestrator.exporters.pipeline import run

PADDING: dict[str, Any] = {"clip": True, "siglip": "max_length", "siglip2": "max_length"}  # as in training


class DualEncoder(ImageEmbedder):
    """A pair of towers of transformers with get_image_features and get_text_features."""

    libraries = ("transformers", "torchvision")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        from transformers import AutoConfig, AutoModel, AutoProcessor

        kind = AutoConfig.from_pretrained(options.model, revision=options.revision).model_type
        if kind not in PADDING:
            raise ValueError(f"its model type is {kind}, not {', '.join(PADDING)}")
        self.model = load_whole(AutoModel, options, torch.float32)
        self.processor = AutoProcessor.from_pretrained(options.model, revision=options.revision)
        self.padding, self.length = PADDING[kind], self.model.config.text_config.max_position_embeddings
        self.card = {
            "embedder": name_of(options.model),
            "revision": find_commit(self.model, options.revision),
            "pooling": "one vector a frame; of canaries the mean over frames",
            "normalisation": "none",
        }

    def prepare_image(self, image: Image.Image) -> Any:
        return self.processor.image_processor(images=[image], return_tensors="pt")

    def embed_images(self, images: list[Any]) -> torch.Tensor:
        inputs = {key: torch.cat([each[key] for each in images]).to(self.options.device) for key in images[0]}
        return self._pooled(self.model.get_image_features(**inputs))

    def embed_texts(self, texts: list[str]) -> torch.Tensor:
        shape = {"padding": self.padding, "truncation": True, "max_length": self.length, "return_tensors": "pt"}
        inputs = self.processor(text=texts, **shape).to(self.options.device)
        return self._pooled(self.model.get_text_features(**inputs))

    def _pooled(self, output: Any) -> torch.Tensor:
        """Return vectors (B, d), which transformers 5 wraps in an object."""
        found: torch.Tensor = getattr(output, "pooler_output", output)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Embed a table by a CLIPModel, SiglipModel or Siglip2Model.")
    add_model(parser)
    return run(DualEncoder, parser, "'transformers>=5' torchvision")


if __name__ == "__main__":
    raise SystemExit(main())
