"""Builds sentences of nouns and of verbs from a caption (CAMoE, arXiv:2109.04290, "sentence generation strategy").

A stream is the whole caption, its nouns (entity) or its verbs (action). Three strategies encode the last
two with the text tower that encodes the caption:
    muw   mask all but keywords, read the end-of-text token (eq. 1)
    rkw   a new sentence of the keywords alone, read the end-of-text token
    akwe  encode the whole caption, average the keywords' own tokens

The start and end of text are always kept. Methods see token ids, so words are assembled from the
tokenizer's pieces; a keyword keeps all of its pieces.

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
    """Finds nouns and verbs among token ids."""

    def __init__(self, backbone: Clip, has_auxiliaries: bool = False) -> None:
        """Prepare for a backbone's vocabulary.

        Args:
            backbone: its tokenizer must be CLIP's byte-pair tokenizer (have the table `decoder`, id -> piece).
            has_auxiliaries: count `is`, `can` and the like as verbs.

        Raises:
            ValueError: for another tokenizer.
        """
        decoder: Any = getattr(backbone.tokenize, "decoder", None)
        if not isinstance(decoder, Mapping):
            raise ValueError(
                f"the tokenizer of {backbone.name or 'this backbone'} cannot turn tokens back into words, to find "
                "nouns and verbs. Use a backbone with CLIP's own tokenizer, such as ViT-B-32-quickgelu."
            )
        self.pieces: Mapping[int, str] = decoder
        self.verbs = VERB + AUXILIARY if has_auxiliaries else VERB

    def words(self, tokens: list[int]) -> tuple[tuple[str, ...], list[int]]:
        """Return the words of token ids without start and end of text, and for each token the index of its word."""
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
        """Mask nouns and verbs: two masks (B, L) for tokens (B, L), False at start, end and pads.

        They are on the CPU, where the tokens are read, so that a caller can test them without a wait.
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
    """Return masks (B, L) of the start and the end of text."""
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return (position == 0).expand(tokens.shape), position == tokens.argmax(dim=-1, keepdim=True)


def recombine(tokens: Tensor, keywords: Tensor) -> Tensor:
    """Build sentences (B, L) of the tokens marked in `keywords` (B, L), in order, zeros after the end of text."""
    start, end = frame_of(tokens)
    kept = keywords | start | end
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)  # kept ones first
    return torch.where(kept, tokens, 0).gather(1, order)


def encode_masked(tower: TextTower, tokens: Tensor, keywords: Tensor) -> Tensor:
    """Encode captions (B, L) whose tokens attend only to keywords, start and end: (B, d), not normalised.

    Every token stays at its position. With every word a keyword this is the tower itself.
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
    """Encode by MUW: (B, d), not normalised. CLIP has no mask token: attention is masked, or a filler id is used."""
    if mode == "attention":
        return encode_masked(tower, tokens, keywords)
    start, end = frame_of(tokens)
    return tower(tokens.masked_fill(~(keywords | start | end), filler))


def average_keywords(tower: TextTower, tokens: Tensor, keywords: Tensor) -> Tensor:
    """Encode by AKWE: the mean (B, d) of the keywords' joint embeddings in the whole caption; zero without any."""
    hidden, _ = tower.hidden(tokens)
    weight = keywords[:, : hidden.shape[1], None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def encoder(
    strategy: Strategy, mode: MaskMode = "attention", filler: int = 0
) -> Callable[[TextTower, Tensor, Tensor], Tensor]:
    """Return the function (tower, tokens (B, L), keywords (B, L)) -> (B, d) of a strategy."""
    if strategy == "muw":
        return lambda tower, tokens, keywords: mask_and_read(tower, tokens, keywords, mode, filler)
    if strategy == "rkw":
        return lambda tower, tokens, keywords: tower(recombine(tokens, keywords))
    return average_keywords
