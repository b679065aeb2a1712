"""Loads UMT as a backbone: towers by name, published weights from a file, and BERT's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctvr.methods.backbone.architectures import UMT
from ctvr.methods.backbone.bert import FusionBert
from ctvr.methods.backbone.checkpoint import check
from ctvr.methods.backbone.umt import OF_RETRIEVAL, Umt, UmtVision
from ctvr.methods.backbone.umt_weights import of_decoder, under_our_names
from ctvr.methods.backbone.wordpiece import WordPieces

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's color channels


def make_umt(name: str, tokenize: Any = None) -> Umt:
    """Build a UMT with random weights, on torch's default device.

    Args:
        name: a key of `architectures.UMT`.
        tokenize: tokenizer of captions; if None, a tokenizer that returns an empty tensor.
    """
    sizes = UMT[name]
    seen, read = sizes["vision_cfg"], sizes["text_cfg"]
    vision = UmtVision(
        seen["image_size"], seen["patch_size"], seen["width"], seen["layers"], seen["heads"], sizes["embed_dim"]
    )
    bert = FusionBert(
        read["width"],
        read["layers"],
        read["fusion_from"],
        read["heads"],
        read["hidden"],
        read["vocab_size"],
        read["context_length"],
        seen["width"],
    )
    return Umt(vision, bert, tokenize or (lambda texts: torch.empty(0)), MEAN, STD, seen["image_size"], name)


def load_umt(name: str, state: dict[str, Tensor] | None, vocabulary: Path | None, source: str = "") -> Umt:
    """Build a UMT with given or random weights.

    Args:
        name: a key of `architectures.UMT`.
        state: weights under the authors' names; random weights if None.
        vocabulary: BERT's vocab.txt.
        source: file of the weights as the user named it, for messages.

    Raises:
        ValueError: if `vocabulary` is None, or if the vocabulary or the weights do not fit.
        FileNotFoundError: if the vocabulary file does not exist.
    """
    if vocabulary is None:
        raise ValueError(
            f"{name} tokenizes captions into BERT's word pieces. Set backbone.vocabulary=FILE to the vocab.txt of "
            "bert-base-uncased."
        )
    pieces, wanted = WordPieces.of_file(vocabulary), UMT[name]["text_cfg"]["vocab_size"]
    if pieces.end != wanted:
        raise ValueError(
            f"{vocabulary}: contains {pieces.end} word pieces, but {name} needs {wanted}. Check backbone.vocabulary."
        )
    umt = make_umt(name, pieces)
    if state is not None:
        # A question-answering checkpoint lacks the retrieval heads
        umt.only_answers = any(name.startswith("text_decoder.") for name in state)
        try:
            found = under_our_names(state)
        except ValueError as error:
            raise ValueError(f"{source}: does not fit {name} ({error})") from error
        wanted = umt.state_dict()
        lacking = [each for each in wanted if each not in found]
        if umt.only_answers and all(each.startswith(OF_RETRIEVAL) for each in lacking):
            found |= {each: wanted[each] for each in lacking}
        check(found, wanted, source, name)
        umt.load_state_dict(found)
        try:
            umt.decoder_state = of_decoder(state, umt.text.bert.fusion_from)
        except ValueError as error:  # retrieval does not need a decoder; a question-answering method reports the error
            umt.no_decoder = f"{source}: {error}"
    return umt
