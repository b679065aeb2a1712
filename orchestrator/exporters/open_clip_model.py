"""Embed the videos and captions of a table by a model of open_clip.

Each sampled frame has one vector: the output of the vision tower, resized and cropped by the model's own transform. By
default vectors are not normalized, so that `ctvr run zero_shot` on them equals `ctvr run zero_shot` on the videos.

    pip install torch open_clip_torch av pillow
    python SCRIPT --model ViT-B-32 --pretrained openai --table my.csv --videos VIDEOS --out features
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ctvr.orchestrator.exporters.embedder import ImageEmbedder, name_of
from ctvr.orchestrator.exporters.pipeline import run


class OpenClip(ImageEmbedder):
    """A CLIP of open_clip."""

    libraries = ("open_clip_torch", "timm")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        import open_clip

        name, tag = options.model, options.pretrained
        config = open_clip.get_pretrained_cfg(name, tag) if tag else {}
        self.model, _, self.transform = open_clip.create_model_and_transforms(
            name,
            pretrained=tag,
            force_quick_gelu=bool(config.get("quick_gelu")),  # OpenAI's weights need it
        )
        self.tokenize = open_clip.get_tokenizer(name)
        self.card = {
            "embedder": name_of(name.rpartition(":")[2]),
            "revision": Path(tag).name if tag else "of the embedder",
            "pooling": "one vector a frame; of canaries the mean over frames",
            "normalisation": "none",
        }

    def prepare_image(self, image: Image.Image) -> Any:
        return self.transform(image)

    def embed_images(self, images: list[Any]) -> torch.Tensor:
        found: torch.Tensor = self.model.encode_image(torch.stack(images).to(self.options.device))
        return found

    def embed_texts(self, texts: list[str]) -> torch.Tensor:
        found: torch.Tensor = self.model.encode_text(self.tokenize(texts).to(self.options.device))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Embed the videos and captions of a table by a model of open_clip.")
    model = "name of the model, or hf-hub:OWNER/NAME or local-dir:FOLDER, which contain weights"
    parser.add_argument("--model", required=True, metavar="NAME", help=model)
    parser.add_argument("--pretrained", metavar="TAG", help="pretrained tag, or a file of weights")
    return run(OpenClip, parser, "open_clip_torch")


if __name__ == "__main__":
    raise SystemExit(main())
