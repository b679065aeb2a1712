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

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


def make_umt(name: str, tokenize: Any = None) -> Umt:
    """Build a UMT of `architectures.UMT` with new weights, on the current default device."""
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
    """Build a UMT with given weights, or with new ones.

    Args:
        name: of `architectures.UMT`.
        state: the authors' weights; None: new ones.
        vocabulary: BERT's vocab.txt.
        source: the weights' file as the user named it, for messages.

    Raises:
        ValueError: for a missing vocabulary, or a vocabulary or weights that do not fit.
        FileNotFoundError: if the vocabulary file does not exist.
    """
    if vocabulary is None:
        raise ValueError(
            f"{name} tokenizes captions into BERT's word pieces. Write backbone.vocabulary=FILE, the vocab.txt of "
            "bert-base-uncased."
        )
    pieces, wanted = WordPieces.of_file(vocabulary), UMT[name]["text_cfg"]["vocab_size"]
    if pieces.end != wanted:
        raise ValueError(f"{vocabulary}: has {pieces.end} pieces, {name} has {wanted}. Check backbone.vocabulary.")
    umt = make_umt(name, pieces)
    if state is not None:
        umt.only_answers = any(name.startswith("text_decoder.") for name in state)  # these lack the retrieval heads
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
        except ValueError as error:  # retrieval does not need a decoder; a method over questions reports this
            umt.no_decoder = f"{source}: {error}"
    return umt
