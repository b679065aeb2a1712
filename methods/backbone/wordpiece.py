"""BERT's WordPiece tokenizer, which UMT uses for captions, questions and answers (Devlin et al., arXiv:1810.04805).

Text is lower-cased, stripped of accents and split at whitespace and around punctuation. A word is split greedily into
the longest vocabulary piece at its start, then the longest `##` piece of the rest, and so on. A word that cannot be
split becomes [UNK]. Captions and questions are cleaned first, as in UMT's code; answers are not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LONGEST = 100  # maximum number of characters of a word; a longer word becomes [UNK]


def clean(text: str) -> str:
    """Lower-case a caption or question, remove punctuation and collapse whitespace, as UMT's code does."""
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text.lower()).replace("-", " ").replace("/", " ")
    return " ".join(text.replace("<person>", "person").split())


class WordPieces:
    """WordPiece tokenizer that ends each caption with an additional end mark, the largest id.

    Code that reads captions finds their ends by this mark; UMT replaces it by padding (`UmtText.without_end`).
    """

    def __init__(self, vocabulary: Sequence[str], length: int = 65) -> None:
        """Make a tokenizer.

        Args:
            vocabulary: pieces in the order of their ids; [PAD] is the first.
            length: L, the number of ids of a tokenized caption, end mark included; longer captions are cut.

        Raises:
            ValueError: if the vocabulary lacks one of `MARKS`, or [PAD] is not the first.
        """
        self.ids = {piece: number for number, piece in enumerate(vocabulary)}
        lacking = [mark for mark in MARKS if mark not in self.ids]
        if lacking or self.ids["[PAD]"] != 0:
            raise ValueError(
                f"a vocabulary of BERT must begin with [PAD] and contain {', '.join(MARKS)}. Use a vocab.txt of BERT."
            )
        self.length, self.end = length, len(vocabulary)
        self._known: dict[str, tuple[int, ...]] = {}  # cache of words and the ids of their pieces

    @classmethod
    def of_file(cls, file: Path) -> WordPieces:
        """Load a `vocab.txt`, a file with one piece per line.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if the file is not a vocabulary of BERT in UTF-8.
        """
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such vocabulary. Use the vocab.txt of bert-base-uncased.")
        try:
            return cls(file.read_text(encoding="utf-8").splitlines())
        except ValueError as error:  # UnicodeDecodeError, too
            raise ValueError(f"{file}: {str(error).splitlines()[0]} Use the vocab.txt of bert-base-uncased.") from None

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Clean and tokenize N captions: (N, L) int64, each [CLS], its pieces, the end mark and zeros."""
        found = torch.zeros(len(texts), self.length, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids = [*self.pieces(clean(text), self.length - 1), self.end]
            found[row, : len(ids)] = torch.tensor(ids)
        return found

    def answers(self, texts: Sequence[str], length: int = 5) -> Tensor:
        """Tokenize N answers for the decoder: (N, length) int64, each [CLS], pieces, [SEP] if it fits, and zeros."""
        found = torch.zeros(len(texts), length, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids = [*self.pieces(text, length), self.ids["[SEP]"]][:length]
            found[row, : len(ids)] = torch.tensor(ids)
        return found

    def pieces(self, text: str, most: int) -> list[int]:
        """Return the ids of [CLS] and of the pieces of a text, at most `most` ids in total."""
        ids = [self.ids["[CLS]"]]
        for word in _words(text):
            if word not in self._known:
                self._known[word] = self._cut(word)
            ids += self._known[word]
        return ids[:most]

    def _cut(self, word: str) -> tuple[int, ...]:
        unknown, start, found = (self.ids["[UNK]"],), 0, list[int]()
        if len(word) > _LONGEST:
            return unknown
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.ids), None)
            if end is None:
                return unknown
            found.append(self.ids[prefix + word[start:end]])
            start = end
        return tuple(found)


def _words(text: str) -> list[str]:
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if _is_apart(c) else c for c in plain).split()


def _is_apart(c: str) -> bool:
    """Return whether a character is a separate token: punctuation, another ASCII symbol, or a Chinese character."""
    if c.isascii():
        return not c.isalnum() and not c.isspace()
    return unicodedata.category(c).startswith("P") or 0x4E00 <= ord(c) <= 0x9FFF
