"""UMT's text encoder: a BERT whose lower layers read a caption and whose upper layers also attend to a video.

Devlin et al., arXiv:1810.04805, split into two parts as in UMT's code (arXiv:2303.16058); layers are post-norm:

    x = LN(x + SelfAttn(x));  [x = LN(x + CrossAttn(x, E));]  x = LN(x + MLP(x))        eps 1e-12, exact GELU

Only the upper layers have the part in brackets. Its keys and values depend only on the video, so `memory` computes them
once per video for all captions. This is 8.32 of the 9.468 GMACs of a caption-video pair at full size.

A caption is [CLS] and its words, without [SEP]; its feature is the output at [CLS]. Id 0 is padding.

Shapes: B captions, L words, N video tokens, D width of the text, E width of the video tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

_EPS = 1e-12
_OUT = -10000.0  # BERT adds this to the attention score of padding
Memory = Sequence[tuple[Tensor, Tensor]]  # keys and values (V, H, N, D/H) for each fusion layer


class BertAttention(nn.Module):
    """Multi-head attention of a caption to itself or to a video, with residual sum and LayerNorm.

    `of_width` is the width of the attended tokens; if None, the width of the caption's tokens.
    """

    def __init__(self, width: int, heads: int, of_width: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key, self.value = (nn.Linear(of_width or width, width) for _ in range(2))
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=_EPS)

    def _heads_first(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x (B, N, E) to keys and values, both (B, H, N, D/H)."""
        return self._heads_first(self.key(x)), self._heads_first(self.value(x))

    def forward(self, x: Tensor, keys_values: tuple[Tensor, Tensor], bias: Tensor | None = None) -> Tensor:
        """Attend from x (B, L, D) to `keys_values`: (B, L, D). `bias` (B, 1, 1, N) is added to the attention scores."""
        q = self._heads_first(self.query(x))
        mixed = F.scaled_dot_product_attention(q, *keys_values, attn_mask=bias)
        found: Tensor = self.norm(x + self.dense(mixed.transpose(1, 2).flatten(2)))
        return found


class BertLayer(nn.Module):
    """One post-norm layer. If `of_width`, the width of video tokens, is given, it has attention to a video as well."""

    def __init__(self, width: int, heads: int, hidden: int, of_width: int | None = None) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads)
        self.crossattention = None if of_width is None else BertAttention(width, heads, of_width)
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=_EPS)

    def forward(
        self, x: Tensor, bias: Tensor, video: tuple[Tensor, Tensor] | None = None, video_bias: Tensor | None = None
    ) -> Tensor:
        x = self.attention(x, self.attention.keys_values(x), bias)
        if self.crossattention is not None:
            assert video is not None
            x = self.crossattention(x, video, video_bias)
        found: Tensor = self.norm(x + self.narrow(F.gelu(self.wide(x))))
        return found


class FusionBert(nn.Module):
    """A BERT whose upper layers also attend to a video; the defaults give the text encoder of UMT-B/16."""

    def __init__(
        self,
        width: int = 768,
        layers: int = 12,
        fusion_from: int = 9,
        heads: int = 12,
        hidden: int = 3072,
        vocabulary: int = 30522,
        places: int = 512,
        video_width: int = 768,
    ) -> None:
        """Build a BERT with random weights.

        Args:
            width: D.
            layers: number of layers of both parts.
            fusion_from: index of the first layer that attends to the video.
            heads: number of heads of each layer.
            hidden: hidden width of the MLP.
            vocabulary: number of token ids.
            places: maximum number of tokens of a caption.
            video_width: E.
        """
        super().__init__()
        self.width, self.fusion_from, self.context_length = width, fusion_from, places
        self.heads, self.hidden = heads, hidden
        self.word = nn.Embedding(vocabulary, width)
        self.position, self.kind = nn.Embedding(places, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.layers = nn.ModuleList(
            BertLayer(width, heads, hidden, None if layer < fusion_from else video_width) for layer in range(layers)
        )
        new_weights(self)

    def read(self, tokens: Tensor) -> Tensor:
        """Pass captions (B, L) int64 through the lower layers: (B, L, D), with [CLS] at position 0."""
        x = self.word(tokens) + self.kind.weight[0] + self.position.weight[: tokens.shape[1]]
        x, bias = self.norm(x), _mask_padding(tokens, x)
        for layer in self.layers[: self.fusion_from]:
            x = layer(x, bias)
        return x

    def memory(self, video: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute keys and values of videos (V, N, E) for every fusion layer, each (V, H, N, D/H)."""
        return [layer.crossattention.keys_values(video) for layer in self.layers[self.fusion_from :]]  # type: ignore

    def fuse(self, x: Tensor, tokens: Tensor, memory: Memory) -> Tensor:
        """Pass the output x (B, L, D) of `read` through the upper layers: (B, L, D).

        `memory` has the keys and values of each caption's video, or of one video (V = 1) for all captions.
        """
        bias = _mask_padding(tokens, x)
        for layer, video in zip(self.layers[self.fusion_from :], memory, strict=True):
            x = layer(x, bias, tuple(part.expand(len(x), *part.shape[1:]) for part in video))
        return x


def new_weights(part: nn.Module) -> None:
    """Initialize matrices and embeddings from N(0, 0.02^2) and biases with zero, as BERT does."""
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def bias_of(seen: Tensor, x: Tensor) -> Tensor:
    """Return the additive attention bias in the dtype of x: 0 where `seen` is not 0, otherwise -10000."""
    return ((seen == 0) * _OUT).to(x.dtype)


def _mask_padding(tokens: Tensor, x: Tensor) -> Tensor:
    """Return the attention bias (B, 1, 1, L) that masks the padding of captions (B, L)."""
    return bias_of((tokens != 0)[:, None, None, :], x)
