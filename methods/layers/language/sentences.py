"""Separate encodings of a caption's nouns and of its verbs (CAMoE, arXiv:2109.04290, "sentence generation strategy").

CAMoE has three text streams: the whole caption, its nouns (entity) and its verbs (action). Nouns or verbs are called
keywords. Three strategies encode them with the text tower that encodes the caption:

    muw   masks all tokens except keywords, and reads the end-of-text token (eq. 1)
    rkw   encodes a new sentence of keywords only, and reads the end-of-text token
    akwe  encodes the whole caption, and averages the tokens of keywords

The start-of-text and end-of-text tokens are always kept. Methods receive token ids, so words are assembled from the
pieces of the tokenizer; all pieces of a keyword are kept.

Shapes: B captions, L tokens, D width, d joint embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods.backbone.clip import BlockSeams, Clip, TextTower, TokenState, run_block
from ctvr.methods.layers.language.tagger import AUXILIARY, NOUN, VERB, tag

Strategy = Literal["muw", "rkw", "akwe"]
MaskMode = Literal["attention", "filler"]
WORD_END = "</w>"  # suffix of the last piece of a word in CLIP's tokenizer


class Keywords:
    """Finder of nouns and verbs in tokenized captions."""

    def __init__(self, backbone: Clip, has_auxiliaries: bool = False) -> None:
        """Read the vocabulary of a backbone.

        Args:
            backbone: a backbone with CLIP's byte-pair tokenizer, which has the table `decoder` (id -> piece).
            has_auxiliaries: whether auxiliaries such as `is` and `can` count as verbs.

        Raises:
            ValueError: if the backbone has another tokenizer.
        """
        decoder: Any = getattr(backbone.tokenize, "decoder", None)
        if not isinstance(decoder, Mapping):
            raise ValueError(
                f"the tokenizer of {backbone.name or 'this backbone'} cannot turn tokens back into words, which is "
                "needed to find nouns and verbs. Use a backbone with CLIP's tokenizer, such as ViT-B-32-quickgelu."
            )
        self.pieces: Mapping[int, str] = decoder
        self.verbs = VERB + AUXILIARY if has_auxiliaries else VERB

    def words(self, tokens: list[int]) -> tuple[tuple[str, ...], list[int]]:
        """Return the words of a caption and, for each token, the index of its word.

        Args:
            tokens: token ids without the start and the end of text.
        """
        words: list[str] = []
        word_of: list[int] = []
        pieces = ""
        for token in tokens:
            word_of.append(len(words))
            pieces += self.pieces[token]
            if pieces.endswith(WORD_END):
                words.append(pieces.removesuffix(WORD_END).lower())
                pieces = ""
        return (*words, pieces) if pieces else tuple(words), word_of  # a long caption may end within a word

    def find(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return a mask of nouns and a mask of verbs, (B, L) bool each, for tokens (B, L).

        The masks are on the CPU, so that a caller can read them without waiting for a GPU.
        """
        host = tokens.cpu()
        nouns, verbs = (torch.zeros(tokens.shape, dtype=torch.bool, device="cpu") for _ in range(2))
        ends = host.argmax(dim=-1).tolist()
        for row, (ids, end) in enumerate(zip(host.tolist(), ends)):
            words, word_of = self.words(ids[1:end])
            tags = tag(words)
            for position, word in enumerate(word_of, start=1):
                nouns[row, position] = tags[word] == NOUN
                verbs[row, position] = tags[word] in self.verbs
        return nouns, verbs


def frame_of(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of start-of-text and a mask of end-of-text tokens, (B, L) bool each, for tokens (B, L)."""
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return (position == 0).expand(tokens.shape), position == tokens.argmax(dim=-1, keepdim=True)


def recombine(tokens: Tensor, keywords: Tensor) -> Tensor:
    """Build sentences (B, L) of start of text, keywords in their order, end of text, and zeros.

    Args:
        tokens: (B, L) int64 captions.
        keywords: (B, L) bool mask.
    """
    start, end = frame_of(tokens)
    kept = keywords | start | end
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)  # kept tokens first
    return torch.where(kept, tokens, 0).gather(1, order)


def encode_masked(tower: TextTower, tokens: Tensor, keywords: Tensor) -> Tensor:
    """Encode captions whose tokens attend only to keywords, start of text and end of text: (B, d), not normalized.

    All tokens keep their positions. If all words are keywords, the result equals the output of the tower.

    Args:
        tower: the text tower.
        tokens: (B, L) int64 captions.
        keywords: (B, L) bool mask.
    """
    start, end = frame_of(tokens)
    x, state = tower.embed(tokens)
    assert state.eot is not None
    length = x.shape[1]
    kept = (keywords | start | end)[:, :length]
    causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    visible = (causal & kept[:, None, :])[:, None]  # (B, 1, L, L); the start is visible to all
    for layer, block in enumerate(tower.blocks):
        state.layer = layer
        x = run_block(partial(_block_with_mask, block, visible), x, state)
    return tower.read(x, state)


def _block_with_mask(block: Any, visible: Tensor, x: Tensor, state: TokenState) -> Tensor:
    y = block.ln_1(x)
    q, k, v = (block.attn.heads_first(z) for z in block.attn.project(y, BlockSeams(), state))
    merged = F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(2)
    x = x + block.ls_1(block.attn.out(merged))
    return x + block.ls_2(block.mlp(block.ln_2(x)))


def mask_and_read(
    tower: TextTower, tokens: Tensor, keywords: Tensor, mode: MaskMode = "attention", filler: int = 0
) -> Tensor:
    """Encode captions by MUW: (B, d), not normalized.

    CLIP lacks a mask token. So mode `attention` masks the attention to tokens that are not keywords, and mode `filler`
    replaces these tokens with the id `filler`. The other arguments are those of `encode_masked`.
    """
    if mode == "attention":
        return encode_masked(tower, tokens, keywords)
    start, end = frame_of(tokens)
    return tower(tokens.masked_fill(~(keywords | start | end), filler))


def average_keywords(tower: TextTower, tokens: Tensor, keywords: Tensor) -> Tensor:
    """Encode captions by AKWE: average the joint embeddings of keywords, (B, d); zero for a caption without keywords.

    The arguments are those of `encode_masked`.
    """
    hidden, _ = tower.hidden(tokens)
    weight = keywords[:, : hidden.shape[1], None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def encoder(
    strategy: Strategy, mode: MaskMode = "attention", filler: int = 0
) -> Callable[[TextTower, Tensor, Tensor], Tensor]:
    """Return the function that encodes captions by a strategy: (tower, tokens (B, L), keywords (B, L)) -> (B, d).

    `mode` and `filler` are arguments of `mask_and_read`; only `muw` uses them.
    """
    if strategy == "muw":
        return lambda tower, tokens, keywords: mask_and_read(tower, tokens, keywords, mode, filler)
    if strategy == "rkw":
        return lambda tower, tokens, keywords: tower(recombine(tokens, keywords))
    return average_keywords
