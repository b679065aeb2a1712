"""Trainable towers over imported features, in place of CLIP's: another model computed the vectors that they read.

A tower is one block of CLIP's form (blocks.py) and a projection P to the joint space. It starts as the identity::

    y = x + W_o W_v x,  z = y + W_2 relu(W_1 y),  z P / 4         W_v = W_o = I, W_1 = [I; -I], W_2 = [I, -I]

A vector attends only to itself, and relu(y) - relu(-y) = y, so z P / 4 and x P are bit-identical. Adapters at the hook
points (seams) of the block, full fine-tuning, momentum copies and teachers work as they do with CLIP. If a method reads
a part that only CLIP has, `NoSuchPart` is raised and names the part.

Captions keep their width d'. If it differs from the width d of videos, the text tower starts as a ridge regression
(x - c) P, fitted to the pairs of the first task (`orchestrator/data/imported_features.py`). Otherwise it starts as the
identity.

Shapes: B videos or captions, T frames, L vectors of a caption, N captions, d width of a video's vector, d' width of a
caption's vector, m = d width of the joint embedding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ctvr.methods.backbone.architectures import VECTORS
from ctvr.methods.backbone.blocks import Block, Seams, TokenState, run_blocks
from ctvr.methods.backbone.clip import Clip, TextTower, VisionTower
from ctvr.methods.settings import SettingError

GAIN = 4.0  # factor by which a new block multiplies a vector
SCALE = 1 / 0.07  # initial exp(logit_scale), as CLIP's before pre-training


class NoSuchPart(AttributeError, SettingError):
    """Error: a method reads a part of CLIP that towers over imported features lack."""

    def __init__(self, name: str) -> None:
        fault = f"it uses `{name}` of CLIP's towers, which imported features do not have"
        SettingError.__init__(self, fault, "Use head_linear or another head.")


class _Parts(nn.Module):
    """A module that raises `NoSuchPart` for an attribute that it lacks."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise NoSuchPart(name) from None


class VideoVectors(VisionTower, _Parts):
    """The vision tower: vectors (B, T, 1, d) -> (B, T, m)."""

    is_plain = False

    def __init__(self, width: int) -> None:
        nn.Module.__init__(self)
        self.width = self.embed_dim = width
        self.heads, self.num_tokens, self.entry, self.takes_features = 1, 1, 0, True
        self.blocks = nn.ModuleList([scaling_block(width)])
        self.proj = nn.Parameter(torch.eye(width) / GAIN)

    def vectors(self, frames: Tensor) -> Tensor:
        """Return the imported vectors, (B, T, 1, d) -> (B, T, d)."""
        return frames[:, :, 0]

    def read(self, x: Tensor) -> Tensor:
        """Project vectors x (..., d) to joint embeddings (..., m), not normalized."""
        return x @ self.proj


class CaptionTable(nn.Module):
    """Table of the imported vectors of all captions, which do not change, followed by vectors of other texts.

    Copies of a tower share it.
    """

    rows: Tensor
    starts: Tensor
    center: Tensor | None

    def __init__(self, rows: Tensor, starts: Tensor, center: Tensor | None = None) -> None:
        """Store the table.

        Args:
            rows: (R, d') vectors of all captions, from which `center` is already subtracted.
            starts: (N + 1,) int64; caption i has the vectors `rows[starts[i] : starts[i + 1]]`.
            center: (d',), which is subtracted from the vectors of other texts; a saved model contains it.
        """
        super().__init__()
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("center", center)
        self.captions = len(starts) - 1
        self.longest = int((starts[1:] - starts[:-1]).max()) if len(starts) > 1 else 1

    def subtract(self, center: Tensor) -> None:
        """Subtract `center` (d',) from all rows now, and from vectors of other texts when `hold` receives them."""
        self.rows -= center
        self.center = center

    def hold(self, vectors: Tensor) -> Tensor:
        """Store vectors (Q, d') of texts that are not captions, in place of earlier ones; return their indices (Q,)."""
        vectors = vectors.to(self.rows)
        last = int(self.starts[self.captions])
        if len(self.rows) - last < len(vectors):
            self.rows = F.pad(self.rows[:last], (0, 0, 0, len(vectors)))
        self.rows[last : last + len(vectors)] = vectors if self.center is None else vectors - self.center
        number = torch.arange(1, len(vectors) + 1, device=self.starts.device)
        self.starts = torch.cat([self.starts[: self.captions + 1], last + number])
        return self.captions + number - 1

    def __deepcopy__(self, memo: dict[int, Any]) -> CaptionTable:
        return self

    def forward(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Return zero-padded vectors (B, L, d') of the captions with indices (B,), and their counts (B,)."""
        first = self.starts[captions]
        count = self.starts[captions + 1] - first
        place = torch.arange(self.longest, device=captions.device)
        index = (first[:, None] + place).clamp(max=len(self.rows) - 1)
        return self.rows[index] * (place < count[:, None])[..., None], count


@dataclass
class CaptionState(TokenState):
    """Token state of captions with several vectors each; every vector is a separate attention group."""

    counts: Tensor | None = None  # (B,) vectors of each caption
    longest: int = 1  # L


class CaptionVectors(TextTower, _Parts):
    """The text tower: indices (B, 1) of captions in a `CaptionTable` -> (B, m)."""

    causal = False

    def __init__(self, table: CaptionTable, width: int) -> None:
        """Build the tower over `table`; `width` is m."""
        nn.Module.__init__(self)
        self.table = table
        self.width, self.heads, self.context_length = int(table.rows.shape[1]), 1, table.longest + 2
        self.blocks = nn.ModuleList([scaling_block(self.width)])
        self.proj = nn.Parameter(torch.eye(self.width, width) / GAIN)

    def vectors(self, tokens: Tensor) -> Tensor:
        """Return the mean of each caption's imported vectors, (B, 1) -> (B, d')."""
        rows, counts = self.table(tokens[:, 0])
        return rows.sum(dim=1) / counts[:, None]

    def embed(self, tokens: Tensor) -> tuple[Tensor, TokenState]:
        """Return the vectors of captions (B, 1) as attention groups of one token (B * L, 1, d'), and their state."""
        rows, counts = self.table(tokens[:, 0])
        x = rows.flatten(0, 1)[:, None]
        end = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return x, CaptionState(len(x), eot=end, counts=counts, longest=rows.shape[1])

    def read(self, x: Tensor, state: TokenState) -> Tensor:
        """Project vectors x (B * L, 1, d') and average them for each caption: (B, m), not normalized."""
        if not isinstance(state, CaptionState):  # a mixup of captions with one vector each (layers/replay/mixup.py)
            return self.project(x)[:, 0]
        words, counts = self._words(x, state)
        return words.sum(dim=1) / counts[:, None]

    @torch.no_grad()
    def start_from(self, weight: Tensor, center: Tensor) -> None:
        """Set the tower to the map (x - center) weight, with weight (d', m) and center (d',)."""
        self.proj.copy_(weight / GAIN)
        self._bias().copy_(-GAIN * center)

    def start(self) -> tuple[Tensor, Tensor]:
        """Return the tower's initial map as `weight` and `center` of `start_from`; valid only before training."""
        return self.proj.detach() * GAIN, -self._bias().detach() / GAIN

    def _bias(self) -> nn.Parameter:
        block: Any = self.blocks[0]
        bias: nn.Parameter = block.mlp.c_proj.bias
        return bias

    def project(self, x: Tensor) -> Tensor:
        return x @ self.proj

    def hidden(self, tokens: Tensor, seams: Seams | None = None) -> tuple[Tensor, Tensor]:
        """Return joint embeddings (B, L + 2, m) in CLIP's token order, and the position (B,) of the end-of-text token.

        The start of text is a zero vector. The end of text is the mean of the caption's embeddings.
        """
        x, state = self.embed(tokens)
        assert isinstance(state, CaptionState)
        words, counts = self._words(run_blocks(self.blocks, x, seams, state, self.causal), state)
        mean = words.sum(dim=1) / counts[:, None]
        end = counts + 1
        is_end = torch.arange(state.longest + 2, device=x.device) == end[:, None]
        return F.pad(words, (0, 0, 1, 1)) + is_end[..., None] * mean[:, None], end

    def _words(self, x: Tensor, state: CaptionState) -> tuple[Tensor, Tensor]:
        assert state.counts is not None
        place = torch.arange(state.longest, device=x.device)
        words = self.project(x)[:, 0].unflatten(0, (-1, state.longest))
        return words * (place < state.counts[:, None])[..., None], state.counts


class Vectors(Clip):
    """An image tower and a text tower over imported vectors, in place of CLIP's."""

    vision: VideoVectors
    text: CaptionVectors

    def __init__(self, width: int, table: CaptionTable, tokenize: Callable[[list[str]], Tensor]) -> None:
        """Build the towers.

        Args:
            width: d = m, the width of video vectors and of the joint embedding.
            table: vectors of the captions.
            tokenize: captions -> their indices (B, 1) in the table.
        """
        nn.Module.__init__(self)
        self.name = VECTORS
        self.vision, self.text = VideoVectors(width), CaptionVectors(table, width)
        self.logit_scale = nn.Parameter(torch.tensor(SCALE).log())
        self.tokenize = tokenize
        self.mean, self.std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        self.embed_dim, self.image_size = width, 1


def scaling_block(width: int) -> Block:
    """Return a block with fixed initial weights that multiplies a single vector x (G, 1, D) by GAIN."""
    one = torch.eye(width)
    attention = nn.MultiheadAttention(width, 1)
    mlp = nn.Sequential(
        OrderedDict(c_fc=nn.Linear(width, 2 * width), gelu=nn.ReLU(), c_proj=nn.Linear(2 * width, width))
    )
    parts: dict[str, Any] = {name: nn.Identity() for name in ("ln_1", "ln_2", "ls_1", "ls_2")}
    block = Block(SimpleNamespace(attn=attention, mlp=mlp, **parts))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        block.attn.in_weight.copy_(one.repeat(3, 1))
        block.attn.out.weight.copy_(one)
        block.mlp.c_fc.weight.copy_(torch.cat([one, -one]))
        block.mlp.c_proj.weight.copy_(torch.cat([one, -one], dim=1))
    return block
