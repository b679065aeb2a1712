"""Frame-word similarity and pooling, StructAlign eqs. 1-12."""

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.layers.word_features import (
    frame_word_similarity,
    hidden_with_pads,
    is_word,
    mean_of,
    pool_towards,
    words_of,
)


@pytest.fixture
def words():
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(5, 7, 6, generator=generator)
    for row, length in enumerate([7, 3, 1, 5, 4]):
        words[row, length:] = 0
    return words


@pytest.fixture
def frames():
    return torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(1))


def brute_force(words, frames):
    found = torch.zeros(len(words), len(frames))
    for q, caption in enumerate(words):
        for v, video in enumerate(frames):
            pairs = torch.stack(
                [torch.stack([F.cosine_similarity(w, f, dim=0) for f in video]) for w in caption if w.any()]
            )
            found[q, v] = (pairs.max(dim=1).values.mean() + pairs.max(dim=0).values.mean()) / 2
    return found


def test_word_similarity_equals_eq_6_without_pads(words, frames):
    torch.testing.assert_close(frame_word_similarity(words, frames), brute_force(words, frames))


@pytest.mark.parametrize("chunk", [1, 50, 90, 10**6])
def test_chunks_do_not_change_it(words, frames, chunk):
    torch.testing.assert_close(frame_word_similarity(words, frames, chunk), frame_word_similarity(words, frames))


def test_more_pads_leave_it_unchanged(words, frames):
    torch.testing.assert_close(
        frame_word_similarity(F.pad(words, (0, 0, 0, 9)), frames), frame_word_similarity(words, frames)
    )


def test_a_caption_without_words_scores_zero_and_has_no_gradient(words, frames):
    words[1] = 0
    words.requires_grad_()
    similarity = frame_word_similarity(words, frames)
    assert similarity[1].eq(0).all()
    similarity.sum().backward()
    assert words.grad.isfinite().all()
    assert words.grad[1].eq(0).all()


def test_words_lie_between_start_and_end_of_text():
    hidden = torch.randn(2, 6, 4)
    words = words_of(hidden, torch.tensor([5, 3]))
    assert is_word(words).sum(dim=1).tolist() == [4, 2]
    assert torch.equal(words[1, :2], hidden[1, 1:3])


def test_hidden_with_pads_agrees_with_the_tower_up_to_the_end_of_text(small_clip, batch):
    hidden, eot = small_clip.text.hidden(batch.tokens)
    padded, same = hidden_with_pads(small_clip.text, batch.tokens)
    assert torch.equal(eot, same)
    seen = torch.arange(hidden.shape[1]) <= eot[:, None]
    torch.testing.assert_close(padded[:, : hidden.shape[1]][seen], hidden[seen], atol=1e-5, rtol=1e-5)


def test_pooling_towards_a_prototype_weighs_by_inner_products(words):
    p = torch.randn(5, 6)
    pooled = pool_towards(words + 0.5, is_word(words), p)
    for row in range(5):
        tokens = (words[row] + 0.5)[is_word(words)[row]]
        torch.testing.assert_close(pooled[row], (tokens @ p[row]).softmax(dim=0) @ tokens)


def test_a_mean_is_of_words_and_has_length_one(words):
    torch.testing.assert_close(mean_of(words, is_word(words))[1], F.normalize(words[1, :3].mean(dim=0), dim=0))
    torch.testing.assert_close(mean_of(words, is_word(words)).norm(dim=1), torch.ones(5))
