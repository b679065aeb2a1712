"""A CLIP backbone: open_clip's two towers, rebuilt of blocks with seams (blocks.py), and how it is loaded.

An open_clip model is taken apart once, in `Clip.__init__`, into the same network with named places where a
method may act. What a method needs of the seams can be imported from here too.

Shapes: B videos or captions, T frames, N tokens of one frame, L tokens of one caption, G attention
groups (B*T frames, or B captions), D width of the tower, d width of the joint embedding, H heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor, nn

from methods.backbone.blocks import (
    Attended,
    Attention,
    Block,
    BlockSeams,
    Seam,
    Seams,
    TokenState,
    record,
    record_tokens,
    run_blocks,
)
from methods.backbone.weights import read_weights

__all__ = [
    "TINY",
    "TINY_FOLDER",
    "Attended",
    "Attention",
    "Block",
    "BlockSeams",
    "Clip",
    "Seam",
    "Seams",
    "TextTower",
    "TokenState",
    "VisionTower",
    "load_backbone",
    "record",
    "record_tokens",
    "run_blocks",
]

TINY = "tiny-clip"
TINY_FOLDER = Path(__file__).parent / "tiny_clip"


class VisionTower(nn.Module):
    """CLIP's ViT over the frames of a video."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        if not isinstance(source, open_clip.transformer.VisionTransformer) or source.attn_pool is not None:
            raise ValueError(
                f"the image tower is a {type(source).__name__}; only plain open_clip ViT towers have seams. "
                "Use a backbone such as ViT-B-32-quickgelu."
            )
        if source.pool_type != "tok" or source.final_ln_after_pool:
            raise ValueError(
                "the image tower does not pool its class token; use a backbone such as ViT-B-32-quickgelu."
            )
        self.conv1, self.ln_pre, self.ln_post = source.conv1, source.ln_pre, source.ln_post
        self.class_embedding = source.class_embedding  # (D,)
        self.positional_embedding = source.positional_embedding  # (N, D)
        self.proj = source.proj  # (D, d)
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.width = int(self.class_embedding.shape[0])
        self.heads = int(source.transformer.resblocks[0].attn.num_heads)
        self.num_tokens = int(self.positional_embedding.shape[0])  # N, the class token included
        self.entry = 0  # block that stored tokens enter

    def embed(self, frames: Tensor) -> tuple[Tensor, TokenState]:
        """Frames (B, T, 3, H, W) as tokens (B*T, N, D), the class token first, after the first LayerNorm.

        Stored tokens (B, T, N, D), as `prefix` made them, pass as they are and enter block `entry`.
        """
        batch, num_frames = frames.shape[:2]
        if frames.ndim == 4:
            return frames.flatten(0, 1), TokenState(batch, num_frames, start=self.entry)
        patches = self.conv1(frames.flatten(0, 1)).flatten(2).mT  # (G, N-1, D)
        x = torch.cat([self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1), patches], dim=1)
        x = self.ln_pre(x + self.positional_embedding.to(x.dtype))
        return x, record(TokenState(batch, num_frames))

    @torch.no_grad()
    def prefix(self, frames: Tensor, blocks: int) -> Tensor:
        """The tokens that enter block `blocks` without any seam: (B, T, 3, H, W) -> (B, T, N, D).

        Behind the last block only class tokens are read, and N is 1.
        """
        x, state = self.embed(frames)
        x = run_blocks(self.blocks[:blocks], x, None, state, causal=False)  # type: ignore[arg-type]
        if blocks == len(self.blocks):
            x = x[:, : state.classes]
        return x.unflatten(0, frames.shape[:2])

    def read(self, x: Tensor) -> Tensor:
        """Class tokens x (..., D) as joint embeddings (..., d), not normalised."""
        return self.ln_post(x) @ self.proj

    def forward(self, frames: Tensor, seams: Seams | None = None) -> Tensor:
        """One joint embedding for each frame: (B, T, 3, H, W), or stored tokens, -> (B, T, d), not normalised."""
        num_frames = frames.shape[1]
        x, state = self.embed(frames)
        x = run_blocks(self.blocks, x, seams, state, causal=False)
        return self.read(x[:, : state.classes]).reshape(state.batch, num_frames, -1)


class TextTower(nn.Module):
    """CLIP's causal transformer over a caption."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        if (
            not hasattr(source, "transformer")
            or getattr(source, "text_pool_type", getattr(source, "pool_type", "argmax")) != "argmax"
        ):
            raise ValueError("the text tower does not pool at the end-of-text token; use a CLIP text tower.")
        self.token_embedding = source.token_embedding
        self.positional_embedding = source.positional_embedding  # (context, D)
        self.ln_final = source.ln_final
        self.proj = source.text_projection  # (D, d)
        if not isinstance(self.proj, nn.Parameter):
            raise ValueError("the text tower's projection is no plain matrix; use a CLIP text tower.")
        self.blocks = nn.ModuleList(Block(block) for block in source.transformer.resblocks)
        self.width = int(self.positional_embedding.shape[1])
        self.heads = int(source.transformer.resblocks[0].attn.num_heads)
        self.context_length = int(self.positional_embedding.shape[0])

    def embed(self, tokens: Tensor) -> tuple[Tensor, TokenState]:
        """Token ids (B, L) as embeddings (B, L', D), L' the longest caption: attention is causal, pads come last."""
        eot = tokens.argmax(dim=-1)  # the first maximum: the end-of-text id is the largest of the vocabulary
        tokens = tokens[:, : int(eot.max()) + 1]
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        return x, TokenState(len(tokens), eot=eot, protected=tokens.shape[1])

    def read(self, x: Tensor, state: TokenState) -> Tensor:
        """Tokens x (B, L', D) after all blocks as joint embeddings (B, d) of their captions, not normalised."""
        return self.ln_final(x[torch.arange(len(x), device=x.device), state.eot]) @ self.proj

    def hidden(self, tokens: Tensor, seams: Seams | None = None) -> tuple[Tensor, Tensor]:
        """Every token's joint embedding (B, L', d), not normalised, and the end-of-text positions (B,)."""
        x, state = self.embed(tokens)
        x = run_blocks(self.blocks, x, seams, state, causal=True)
        assert state.eot is not None
        return self.ln_final(x) @ self.proj, state.eot

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        """One joint embedding for each caption: (B, L) int64 -> (B, d), not normalised."""
        x, state = self.embed(tokens)
        return self.read(run_blocks(self.blocks, x, seams, state, causal=True), state)


class Clip(nn.Module):
    """The pre-trained pair of towers that every method starts from."""

    def __init__(
        self,
        source: Any,
        tokenize: Callable[[list[str]], Tensor],
        mean: Sequence[float],
        std: Sequence[float],
        name: str = "",
    ) -> None:
        super().__init__()
        self.name = name
        self.vision = VisionTower(source.visual)  # type: ignore[arg-type]
        self.text = TextTower(source.text if hasattr(source, "text") else source)  # type: ignore[arg-type]
        self.logit_scale = nn.Parameter(source.logit_scale.detach().clone().float())  # log of 1 / temperature
        self.tokenize = tokenize
        self.mean, self.std = tuple(mean), tuple(std)
        self.embed_dim = int(self.vision.proj.shape[1])
        size = source.visual.image_size  # type: ignore[union-attr]
        self.image_size = int(size[0] if isinstance(size, (tuple, list)) else size)  # type: ignore[index, arg-type]


def load_backbone(name: str, weights: str = "openai", seed: int = 0, sha256: str = "") -> Clip:
    """Load an open_clip model as a backbone.

    Args:
        name: `tiny-clip` (shipped with this package) or an open_clip architecture such as
            `ViT-B-32-quickgelu`. OpenAI's weights need the quickgelu variants.
        weights: `shipped` (tiny-clip only), an open_clip tag such as `openai` (downloaded by
            open_clip), a local file (.safetensors, .pt), or `random`.
        seed: of `random` weights.
        sha256: of the local file; needed for a pickle (anything but .safetensors).

    Raises:
        ValueError: for an unknown name or tag, a file that does not fit the architecture, or a pickle that is not
            the one that `sha256` names.
        FileNotFoundError: if `weights` looks like a path and there is no such file.
    """
    if sha256 and not _is_path(weights):
        raise ValueError(f"sha256 names a file, and weights={weights!r} is none. Leave it out.")
    if name == TINY:
        source, tokenize, mean, std = _tiny_clip(weights, seed, sha256)
    else:
        source, tokenize, mean, std = _open_clip(name, weights, seed, sha256)
    return Clip(source, tokenize, mean, std, name).eval()


def _tiny_clip(
    weights: str, seed: int, sha256: str
) -> tuple[nn.Module, Callable[[list[str]], Tensor], list[float], list[float]]:
    if weights not in {"shipped", "random"} and not _is_path(weights):
        raise ValueError(f"tiny-clip has no weights called {weights!r}. Write shipped, random or a file.")
    config = json.loads((TINY_FOLDER / "config.json").read_text())
    tokenizer = SimpleTokenizer(
        bpe_path=str(TINY_FOLDER / "bpe.txt.gz"), context_length=config["model"]["text_cfg"]["context_length"]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = open_clip.CLIP(**config["model"])
    if weights == "shipped":
        file = TINY_FOLDER / "weights.safetensors"
        if hashlib.sha256(file.read_bytes()).hexdigest() != config["sha256"]:
            raise ValueError(f"{file}: damaged (its digest is not the one in config.json). Install the package again.")
        _load_weights(source, file)
    elif weights != "random":
        _load_weights(source, Path(weights), sha256)
    return source, tokenizer, config["mean"], config["std"]


def _open_clip(
    name: str, weights: str, seed: int, sha256: str
) -> tuple[nn.Module, Callable[[list[str]], Tensor], list[float], list[float]]:
    if name not in open_clip.list_models():
        raise ValueError(f"no backbone called {name!r}. Write tiny-clip or one of open_clip.list_models().")
    is_tag = weights != "random" and not _is_path(weights)
    if is_tag and weights not in open_clip.list_pretrained_tags_by_model(name):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(name)) or "none"
        raise ValueError(f"{name} has no weights called {weights!r}. Write random, a file, or one of: {tags}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            source = open_clip.create_model(name, pretrained=weights if is_tag else None)
        except (OSError, RuntimeError) as error:
            if not is_tag:
                raise
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"the weights {weights!r} of {name} could not be fetched ({reason}). Give a local file instead."
            ) from error
    if _is_path(weights):
        _load_weights(source, Path(weights), sha256)
    return source, open_clip.get_tokenizer(name), source.visual.image_mean, source.visual.image_std


def _is_path(weights: str) -> bool:
    return "/" in weights or weights.endswith((".safetensors", ".pt", ".pth", ".bin"))


def _load_weights(source: nn.Module, file: Path, sha256: str = "") -> None:
    """Read a state dict into an open_clip model; nothing but tensors is ever unpickled (see foreign.py)."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such weights file.")
    state = read_weights(file, sha256)
    state = {name.removeprefix("module."): value for name, value in state.items()}
    state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    missing, unexpected = source.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("attn_mask")]
    if missing or unexpected:
        raise ValueError(
            f"{file}: does not fit the architecture ({len(missing)} weights missing, {len(unexpected)} unknown, "
            f"for example {(missing + unexpected)[0]}). Check backbone.name."
        )
