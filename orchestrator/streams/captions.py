"""Parsing of captions in a table cell, and repair of wrongly encoded captions.

A cell is a single caption, or a list or tuple in Python or JSON syntax. `captions_of` parses a cell and `cell_of`
writes one: `captions_of(cell_of(caption)) == [caption]` for every caption.
"""

from __future__ import annotations

import ast
import html
import json
import re
import unicodedata

# Markers of a missing value in pandas, numpy and SQL. A table that has such a caption contains the list ["nan"]
MISSING = frozenset({"nan", "NaN", "-nan", "NULL", "null", "None", "<NA>", "NaT", "N/A", "#N/A"})
_INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")  # Unicode's categories of blanks, zero-width and control characters
_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ELEMENT = re.compile(rf"\s*({_STRING})\s*(,?)\s*", re.DOTALL)
_LIST = re.compile(r"[\[{]\s*['\"].*|.*['\"]\s*,?\s*\]", re.DOTALL)  # a list or dictionary of texts, perhaps malformed
_TUPLE = re.compile(rf"\(\s*(?:{_STRING})\s*,.*\)", re.DOTALL)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[a-zA-Z][a-zA-Z0-9]*);")
_PAIRS = ("[]", "()", "{}")


def captions_of(cell: str) -> list[str]:
    """Return the captions of a cell. A plain caption is stripped; captions in a list are kept unchanged.

    Raises:
        ValueError: if the cell is empty, contains a marker for a missing value, or is a malformed list of strings.
            The message continues a text that ends in "caption ".
    """
    text = cell.strip()
    if all(unicodedata.category(each) in _INVISIBLE for each in text):
        raise ValueError("is empty. Fill it in, or remove the line.")
    if text in MISSING:
        raise ValueError(f'is {text!r}, which marks a missing value. Fill it in, or use ["{text}"] to keep it as text.')
    if text[0] + text[-1] not in _PAIRS or (text[0] == "(" and not _TUPLE.fullmatch(text)):
        return [text]
    found = _json_list(text)
    if found is None and text[0] != "{":
        found = _python_list(text)
    if found is None:
        if text[0] != "(" and _LIST.fullmatch(text):
            raise ValueError(f'is not a list of texts (got {text[:40]!r}). Use JSON: ["a dog", "a cat"].')
        return [text]
    if not found or not all(caption.strip() for caption in found):
        raise ValueError(f"is a list without text (got {text[:40]!r}). Fill it in, or remove the line.")
    return found


def cell_of(caption: str) -> str:
    """Return a cell that `captions_of` parses as this single caption."""
    try:
        is_plain = "\0" not in caption and captions_of(caption) == [caption]  # Python 3.10 cannot read a NUL in a table
    except ValueError:  # a marker for a missing value, or text that looks like a list
        is_plain = False
    return caption if is_plain else json.dumps([caption], ensure_ascii=False)


def decode_entities(caption: str) -> str:
    """Decode HTML character references (`&amp;`, `&#39;`), including doubly encoded ones (`&amp;#39;`)."""
    for _ in range(2):  # as the tokenizers of CLIP do
        caption = _ENTITY.sub(lambda found: html.unescape(found[0]), caption) if "&" in caption else caption
    return caption


def correct_encoding(caption: str) -> str:
    """Restore UTF-8 text that was decoded as Latin-1 or Windows-1252 and saved again (`donâ€™t`)."""
    if caption.isascii():
        return caption
    import ftfy

    return ftfy.fix_encoding(caption)


def _json_list(text: str) -> list[str] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(each, str) for each in found) else None


def _python_list(text: str) -> list[str] | None:
    """Parse str(list) or str(numpy array). The latter has no commas, so Python would concatenate its strings."""
    found, place, end = [], 1, len(text) - 1
    while place < end:
        element = _ELEMENT.match(text, place, end)
        if element is None:
            return None
        try:
            found.append(str(ast.literal_eval(element[1])))
        except (ValueError, SyntaxError):  # an unknown escape, a line break within a text
            return None
        place = element.end()
    return found
