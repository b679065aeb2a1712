"""CLIP's tokenizer without torch, with the tokens and the vocabulary file of open_clip's `SimpleTokenizer`."""

from __future__ import annotations

import gzip
import html
from collections.abc import Hashable, Iterable
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

PLACES = 77  # tokens of a caption in CLIP's text towers, including both ends
_MERGES = 49_152 - 256 - 2  # pairs of the vocabulary file that CLIP uses
_LONGEST = (PLACES - 1) * 32  # letters of a word; no token has more than 32
_MOST = 1 << 16  # characters of a caption that are read
_SPECIAL = ("<start_of_text>", "<end_of_text>")
_WORDS = "|".join((*_SPECIAL, "'s|'t|'re|'ve|'m|'ll|'d", r"[\p{L}]+", r"[\p{N}]", r"[^\s\p{L}\p{N}]+"))


class ClipTokenizer:
    """Byte-pair tokenizer that splits captions into tokens (strings)."""

    def __init__(self) -> None:
        import regex  # comes with open_clip, ~30 ms

        self._words = regex.compile(_WORDS, regex.IGNORECASE)
        self._letters = _letters()
        spec = find_spec("open_clip")
        assert spec is not None  # a dependency
        assert spec.origin is not None
        with gzip.open(Path(spec.origin).with_name("bpe_simple_vocab_16e6.txt.gz"), "rt", encoding="utf-8") as file:
            pairs = file.read().split("\n")[1 : _MERGES + 1]
        self._ranks = {tuple(pair.split()): rank for rank, pair in enumerate(pairs)}
        self._known: dict[str, tuple[str, ...]] = {word: (word,) for word in _SPECIAL}

    def read(self, texts: Iterable[str]) -> list[tuple[Hashable, bool]]:
        """Return for each text the tokens that a text tower reads, and whether they are truncated."""
        found = map(self.split, texts)
        return [(tokens[: PLACES - 2], len(tokens) > PLACES - 2) for tokens in found]

    def within(self, text: str) -> tuple[str, ...]:
        """Return the tokens of a text that a text tower reads, without the start and end tokens."""
        return self.split(text)[: PLACES - 2]

    def split(self, text: str, most: int = PLACES - 2) -> tuple[str, ...]:
        """Return the tokens of a text without start and end; stop when there are more than `most`."""
        found: list[str] = []
        for match in self._words.finditer(_clean(text[:_MOST])):
            if (word := match[0]) not in self._known:
                letters = map(self._letters.__getitem__, word.encode()[:_LONGEST])
                self._known[word] = self._pieces("".join(letters))
            found += self._known[word]
            if len(found) > most:
                break
        return tuple(found)

    def _pieces(self, word: str) -> tuple[str, ...]:
        """Split a word: merge the adjacent pieces with the lowest rank until no pair has a rank."""
        pieces = [*word[:-1], word[-1] + "</w>"]
        while len(pieces) > 1:
            ranked = [(self._ranks[pair], pair) for pair in pairwise(pieces) if pair in self._ranks]
            if not ranked:
                break
            _, (first, second) = min(ranked)
            merged: list[str] = []
            for piece in pieces:
                if piece == second and merged and merged[-1] == first:
                    merged[-1] = first + second
                else:
                    merged.append(piece)
            pieces = merged
        return tuple(pieces)


@cache
def clip_tokenizer() -> ClipTokenizer:
    """Return the tokenizer, whose vocabulary is read once."""
    return ClipTokenizer()


def _letters() -> dict[int, str]:
    """Return the letter of the vocabulary for each byte: the byte's own, or one above 255 if it is not printable."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _clean(text: str) -> str:
    if not (text.isascii() and text.isprintable() and "&" not in text):  # ftfy does not change plain ASCII text
        import ftfy

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()
