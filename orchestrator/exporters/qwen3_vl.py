"""Embed the videos and captions of a table by Qwen3-VL-Embedding (arXiv:2601.04720), with Qwen3VLModel of transformers.

A video has one vector, and so has a caption: the last hidden state at the last token of a conversation, at unit length.
The system message is an instruction, the user's message the video or the caption, and the conversation ends where the
assistant would answer. Frames are resized as in the authors' script for a video file: sides are multiples of 32 pixels,
and an image has 128 to 768 tokens of 32 x 32 pixels, or fewer for many frames. Differences from that script: frames
are those that ctvr samples, each with its own time, instead of one a second, and a video is never truncated.

Not checked: the released weights (2B, 8B) and their chat template were not available. We compared a random model of
this class, saved as Qwen3VLForConditionalGeneration, with a direct call. Compare one vector with the authors' script.

    pip install "transformers>=5" torch torchvision av pillow
    python SCRIPT --model Qwen/Qwen3-VL-Embedding-2B --table my.csv --videos VIDEOS --out features
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ctvr.orchestrator.exporters.embedder import PRECISIONS, Embedder, name_of
from ctvr.orchestrator.exporters.huggingface import add_model, find_commit, load_whole
from ctvr.orchestrator.exporters.pipeline import run

INSTRUCTION = "Represent the user's input."
LENGTH = 8192  # tokens of a caption
SIDE = 32  # side of a token in pixels
LEAST, MOST, TOTAL = 128 * SIDE**2, 768 * SIDE**2, 7680 * SIDE**2  # pixels of a frame, and of half a video's frames


class Qwen3VL(Embedder):
    """Qwen3-VL-Embedding."""

    libraries = ("transformers", "torchvision")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        from transformers import AutoProcessor, Qwen3VLModel

        self.model = load_whole(Qwen3VLModel, options, "auto")
        self.processor = AutoProcessor.from_pretrained(options.model, revision=options.revision)
        self.processor.tokenizer.padding_side = "right"
        self.clips_at_once, self.weights_in = options.batch_size, PRECISIONS[options.precision]
        self.card = {
            "embedder": name_of(options.model),
            "revision": find_commit(self.model, options.revision),
            "pooling": "one vector a video, the last hidden state at the last token",
            "normalisation": "unit",
            "prompt": f"system: {options.instruction} user: {{}}",
        }

    def prepare(self, frames: np.ndarray, seconds: np.ndarray) -> Any:
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import resize

        images = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
        size = list(fitting_size(*frames.shape[:3]))
        times = [round(1000 * float(second)) for second in seconds]  # the processor divides by its frames per second
        about = {"fps": 1000.0, "frames_indices": times, "total_num_frames": times[-1] + 1}
        return resize(images, size, InterpolationMode.BICUBIC, antialias=True), about

    def embed_clips(self, clips: Sequence[Any]) -> list[torch.Tensor]:
        texts = [self._conversation(INSTRUCTION, {"type": "video"}) for _ in clips]
        videos, about = zip(*clips)
        settings = {"do_resize": False, "do_sample_frames": False, "video_metadata": list(about)}
        inputs = self.processor(text=texts, videos=list(videos), padding=True, return_tensors="pt", **settings)
        return list(self._embed(inputs).split(1))

    def embed_texts(self, texts: list[str]) -> torch.Tensor:
        content = [{"type": "text", "text": text} for text in texts]
        given = [self._conversation(self.options.instruction, each) for each in content]
        shape = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
        return self._embed(self.processor(text=given, **shape))

    def _conversation(self, instruction: str, content: dict[str, str]) -> str:
        """Return the text of a conversation, in which a video is one placeholder."""
        system = {"role": "system", "content": [{"type": "text", "text": instruction}]}
        messages = [system, {"role": "user", "content": [content]}]
        return str(self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _embed(self, inputs: Any) -> torch.Tensor:
        """Return the last hidden states (B, d) at the last tokens; padding is on the right."""
        inputs = inputs.to(self.options.device)
        states: torch.Tensor = self.model(**inputs, use_cache=False).last_hidden_state  # (B, L, d)
        last = inputs["attention_mask"].sum(dim=1) - 1
        return states[torch.arange(len(states), device=states.device), last]


def fitting_size(num_frames: int, height: int, width: int) -> tuple[int, int]:
    """Return the height and width of resized frames, as `fetch_video` and `smart_resize` of qwen-vl-utils."""
    most = max(min(MOST, TOTAL / (num_frames + num_frames % 2) * 2), int(LEAST * 1.05))
    high, wide = (max(SIDE, round(side / SIDE) * SIDE) for side in (height, width))
    if high * wide > most:
        factor = math.sqrt(height * width / most)
        high, wide = (max(SIDE, math.floor(side / factor / SIDE) * SIDE) for side in (height, width))
    elif high * wide < LEAST:
        factor = math.sqrt(LEAST / (height * width))
        high, wide = (math.ceil(side * factor / SIDE) * SIDE for side in (height, width))
    return high, wide


def main() -> int:
    parser = argparse.ArgumentParser(description="Embed the videos and captions of a table by Qwen3-VL-Embedding.")
    add_model(parser)
    help_text = "system message of captions, a sentence (default: %(default)s); videos have the default"
    parser.add_argument("--instruction", default=INSTRUCTION, metavar="TEXT", help=help_text)
    return run(Qwen3VL, parser, "'transformers>=5' torchvision", batch_size=4, precision="bfloat16")


if __name__ == "__main__":
    raise SystemExit(main())
