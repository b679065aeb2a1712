"""Training of the tiny CLIP that sees shapes and positions: `python -m tools.train_stem_clip --out FOLDER`.

Its image tower is that of `tools.train_tiny_clip` with a convolutional stem. Training has two stages and takes about
450 s on one core. First, linear classifiers on its features learn the shape, color, size, position and place of one
thing; things become smaller and backgrounds busier during the stage. Then CLIP's contrastive loss trains both towers on
groups of eight images that differ only in one class of words, and on clips that differ only in the direction of motion.
A temporal layer reads the direction and is discarded, so the shipped towers see single frames.

The command prints the accuracy for each class of words on held-out images. The training data do not contain a stream's
nouns, verbs or cameras. The command writes weights.safetensors (float16), config.json and bpe.txt.gz.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor, nn
from tqdm import tqdm

from ctvr.methods.backbone.conv_stem import ConvStem
from ctvr.orchestrator.synthetic import worlds
from ctvr.orchestrator.synthetic.scenes import with_articles
from tools import train_tiny_clip as tiny
from tools.stem_pictures import (
    CLASSES,
    FRAMES,
    Clips,
    Groups,
    Pictures,
    Thing,
    as_images,
    make_clip_pool,
    make_groups,
    paint,
)

log = logging.getLogger(__name__)

IMAGE_SIZE, STEM = tiny.IMAGE_SIZE, (16, 32, 64)
GROUPS = 16  # groups of a batch
HELD_OUT = 500


# ---------------------------------------------------------------- towers


def model_config(vocab_size: int) -> dict[str, Any]:
    """Return keyword arguments of open_clip's CLIP, and the channels of the stem."""
    return tiny.model_config(vocab_size) | {"stem": list(STEM)}


def build(config: dict[str, Any]) -> CLIP:
    """Return an untrained CLIP with the convolutional stem; torch's seed determines its weights."""
    model = tiny.build(config)
    model.visual.conv1 = ConvStem(config["stem"], config["vision_cfg"]["width"])
    return model


def encode_text(model: CLIP, tokens: Tensor) -> Tensor:
    """Compute unit features (B, d) of captions (B, L), cut to the length of the longest caption."""
    tokens = tokens[:, : int(tokens.argmax(dim=1).max()) + 1]
    length = tokens.shape[1]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return F.normalize(x[torch.arange(len(x)), tokens.argmax(dim=1)] @ model.text_projection, dim=-1)


def jitter(images: Tensor) -> Tensor:
    """Normalize uint8 images (B, 3, S, S) and vary their contrast and brightness."""
    contrast, brightness = torch.randn(2, len(images), 1, 1, 1)
    return tiny.normalise(images) * (1 + 0.15 * contrast) + 0.1 * brightness


# ---------------------------------------------------------------- training


@dataclass
class Steps:
    """Optimizer steps of both stages: AdamW with warm-up and a cosine over all of `count` steps."""

    parameters: list[nn.Parameter]
    count: int
    peak: float
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        matrices = [p for p in self.parameters if p.ndim >= 2]
        others = [p for p in self.parameters if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.peak, betas=(0.9, 0.98))

    def take(self, loss: Tensor) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * self.done / self.count)) * 0.98 + 0.02
        for group in self.optimizer.param_groups:
            group["lr"] = self.peak * min(1.0, (self.done + 1) / 100) * cosine
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.done += 1


def learn_to_see(model: CLIP, pool: Pictures, steps: int, bar: Iterator[int]) -> None:
    """Run the first stage: train the image tower with a classifier for each class of words, on ever harder images."""
    width = model.visual.output_dim
    heads = nn.ModuleDict({name: nn.Linear(width, len(values)) for name, values in CLASSES.items()})
    optimizer = Steps([*model.visual.parameters(), *heads.parameters()], 2 * steps, 1e-3)
    for step in range(steps):
        known = int(len(pool.images) * min(1.0, 0.2 + step / (0.8 * steps)))
        chosen = torch.randint(known, (32,))
        features = 10 * F.normalize(model.visual(jitter(pool.images[chosen])), dim=-1)
        weights = dict.fromkeys(CLASSES, 1.0) | {"shape": 2.0}  # the hardest
        weights["place"] = min(1.0, max(0.0, 2.5 * step / steps - 0.5))  # the easiest
        losses = [w * F.cross_entropy(heads[n](features), pool.labels[n][chosen]) for n, w in weights.items()]
        optimizer.take(torch.stack(losses).mean())
        next(bar)
    with torch.no_grad():
        features = 10 * F.normalize(model.visual(tiny.normalise(pool.images[-HELD_OUT:])), dim=-1)
        right = {n: (heads[n](features).argmax(1) == pool.labels[n][-HELD_OUT:]).float().mean().item() for n in CLASSES}
    log.info("classifiers on the hardest pictures of the training: %s", {n: round(100 * r) for n, r in right.items()})


def learn_words(model: CLIP, groups: Groups, clips: Clips, steps: int, bar: Iterator[int]) -> None:
    """Run the second stage: train both towers with CLIP's loss on 16 groups a batch; every fourth batch has clips."""
    time_layer = nn.Linear(FRAMES * model.visual.output_dim, model.visual.output_dim, bias=False)
    nn.init.zeros_(time_layer.weight)
    optimizer = Steps([*model.parameters(), *time_layer.parameters()], steps, 1e-3)
    for step in range(steps):
        if step % 4 == 3:
            chosen = torch.randint(len(clips.frames), (10,))
            frames = model.visual(jitter(clips.frames[chosen].flatten(0, 2))).unflatten(0, (-1, FRAMES))
            both = torch.stack([frames, frames.flip(1)], dim=1).flatten(0, 1)  # (60, T, d): each clip, its reversal
            videos, tokens = both.mean(1) + time_layer(both.flatten(1)), clips.tokens[chosen]
        else:
            chosen = torch.randint(len(groups.images), (GROUPS,))
            videos, tokens = model.visual(jitter(groups.images[chosen].flatten(0, 1))), groups.tokens[chosen]
        logits = (
            model.logit_scale.exp().clamp(max=100)
            * encode_text(model, tokens.flatten(0, 1))
            @ F.normalize(videos, dim=-1).T
        )
        target = torch.arange(len(logits))
        optimizer.take((F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2)
        next(bar)


# ---------------------------------------------------------------- what it sees


@torch.no_grad()
def word_accuracy(model: CLIP, tokenizer: SimpleTokenizer, count: int = HELD_OUT, seed: int = 99) -> dict[str, float]:
    """Return the zero-shot accuracy in percent for each class of words, on images of one thing on a background.

    The choice is between complete captions that differ only in the words of the class. Chance is 100 divided by the
    number of the class's values: shape 10, color 10, size 50, position 11.1, place 5.
    """
    rng = np.random.default_rng(seed)
    things = [Thing.draw(rng) for _ in range(count)]
    images = as_images([paint(t, rng) for t in things])
    model.eval()
    videos = torch.cat([model.encode_image(tiny.normalise(part), normalize=True) for part in images.split(250)])
    found = {}
    for name, values in CLASSES.items():
        shown = [Thing(**vars(t) | {name: value}).words(set(CLASSES)) for t in things for value in range(len(values))]
        tokens = tokenizer([with_articles(text) for text in shown])
        texts = torch.cat([encode_text(model, part) for part in tokens.split(500)]).unflatten(0, (count, -1))
        chosen = (texts @ videos[:, :, None])[..., 0].argmax(dim=1)
        right = chosen == torch.tensor([getattr(t, name) for t in things])
        found[name] = round(100 * right.float().mean().item(), 1)
    return found


# ---------------------------------------------------------------- the command


def lexicon() -> set[str]:
    """Return every word of the captions of pre-training and of the streams' worlds, and common English words."""
    phrases = [value for values in CLASSES.values() for value in values]
    phrases += [*worlds.NOUNS, *worlds.SIGNS, *worlds.VERBS, *worlds.NAMES, tiny.ENGLISH, "moves goes moving thing an"]
    phrases += [word for pair in worlds.MOVES for word in pair]
    return {word for phrase in phrases for word in phrase.split()}


def make(folder: Path, first: int, second: int, pool: int, seed: int, progress: bool = True) -> dict[str, Any]:
    """Build the tokenizer, train and save; return the provenance that config.json records."""
    started = time.process_time()
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_bpe(folder / "bpe.txt.gz", lexicon())
    tokenizer = SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=tiny.CONTEXT_LENGTH)
    rng = np.random.default_rng(7 + seed)
    config = model_config(tokenizer.vocab_size)
    torch.manual_seed(seed)
    model = build(config).train()
    bar = iter(tqdm(range(first + second + 1), desc="training", disable=not progress, mininterval=20))
    next(bar)
    learn_to_see(model, Pictures.make(pool, rng, easiest=1.0), first, bar)
    log.info("after the first stage: %.0f CPU-s", time.process_time() - started)
    learn_words(model, make_groups(tokenizer, pool // 4, rng), make_clip_pool(tokenizer, pool // 20, rng), second, bar)
    accuracy = word_accuracy(model, tokenizer)
    command = f"python -m tools.train_stem_clip --first {first} --second {second} --pool {pool} --seed {seed}"
    made = {"command": f"{command} --out FOLDER", "seed": seed, "held_out": {"pictures": HELD_OUT, **accuracy}}
    tiny.save(model, folder, config, made)
    for name, value in accuracy.items():
        log.info("%-9s %5.1f %% right of %d (chance %.1f)", name, value, HELD_OUT, 100 / len(CLASSES[name]))
    log.info("%.0f CPU-s", time.process_time() - started)
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.train_stem_clip", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--first", type=int, default=3000, help="steps of 32 pictures in the first stage")
    parser.add_argument("--second", type=int, default=1200, help="steps of 128 pictures in the second stage")
    parser.add_argument("--pool", type=int, default=15000, help="pictures to paint for the first stage")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make(options.out, options.first, options.second, options.pool, options.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
