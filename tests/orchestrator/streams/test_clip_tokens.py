"""Our tokens of captions equal those of open_clip's tokenizer."""

import random

import pytest

from ctvr.orchestrator.streams.clip_tokens import PLACES, clip_tokenizer

ALPHABET = "abcdefghij ABC .,'!?-_012\u00e9\u00df\u5c0f\u732b\U0001f600\u200d\u0301\u0130\u00b2\u2167\ufb01&;#<>\t"


def texts() -> list[str]:
    draw = random.Random(0)
    odd = [
        "don't  they'll",
        "a_b-c__d",
        "\x1b[31mred",
        "&amp;lt;b&gt;",
        "<START_of_text> x",
        "aa" * 200,
        "...",
        "\ufdfa",
    ]
    return odd + ["".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 60))) for _ in range(300)]


def test_tokens_are_those_of_open_clip():
    from open_clip.tokenizer import SimpleTokenizer

    theirs = SimpleTokenizer()
    for text in texts():
        pieces = tuple(theirs.decoder[number] for number in theirs.encode(text))
        assert clip_tokenizer().split(text, most=10**6) == pieces, text


@pytest.mark.parametrize("words", [PLACES - 2, PLACES - 1, 5000])
def test_a_caption_is_cut_if_its_tokens_and_both_ends_do_not_fit(words):
    ((tokens, is_cut),) = clip_tokenizer().read(["dog " * words])
    assert (tokens, is_cut) == (("dog</w>",) * (PLACES - 2), words > PLACES - 2)


def test_a_word_without_end_is_cut_in_bounded_time():
    ((tokens, is_cut),) = clip_tokenizer().read(["\U0001f602" * 10**6])
    assert len(tokens) == PLACES - 2
    assert is_cut
