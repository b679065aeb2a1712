"""A CLIP backbone with named places for adapters.

An open_clip model is taken apart once, in `Clip.__init__`, into the same network with *seams*: places
in every block where a method may act without touching CLIP's weights. Seams are handed over with each
call, so one backbone serves a student and its teacher, and a backbone never changes.

One block, where <name> marks a seam (all of them do nothing by default)::

    x = <before>(x)
    y = LN1(x);  q, k, v = split <qkv>(W y);  q, k, v = <q>(q), <k>(k), <v>(v)
    a = <beside>(y, <out>(W_o attention(q, k, v)))
    x = <between>(x + a)
    x = <after>(x + <mlp>(MLP(LN2 x)))

Shapes: B videos or captions, T frames, N tokens of one frame, L tokens of one caption, G attention
groups (B*T frames, or B captions), D width of the tower, d width of the joint embedding, H heads.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from open_clip.tokenizer import SimpleTokenizer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

TINY = "tiny-clip"
TINY_FOLDER = Path(__file__).parent / "tiny_clip"


@dataclass
class TokenState:
    """What a seam may know of the tokens in flight. Made anew by every forward, so calls may interleave."""

    batch: int  # B videos or captions
    frames: int = 1  # T; 1 for text
    classes: int = 1  # leading class tokens of a group: one of each frame that the group holds
    protected: int = 1  # leading tokens of a group that no reducer may move (class tokens, prompts)
    layer: int = 0
    start: int = 0  # blocks that these tokens have passed already: they are stored ones (`VisionTower.prefix`)
    sizes: Tensor | None = None  # (G, N, 1) patches that each token stands for; None = one each
    proportional: bool = True  # attention counts a token once for each patch it stands for (ToMe, eq. 1)
    eot: Tensor | None = None  # (B,) position of the end-of-text token; None for images
    log: list[tuple[int, int, int]] = field(default_factory=list)
    # per block: attention groups of one video, tokens of a group in attention, tokens of a group in the MLP
    extra_macs: int = 0  # multiply-adds of the whole batch that seams have added to CLIP's own; a seam adds its own


@dataclass(frozen=True)
class Attended:
    """What `between` may ask of the attention that has just run (see `AttentionNeeds`)."""

    keys: Tensor | None = None  # (G, N, D/H) keys averaged over heads
    class_row: Tensor | None = None  # (G, N) attention that the class token pays, averaged over heads


Seam = Callable[..., Tensor]


@dataclass(frozen=True)
class BlockSeams:
    """The additions of one block; None leaves a place as CLIP made it.

    qkv, q, k, v, out: (input, projected, state) -> projected; qkv (G, N, 3D) acts before the other three.
    beside: (y, attention, state) -> attention. before, after: (x, state) -> x.
    between: (x, attended, state) -> x. mlp: (y, output, state) -> output.
    `wants_keys` and `wants_class_row` say what `between` reads of the attention. `needs_alignment`: token i
    of neighbouring frames must be the same place of the image; `breaks_alignment`: from here on it is not.
    """

    before: Seam | None = None
    qkv: Seam | None = None
    q: Seam | None = None
    k: Seam | None = None
    v: Seam | None = None
    out: Seam | None = None
    beside: Seam | None = None
    between: Seam | None = None
    mlp: Seam | None = None
    after: Seam | None = None
    wants_keys: bool = False
    wants_class_row: bool = False
    needs_alignment: bool = False
    breaks_alignment: bool = False


Seams = Sequence[BlockSeams | None]
_NO_SEAMS = BlockSeams()


class Attention(nn.Module):
    """Multi-head self-attention with open_clip's fused weights and one seam for each projection."""

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        if source.in_proj_weight is None or source.in_proj_bias is None:
            raise ValueError("this backbone's attention has no fused q, k, v weights; use a plain open_clip ViT.")
        self.heads = source.num_heads
        self.in_weight = nn.Parameter(source.in_proj_weight.detach().clone())  # (3D, D)
        self.in_bias = nn.Parameter(source.in_proj_bias.detach().clone())  # (3D,)
        self.out = nn.Linear(source.embed_dim, source.embed_dim)
        self.out.load_state_dict(source.out_proj.state_dict())

    def project(self, y: Tensor, seams: BlockSeams, state: TokenState) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of tokens y (G, N, D), each (G, N, D)."""
        qkv = F.linear(y, self.in_weight, self.in_bias)
        if seams.qkv is not None:
            qkv = seams.qkv(y, qkv, state)
        q, k, v = qkv.chunk(3, dim=-1)
        if seams.q is not None:
            q = seams.q(y, q, state)
        if seams.k is not None:
            k = seams.k(y, k, state)
        if seams.v is not None:
            v = seams.v(y, v, state)
        return q, k, v

    def heads_first(self, x: Tensor) -> Tensor:
        """(G, N, D) -> (G, H, N, D/H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, y: Tensor, seams: BlockSeams, state: TokenState, causal: bool = False) -> tuple[Tensor, Attended]:
        """Attend within each group. Takes y (G, N, D), returns (G, N, D) and what `between` asked for."""
        q, k, v = (self.heads_first(x) for x in self.project(y, seams, state))
        bias = None  # (G, 1, 1, N)
        if state.sizes is not None and state.proportional:
            bias = state.sizes.log()[:, None, None, :, 0].to(q.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        merged = mixed.transpose(1, 2).flatten(2)
        out = self.out(merged)
        if seams.out is not None:
            out = seams.out(merged, out, state)
        keys = k.mean(dim=1) if seams.wants_keys else None
        row = None
        if seams.wants_class_row:
            logits = (q[:, :, :1] @ k.mT)[:, :, 0] / math.sqrt(q.shape[-1])  # (G, H, N)
            row = (logits if bias is None else logits + bias[:, :, 0]).softmax(dim=-1).mean(dim=1)
        return out, Attended(keys, row)


class Block(nn.Module):
    """One pre-norm residual block of either tower, with the seams of this module's header."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.mlp = source.ln_1, source.ln_2, source.mlp
        self.ls_1, self.ls_2 = source.ls_1, source.ls_2
        self.attn = Attention(source.attn)  # type: ignore[arg-type]

    def forward(self, x: Tensor, seams: BlockSeams | None, state: TokenState, causal: bool = False) -> Tensor:
        seams = seams or _NO_SEAMS
        if seams.before is not None:
            x = seams.before(x, state)
        attended_groups, attended_tokens = len(x) // state.batch, x.shape[1]
        y = self.ln_1(x)
        a, attended = self.attn(y, seams, state, causal)
        if seams.beside is not None:
            a = seams.beside(y, a, state)
        x = x + self.ls_1(a)
        if seams.between is not None:
            x = seams.between(x, attended, state)
        state.log.append((attended_groups, attended_tokens, x.shape[1]))
        y = self.ln_2(x)
        m = self.mlp(y)
        if seams.mlp is not None:
            m = seams.mlp(y, m, state)
        x = x + self.ls_2(m)
        return x if seams.after is None else seams.after(x, state)


_RECORDED: ContextVar[list[TokenState] | None] = ContextVar("recorded", default=None)


@contextmanager
def record_tokens() -> Iterator[list[TokenState]]:
    """Keep the state of every pass through a vision tower made inside `with`; its `log` counts the tokens."""
    states: list[TokenState] = []
    token = _RECORDED.set(states)
    try:
        yield states
    finally:
        _RECORDED.reset(token)


def run_blocks(blocks: nn.ModuleList, x: Tensor, seams: Seams | None, state: TokenState, causal: bool) -> Tensor:
    """Pass tokens x (G, N, D) through a tower.

    Raises:
        ValueError: if `seams` has not one entry for each block, or one acts in a block that was passed already.
    """
    if seams is not None and len(seams) != len(blocks):
        raise ValueError(f"got seams for {len(seams)} blocks, the tower has {len(blocks)}.")
    for layer, block in enumerate(blocks):
        if layer < state.start:
            if seams is not None and seams[layer] not in (None, _NO_SEAMS):
                raise ValueError(f"a seam acts in block {layer}, but stored tokens enter at block {state.start}.")
            continue
        state.layer = layer
        x = block(x, None if seams is None else seams[layer], state, causal)
    return x


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
        state = TokenState(batch, num_frames)
        recorded = _RECORDED.get()
        if recorded is not None:
            recorded.append(state)
        return x, state

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

    def hidden(self, tokens: Tensor, seams: Seams | None = None) -> tuple[Tensor, Tensor]:
        """Every token's joint embedding (B, L', d), not normalised, and the end-of-text positions (B,)."""
        x, state = self.embed(tokens)
        x = run_blocks(self.blocks, x, seams, state, causal=True)
        assert state.eot is not None
        return self.ln_final(x) @ self.proj, state.eot

    def forward(self, tokens: Tensor, seams: Seams | None = None) -> Tensor:
        """One joint embedding for each caption: (B, L) int64 -> (B, d), not normalised."""
        x, state = self.embed(tokens)
        x = run_blocks(self.blocks, x, seams, state, causal=True)
        return self.ln_final(x[torch.arange(len(x), device=x.device), state.eot]) @ self.proj


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


def load_backbone(name: str, weights: str = "openai", seed: int = 0) -> Clip:
    """Load an open_clip model as a backbone.

    Args:
        name: `tiny-clip` (shipped with this package) or an open_clip architecture such as
            `ViT-B-32-quickgelu`. OpenAI's weights need the quickgelu variants.
        weights: `shipped` (tiny-clip only), an open_clip tag such as `openai` (downloaded by
            open_clip), a local file (.safetensors, .pt), or `random`.
        seed: of `random` weights.

    Raises:
        ValueError: for an unknown name or tag, or a file that does not fit the architecture.
        FileNotFoundError: if `weights` looks like a path and there is no such file.
    """
    if name == TINY:
        source, tokenize, mean, std = _tiny_clip(weights, seed)
    else:
        source, tokenize, mean, std = _open_clip(name, weights, seed)
    return Clip(source, tokenize, mean, std, name).eval()


def _tiny_clip(weights: str, seed: int) -> tuple[nn.Module, Callable[[list[str]], Tensor], list[float], list[float]]:
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
        if sha256(file.read_bytes()).hexdigest() != config["sha256"]:
            raise ValueError(f"{file}: damaged (its digest is not the one in config.json). Install the package again.")
        _load_weights(source, file)
    elif weights != "random":
        _load_weights(source, Path(weights))
    return source, tokenizer, config["mean"], config["std"]


def _open_clip(
    name: str, weights: str, seed: int
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
        _load_weights(source, Path(weights))
    return source, open_clip.get_tokenizer(name), source.visual.image_mean, source.visual.image_std


def _is_path(weights: str) -> bool:
    return "/" in weights or weights.endswith((".safetensors", ".pt", ".pth", ".bin"))


def _load_weights(source: nn.Module, file: Path) -> None:
    """Read a state dict into an open_clip model; nothing but tensors is ever unpickled."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such weights file.")
    try:
        if file.suffix == ".safetensors":
            state: dict[str, Any] = dict(load_file(file))
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        RuntimeError,
        ValueError,
        EOFError,
        KeyError,
        SafetensorError,
        pickle.UnpicklingError,
        struct.error,
    ) as e:
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        raise ValueError(
            f"{file}: damaged or no weights file ({reason[:120]}). Give a .safetensors or .pt file."
        ) from e
    if not isinstance(state, dict):
        raise ValueError(f"{file}: holds a {type(state).__name__}, no dictionary of weights.")
    state = state.get("state_dict", state)
    state = {name.removeprefix("module."): value for name, value in state.items()}
    state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    missing, unexpected = source.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("attn_mask")]
    if missing or unexpected:
        raise ValueError(
            f"{file}: does not fit the architecture ({len(missing)} weights missing, {len(unexpected)} unknown, "
            f"for example {(missing + unexpected)[0]}). Check backbone.name."
        )
