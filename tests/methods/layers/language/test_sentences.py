import pytest
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.layers.language.sentences import (
    Keywords,
    average_keywords,
    encode_masked,
    encoder,
    frame_of,
    mask_and_read,
    recombine,
)

CAPTIONS = ["a boy is performing for an audience", "a red square slowly overtakes a skater", "in the kitchen"]


@pytest.fixture(scope="module")
def tiny():
    return load_backbone("tiny-clip", "shipped")


@pytest.fixture
def tokens(tiny) -> torch.Tensor:
    return tiny.tokenize(CAPTIONS)


def spelled(tiny, tokens: torch.Tensor, mask: torch.Tensor) -> list[str]:
    return [tiny.tokenize.decode(row[kept].tolist()).strip() for row, kept in zip(tokens, mask)]


def all_words(tokens: torch.Tensor) -> torch.Tensor:
    start, end = frame_of(tokens)
    return (tokens != 0) & ~start & ~end


def test_the_papers_example_has_its_keywords(tiny, tokens):
    nouns, verbs = Keywords(tiny).find(tokens)
    assert spelled(tiny, tokens, nouns)[0] == "boy audience"
    assert spelled(tiny, tokens, verbs)[0] == "performing"


def test_every_piece_of_a_word_is_kept(tiny, tokens):
    nouns, _ = Keywords(tiny).find(tokens)
    assert spelled(tiny, tokens, nouns)[1:] == ["square skater", "kitchen"]
    assert int(nouns[2].sum()) > 1  # "kitchen" is more than one piece of this vocabulary


def test_auxiliaries_are_verbs_on_request(tiny, tokens):
    assert spelled(tiny, tokens, Keywords(tiny, has_auxiliaries=True).find(tokens)[1])[0] == "is performing"


def test_a_caption_may_lack_verbs(tiny, tokens):
    assert Keywords(tiny).find(tokens)[1].any(dim=1).tolist() == [True, True, False]


def test_start_end_and_pads_are_no_keywords(tiny, tokens):
    for mask in Keywords(tiny).find(tokens):
        assert not (mask & ~all_words(tokens)).any()


def test_a_caption_cut_within_a_word_is_read(tiny):
    tokens = tiny.tokenize(["kitchen " * 30])
    nouns, _ = Keywords(tiny).find(tokens)
    assert int(nouns.sum()) == tokens.shape[1] - 2


def test_an_empty_caption_has_no_keywords(tiny):
    nouns, verbs = Keywords(tiny).find(tiny.tokenize([""]))
    assert not nouns.any()
    assert not verbs.any()


def test_a_tokenizer_without_words_is_refused_in_one_line(tiny):
    class Other:
        tokenize = staticmethod(lambda texts: texts)
        name = "other-clip"

    with pytest.raises(ValueError, match=r"tokenizer of other-clip cannot .* Use a backbone") as error:
        Keywords(Other())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", ["attention", "filler"])
def test_muw_of_all_words_is_the_caption(tiny, tokens, mode):
    with torch.no_grad():
        whole = tiny.text(tokens)
        torch.testing.assert_close(mask_and_read(tiny.text, tokens, all_words(tokens), mode), whole, atol=1e-5, rtol=0)


def test_rkw_of_all_words_is_the_caption(tiny, tokens):
    assert torch.equal(recombine(tokens, all_words(tokens)), tokens)


def test_rkw_is_the_sentence_of_the_keywords(tiny, tokens):
    nouns, _ = Keywords(tiny).find(tokens)
    assert torch.equal(recombine(tokens, nouns), tiny.tokenize(["boy audience", "square skater", "kitchen"]))


def test_muw_does_not_see_what_it_masks(tiny):
    tokens = tiny.tokenize(["a red square follows a ring", "a big square follows a ring"])
    nouns, _ = Keywords(tiny).find(tokens)
    assert tokens[0].count_nonzero() == tokens[1].count_nonzero()  # keywords at the same positions
    with torch.no_grad():
        one, other = encode_masked(tiny.text, tokens, nouns)
        whole, another = tiny.text(tokens)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert not torch.allclose(whole, another, atol=1e-2)


def test_muw_keeps_positions_and_rkw_does_not(tiny):
    tokens = tiny.tokenize(["a red boat overtakes a ring", "boat ring"])
    nouns, _ = Keywords(tiny).find(tokens)
    with torch.no_grad():
        masked, recombined = (encoder(s)(tiny.text, tokens, nouns) for s in ("muw", "rkw"))
    torch.testing.assert_close(recombined[0], recombined[1], atol=1e-5, rtol=0)
    assert not torch.allclose(masked[0], masked[1], atol=1e-3)


def test_akwe_reads_the_whole_caption(tiny):
    tokens = tiny.tokenize(["a red square overtakes a ring", "a big square overtakes a ring"])
    nouns, _ = Keywords(tiny).find(tokens)
    with torch.no_grad():
        one, other = average_keywords(tiny.text, tokens, nouns)
        hidden, _ = tiny.text.hidden(tokens)
    torch.testing.assert_close(one, hidden[0, nouns[0, : hidden.shape[1]]].mean(dim=0))
    assert not torch.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize("strategy", ["muw", "rkw", "akwe"])
def test_a_caption_without_keywords_gives_finite_features(tiny, tokens, strategy):
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        assert torch.isfinite(encoder(strategy)(tiny.text, tokens, nothing)).all()


@pytest.mark.parametrize("strategy", ["muw", "rkw", "akwe"])
def test_the_rest_of_the_batch_does_not_matter(tiny, tokens, strategy):
    nouns, _ = Keywords(tiny).find(tokens)
    with torch.no_grad():
        encode = encoder(strategy)
        whole, alone = encode(tiny.text, tokens, nouns), encode(tiny.text, tokens[2:], nouns[2:])
    torch.testing.assert_close(whole[2:], alone, atol=1e-5, rtol=1e-4)
