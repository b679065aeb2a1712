"""Tiny backbones of users: an architecture in a file, and a package with two entry points `ctvr.backbones`."""

import copy
import json
from pathlib import Path

CODE = '''
import torch
from open_clip.transformer import ResidualAttentionBlock
from timm.models.vision_transformer import Block
from torch import nn

SIZE, WIDTH, WORDS = 32, 16, 24


class Bag(nn.Module):
    """An encoder without blocks: a linear map of pixels, and a mean of the vectors of bytes."""

    image_size = SIZE
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def __init__(self):
        super().__init__()
        self.pixels, self.words = nn.Linear(3 * SIZE**2, WIDTH), nn.Embedding(257, WIDTH)

    def encode_image(self, images):
        return self.pixels(images.flatten(1))

    def encode_text(self, ids):
        return self.words(ids).mean(dim=1)

    def tokenize(self, captions):
        ids = torch.zeros(len(captions), WORDS, dtype=torch.int64)
        for row, caption in zip(ids, captions):
            found = torch.tensor(list(caption.encode()[:WORDS])) + 1
            row[: len(found)] = found
        return ids


class Hooked(Bag):
    """An encoder with hook points in the blocks of both towers, and without a class token."""

    def __init__(self):
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, WIDTH, 8, 8), nn.Linear(WIDTH, WIDTH)
        self.image_blocks = nn.ModuleList(ResidualAttentionBlock(WIDTH, 2) for _ in range(3))
        self.text_blocks = nn.ModuleList(Block(WIDTH, 2, qkv_bias=True) for _ in range(2))

    def embed_image(self, images):
        return self.patches(images).flatten(2).mT

    def pool_image(self, tokens):
        return self.out(tokens.mean(dim=1))

    def encode_image(self, images):
        return self.pool_image(self.run(self.image_blocks, self.embed_image(images)))

    def embed_text(self, ids):
        return self.words(ids)

    def pool_text(self, tokens, ids):
        return tokens.mean(dim=1)

    def encode_text(self, ids):
        return self.pool_text(self.run(self.text_blocks, self.embed_text(ids)), ids)

    def run(self, blocks, tokens):
        for block in blocks:
            tokens = block(tokens)
        return tokens
'''
VISION = {"image_size": 160, "timm_model_name": "test_vit", "timm_proj": "none", "timm_pool": "map"}
SIGLIP = {
    "embed_dim": 64,
    "custom_text": True,
    "vision_cfg": VISION,
    "text_cfg": {
        "context_length": 12,
        "width": 48,
        "heads": 2,
        "layers": 2,
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
        "norm_kwargs": {"eps": 1e-6},
    },
}
CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 8, "layers": 3},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3},
}


def write_package(folder: Path, code: str = CODE, name: str = "tiny_towers", **points: str) -> None:
    """Write an installed package with entry points `ctvr.backbones`: name -> attribute of its module."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = "".join(f"{point} = {name}:{place}\n" for point, place in points.items())
    (info / "entry_points.txt").write_text(f"[ctvr.backbones]\n{lines}")


def write_clip(folder: Path) -> None:
    """Write a folder with an architecture in open_clip's form and random weights."""
    import open_clip
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(open_clip.CLIP(**copy.deepcopy(CLIP)).state_dict(), folder / "open_clip_model.safetensors")
    write_json(folder / "open_clip_config.json", {"model_cfg": CLIP})


def write_json(file: Path, config: object) -> str:
    file.write_text(json.dumps(config))
    return str(file)
