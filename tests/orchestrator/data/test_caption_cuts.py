"""A run counts the captions that its own tokenizer truncates, at exactly its length."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ctvr.methods.backbone.openclip_towers import EndMarked
from ctvr.methods.backbone.wordpiece import MARKS, WordPieces
from ctvr.orchestrator.data.caption_cuts import describe_cuts
from ctvr.orchestrator.learning.run.upgrade import TwoTokenizers
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from tests.refusing import missing_from

LENGTH = 12


def data(tokenize: Any, max_tokens: int | None = None, **changes: Any) -> Any:
    """Return a stream with captions of 8 to 13 words, two of which differ in their last word only."""
    texts = [" ".join(["dog"] * (number - 1) + [last]) for number in (8, 9, 10, 11, 12, 13) for last in ("dog", "cat")]
    items = tuple(Item(f"v{n}", f"/v{n}.mp4", None, "c", (text,)) for n, text in enumerate(texts))
    stream = Stream("s", (StreamTask("t", ("c",), items[:1], (), items),), "ctvr", False, **changes)
    return SimpleNamespace(stream=stream, tokenizer=tokenize, config=SimpleNamespace(max_tokens=max_tokens))


class HalfOfOpenClip:
    """A tokenizer of open_clip: `ends` tokens around the words, padded with `pad`."""

    def __init__(self, ends: int = 2, pad: int = 0) -> None:
        self.context_length, self.ends, self.pad_token_id, self.tokenizer = LENGTH, ends, pad, self

    def __call__(self, texts: list[str], context_length: int | None = None) -> Tensor:
        width = context_length or self.context_length
        found = torch.full((len(texts), width), self.pad_token_id)
        for row, text in enumerate(texts):
            ids = [{"dog": 3, "cat": 4}[word] for word in text.split()]
            ids = [2, *ids[: width - self.ends], 9] if self.ends == 2 else ids[:width]
            found[row, : len(ids)] = torch.tensor(ids)
        return found


def marked() -> EndMarked:
    text: Any = SimpleNamespace(pad=0, words=10)
    return EndMarked(HalfOfOpenClip(ends=0, pad=1), text)


@pytest.mark.parametrize(
    ("tokenize", "max_tokens", "values"),
    [
        (HalfOfOpenClip(), None, ("6 of 13", LENGTH, "v6", "7")),  # ten words fit; from eleven on all words are dogs
        (HalfOfOpenClip(), 30, ("6 of 13", LENGTH, "v6")),
        (HalfOfOpenClip(), 11, ("8 of 13", 11, "v4")),
        (marked(), None, ("2 of 13", LENGTH, "v10")),  # twelve words without ends
        (WordPieces([*MARKS, "dog", "cat"], LENGTH), None, ("6 of 13", LENGTH, "v6")),
        (TwoTokenizers(HalfOfOpenClip(), HalfOfOpenClip(), None), None, ("6 of 13", LENGTH, "v6")),
    ],
)
def test_captions_are_cut_beyond_the_length_of_the_tokenizer(tokenize, max_tokens, values):
    (line,) = describe_cuts(data(tokenize, max_tokens))
    assert missing_from(line, *values) == []


@pytest.mark.parametrize(
    ("tokenize", "changes"),
    [
        (HalfOfOpenClip(), {"text_features": "f.npz"}),
        (lambda texts: torch.ones(len(texts), 4), {}),
        (WordPieces([*MARKS, "dog", "cat"], 99), {}),
    ],
)
def test_nothing_is_said_where_no_caption_is_cut(tokenize, changes):
    assert describe_cuts(data(tokenize, **changes)) == []
