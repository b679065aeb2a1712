"""A retriever after a change of its backbone: scales of two models, maps between them, and their widths."""

import pytest
import torch

from ctvr.methods.base import Batch, Method
from ctvr.methods.families.upgrade import NEW, OLD, Upgraded
from ctvr.methods.layers.feature_maps import ridge_map
from tests.methods.conftest import make_task

CAPTIONS = torch.arange(12)[:, None]


class Table(Method):
    """Returns features of captions and videos by their numbers."""

    def __init__(self, texts: torch.Tensor, videos: torch.Tensor) -> None:
        super().__init__()
        self.texts, self.videos = texts, videos

    def encode_text(self, tokens, task=None):
        return self.texts[tokens[:, 0]]

    def encode_video(self, frames):
        return self.videos[frames[:, 0]]


class Pairs:
    def pairs(self, numbers):
        rows = torch.tensor(numbers)[:, None]
        return rows, rows


def batches():
    for rows in torch.arange(12).split(5):
        nothing = torch.zeros(len(rows), dtype=torch.int64)
        yield Batch(frames=rows[:, None], tokens=rows[:, None], video_ids=rows // 2, categories=nothing, pair_ids=rows)


def drawn(width: int, seed: int) -> Table:
    """Return features of 12 captions and videos, each model's on a different scale."""
    random = torch.Generator().manual_seed(seed)
    texts, videos = (torch.nn.functional.normalize(torch.randn(12, width, generator=random), dim=-1) for _ in range(2))
    return Table(texts, (1 + seed) * (videos + texts) + 0.3)


def upgraded(queries="both", kind="procrustes", widths=(5, 3), old=None) -> Upgraded:
    old = old or drawn(widths[1], 1)
    method = Upgraded(drawn(widths[0], 0), old, 2, lambda tokens: tokens, queries, kind, (CAPTIONS[:1], CAPTIONS[:1]))
    method.set_pair_source(Pairs())
    method.begin_task(make_task(0))
    method.measure_old(batches())
    method.end_task(make_task(0), batches())
    return method.eval()


@pytest.mark.parametrize("part", [OLD, NEW])
def test_pairs_that_do_not_belong_together_have_z_scores_of_mean_0_and_deviation_1(part):
    method = upgraded()
    model = (method.old, method.base)[part]
    z = method.score(method.encode_text(CAPTIONS, part - 1), model.videos)
    videos = torch.arange(12) // 2
    others = z[videos[:, None] != videos]
    assert others.mean().item() == pytest.approx(0, abs=1e-5)
    assert others.std().item() == pytest.approx(1, abs=1e-5)
    plain = model.score(model.texts, model.videos)
    assert torch.equal(z.argsort(dim=1), plain.argsort(dim=1))  # no rank within a part changes


@pytest.mark.parametrize("widths", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("queries", ["both", "map"])
def test_models_of_any_widths_search_their_own_videos(queries, widths):
    method = upgraded(queries, widths=widths)
    assert method.text_passes == (2 if queries == "both" else 1)
    once = method.encode_text_once(CAPTIONS)
    for task, model in ((-2, method.old), (-1, method.old), (0, method.base)):
        asked = method.encode_text(CAPTIONS, task)
        assert torch.equal(method.move_text(once, task), asked)
        assert asked.shape == (12, model.videos.shape[1] + 2)
        padded = torch.nn.functional.pad(model.videos, (0, 2))  # where videos of both models are one block
        assert torch.equal(method.score(asked, padded), method.score(asked, model.videos))
    method.gallery_is_fresh = True
    assert torch.equal(method.encode_text(CAPTIONS, -1), method.encode_text(CAPTIONS, 0))
    assert torch.equal(method.move_text(method.encode_text_once(CAPTIONS), -1), method.encode_text(CAPTIONS, -1))


@pytest.mark.parametrize("kind", ["procrustes", "linear"])
def test_a_map_finds_an_old_space_that_is_the_new_one_turned(kind):
    new = drawn(4, 0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(5)))[0]
    method = upgraded("map", kind, (4, 4), Table(3 * new.texts @ turn, new.videos @ turn))
    found, expected = method.encode_text(CAPTIONS, -1)[:, :4], method.old.texts
    cosines = torch.nn.functional.cosine_similarity(found, expected)
    assert cosines.min() > (0.9999 if kind == "procrustes" else 0.99)
    torch.testing.assert_close(found.norm(dim=1), expected.norm(dim=1))


def test_the_linear_map_is_the_least_squares_under_noise():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 3, generator=random), torch.randn(6, 2, generator=random)
    noisy = x.double() + 0.5 * torch.randn(200_000, 6, 3, generator=random, dtype=torch.float64)
    drawn_many = torch.linalg.lstsq(noisy.flatten(0, 1), y.double().repeat(200_000, 1)).solution
    torch.testing.assert_close(ridge_map(x, y, 0.5), drawn_many, atol=0.01, rtol=0)
    torch.testing.assert_close(ridge_map(x, y, 0.0), torch.linalg.lstsq(x.double(), y.double()).solution)


def test_the_old_model_stays_frozen_and_in_evaluation_mode():
    method = upgraded().train()
    assert method.training
    assert not method.old.training
    assert not any(p.requires_grad for p in method.old.parameters())


def test_unmapped_captions_search_all_videos_as_the_new_model_encodes_them():
    method = upgraded("new", widths=(5, 5))
    for task in (-2, -1, 0):
        found = method.encode_text(CAPTIONS, task)
        torch.testing.assert_close(found[:, :5], method.base.texts, rtol=0, atol=0)
        assert torch.equal(found[:, 5:], method.scales[NEW].expand(12, 2))
        assert torch.equal(method.move_text(method.encode_text_once(CAPTIONS), task), found)
    assert method.text_passes == 1
