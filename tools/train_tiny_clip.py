"""Training of the tiny CLIP that the repository ships: `python -m tools.train_tiny_clip --out FOLDER`.

The CLIP has 0.9 M parameters and is trained from random weights on still images of the synthetic scenes and their
captions (CLIP's symmetric contrastive loss, arXiv:2103.00020). Its training data have shapes, colors, sizes, places and
positions. They lack motion and the nouns and cameras of single categories, which a continual method can learn from the
embedded stream. The tokenizer is CLIP's byte-pair encoding with only the merges that the scenes' words need; it can
encode any text.

The command writes weights.safetensors (float16), config.json and bpe.txt.gz.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import logging
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from ctvr.orchestrator.synthetic.cvlm import DATA_SETS, draw_shot
from ctvr.orchestrator.synthetic.drawing import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    Pixels,
    Sprite,
    background,
    draw,
    shade,
)
from ctvr.orchestrator.synthetic.scenes import CATEGORIES, SHARED_NOUNS, draw_scene, pick, with_articles

log = logging.getLogger(__name__)

IMAGE_SIZE, CONTEXT_LENGTH = 64, 32
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
HELD_OUT = 1000  # images for testing only
# A little general English, so that typed queries keep whole words.
ENGLISH = (
    "the a an of to in is and on it with for video film shows show moving moves move object shape person man "
    "woman dog cat car slowly fast quickly up down left right then while before after not no two three one first "
    "last big tiny round someone something thing we see you this that there here clip picture image frames camera "
    "start end begins ends finally later next again still stays stops waits near beside behind under over around "
    "both they its as at from into out by scene bright dark grey brown ball block rises sinks slides spins turns "
    "grows shrinks fades appears vanishes orbits pushes drags splits merges hides "
)


# ---------------------------------------------------------------- still pictures and their captions


def still(rng: Generator, size: int = IMAGE_SIZE) -> tuple[Pixels, str]:
    """Draw a random image (size, size, 3) uint8 of one to three things, and its caption."""
    place = pick(rng, list(BACKGROUNDS))
    picture = background(place, rng, size)
    things: list[tuple[str, Sprite]] = []
    for _ in range(1 if rng.random() < 0.3 else 2 if rng.random() < 0.85 else 3):
        words, sprite = _thing(rng, [other for _, other in things])
        things.append((words, sprite))
        draw(picture, sprite)
    return picture, _describe(rng, [things[i] for i in rng.permutation(len(things))], BACKGROUNDS[place].words)


def _thing(rng: Generator, others: list[Sprite]) -> tuple[str, Sprite]:
    """Draw a sprite at random, and return its words, such as "a large red circle", and the sprite.

    It is apart from the others if twenty tries find room. The words contain the size in 60 % of the draws.
    """
    for _ in range(20):
        x, y = rng.uniform(0.15, 0.85, 2)
        size = pick(rng, list(SIZES))
        radius = 0.2 * SIZES[size] * rng.uniform(0.9, 1.1)
        if all(np.hypot(x - o.x, y - o.y) > 0.85 * (radius + o.radius) for o in others):
            break
    colour, shape = pick(rng, list(COLOURS)), pick(rng, list(SHAPES))
    angle = rng.normal(0, 0.15) if rng.random() < 0.7 else rng.uniform(0, 2 * np.pi)
    alpha = 1.0 if rng.random() < 0.85 else rng.uniform(0.5, 1)
    words = f"{size} {colour} {shape}" if rng.random() < 0.6 else f"{colour} {shape}"
    return f"a {words}", Sprite(shape, x, y, radius, shade(rng, colour), angle, alpha)


def _position(rng: Generator, sprite: Sprite) -> str:
    row = "top" if sprite.y < 0.36 else "bottom" if sprite.y > 0.64 else "middle"
    column = "left" if sprite.x < 0.36 else "right" if sprite.x > 0.64 else "center"
    across = "in the center" if column == "center" else f"on the {column}"
    down = "in the middle" if row == "middle" else f"at the {row}"
    return pick(rng, [across, down, f"at the {row} {column}"])


def _relation(first: Sprite, second: Sprite) -> str:
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) > abs(dy):
        return "to the left of" if dx < 0 else "to the right of"
    return "above" if dy < 0 else "below"


def _describe(rng: Generator, things: list[tuple[str, Sprite]], place: str) -> str:
    if len(things) >= 2 and rng.random() < 0.4:
        (a, first), (b, second) = things[:2]
        text = " and ".join([f"{a} {_relation(first, second)} {b}", *(words for words, _ in things[2:])])
    else:
        names = [f"{words} {_position(rng, s)}" if rng.random() < 0.5 else words for words, s in things]
        text = " and ".join(names)
    form = rng.random()
    if form < 0.4:
        text = f"{text} on {place}"
    elif form < 0.75:
        opening = pick(rng, ["a picture of", "a photo of", "an image with", "there is"])
        text = f"{opening} {text} , {place}"
    elif form < 0.88:
        text = f"{place} with {text}"
    return with_articles(text)


# ---------------------------------------------------------------- the tokenizer


def lexicon() -> set[str]:
    """Return every word that the scenes' captions can contain, and the words of ENGLISH."""
    rng, words = np.random.default_rng(0), set(ENGLISH.split()) | set(SHARED_NOUNS)
    words.update(*(still(rng, 16)[1].split() for _ in range(3000)))
    for index, category in enumerate(CATEGORIES):
        words.update(category.nouns, *(c.split() for _ in range(40) for c in draw_scene(index, rng).captions))
    for index, source in enumerate(DATA_SETS):
        words.update(source.nouns.values())
        for action in range(len(source.actions)):
            takes = [draw_shot(index, action, rng) for _ in range(40)]
            words.update(*(take.caption(n % 2 == 1, rng).split() for n, take in enumerate(takes)))
    return words


def write_bpe(path: Path, words: Iterable[str]) -> int:
    """Write CLIP's merges that occur in these words, in CLIP's order; return their number.

    `open_clip.tokenizer.SimpleTokenizer(bpe_path=..., context_length=32)` reads the file and splits these words as
    with CLIP's own vocabulary. Equal words give equal bytes.
    """
    ranks: dict[tuple[str, str], int] = SimpleTokenizer().bpe_ranks
    used: set[tuple[str, str]] = set()
    for word in words:
        used |= _merges_of(word, ranks)
    text = "#the merges of CLIP's vocabulary that the painted world needs\n"
    text += "\n".join(" ".join(pair) for pair in sorted(used, key=lambda pair: ranks[pair]))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return len(used)


def _merges_of(word: str, ranks: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    parts, used = [*word[:-1], word[-1] + "</w>"], set()
    while len(parts) > 1:
        best = min(itertools.pairwise(parts), key=lambda pair: ranks.get(pair, math.inf))
        if best not in ranks:
            break
        used.add(best)
        merged: list[str] = []
        for part in parts:  # left to right, as the tokenizer does
            if merged and (merged[-1], part) == best:
                merged[-1] += part
            else:
                merged.append(part)
        parts = merged
    return used


# ---------------------------------------------------------------- training


def model_config(vocab_size: int) -> dict[str, Any]:
    """Return keyword arguments of open_clip's CLIP."""
    return {
        "embed_dim": 96,
        "vision_cfg": {"layers": 4, "width": 96, "head_width": 32, "patch_size": 16, "image_size": IMAGE_SIZE},
        "text_cfg": {
            "context_length": CONTEXT_LENGTH, "vocab_size": vocab_size, "width": 96, "heads": 3, "layers": 2,
        },
    }  # fmt: skip


def build(config: dict[str, Any]) -> CLIP:
    """Return an untrained open_clip model; torch's seed determines its weights."""
    return CLIP(embed_dim=config["embed_dim"], vision_cfg=dict(config["vision_cfg"]), text_cfg=dict(config["text_cfg"]))


def normalise(images: Tensor) -> Tensor:
    """Normalize images (B, 3, S, S) uint8 to float: (x / 255 - 0.5) / 0.25."""
    return (images.float() / 255 - MEAN[0]) / STD[0]


def picture_pool(tokenizer: SimpleTokenizer, count: int, seed: int, progress: bool) -> tuple[Tensor, Tensor]:
    """Draw images with captions; return the images (count, 3, S, S) uint8 and the tokens (count, L) int64."""
    rng = np.random.default_rng(seed)
    pairs = [still(rng) for _ in tqdm(range(count), desc="painting", disable=not progress)]
    images = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2).contiguous()
    return images, tokenizer([text for _, text in pairs])


@torch.no_grad()
def recall(model: CLIP, images: Tensor, tokens: Tensor) -> tuple[float, float]:
    """Return text-to-image R@1 and R@5 in percent; every caption searches all images."""
    model.eval()
    gallery = torch.cat([model.encode_image(normalise(part), normalize=True) for part in images.split(250)])
    queries = torch.cat([model.encode_text(part, normalize=True) for part in tokens.split(250)])
    scores = queries @ gallery.T
    better = (scores > scores.diagonal()[:, None]).sum(1)
    model.train()
    return 100 * (better < 1).float().mean().item(), 100 * (better < 5).float().mean().item()


def train(
    config: dict[str, Any],
    images: Tensor,
    tokens: Tensor,
    steps: int,
    seed: int,
    batch_size: int = 128,
    peak_lr: float = 2e-3,
    progress: bool = True,
) -> CLIP:
    """Train a model on images (N, 3, S, S) uint8 and tokens (N, L): AdamW, warm-up and cosine, jittered brightness."""
    torch.manual_seed(seed)
    model = build(config).train()
    matrices = [p for n, p in model.named_parameters() if p.ndim >= 2 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim >= 2 and "embedding" not in n)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak_lr, betas=(0.9, 0.98))
    target = torch.arange(batch_size)
    bar = tqdm(range(steps), desc="training", disable=not progress)
    for step in bar:
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps)) * 0.98 + 0.02
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * min(1.0, (step + 1) / 60) * cosine
        chosen = torch.randint(len(images), (batch_size,))
        contrast, brightness = torch.randn(2, batch_size, 1, 1, 1)
        batch = normalise(images[chosen]) * (1 + 0.15 * contrast) + 0.1 * brightness
        visual, textual, scale = model(batch, tokens[chosen])
        logits = scale.clamp(max=100) * textual @ visual.T
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model.eval()


def save(model: CLIP, folder: Path, config: dict[str, Any], made: dict[str, Any]) -> str:
    """Write weights.safetensors (float16) and config.json; return the sha256 of the weights."""
    state = {k: v.half().contiguous() for k, v in model.state_dict().items() if k != "attn_mask"}
    _replace(folder / "weights.safetensors", lambda path: save_file(state, path))
    digest = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    content = {"model": config, "mean": MEAN, "std": STD, "sha256": digest, **made}
    _replace(
        folder / "config.json", lambda path: path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    )
    return digest


def _replace(path: Path, write: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write(temporary)
    temporary.chmod(0o644)
    os.replace(temporary, path)


def make(folder: Path, steps: int, pool: int, seed: int, progress: bool = True) -> dict[str, Any]:
    """Build the tokenizer, train and save; return the provenance that config.json records."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "bpe.txt.gz", lambda path: write_bpe(path, lexicon()))
    tokenizer = SimpleTokenizer(bpe_path=str(folder / "bpe.txt.gz"), context_length=CONTEXT_LENGTH)
    images, tokens = picture_pool(tokenizer, pool + HELD_OUT, seed=7 + seed, progress=progress)
    config = model_config(tokenizer.vocab_size)
    model = train(config, images[:pool], tokens[:pool], steps, seed, progress=progress)
    r1, r5 = recall(model, images[pool:], tokens[pool:])
    made = {
        "command": f"python -m tools.train_tiny_clip --steps {steps} --pool {pool} --seed {seed} --out FOLDER",
        "seed": seed,
        "held_out": {"pictures": HELD_OUT, "r1": round(r1, 1), "r5": round(r5, 1)},
    }
    save(model, folder, config, made)
    log.info("held-out R@1 %.1f, R@5 %.1f among %d pictures", r1, r5, HELD_OUT)
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny_clip", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write; the shipped one is methods/backbone/tiny_clip"
    )
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps of 128 pictures")
    parser.add_argument("--pool", type=int, default=32000, help="pictures to paint")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    make(options.out, options.steps, options.pool, options.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
