"""Features of videos have equal bits in any batch, and for any order of the frames that a method averages."""

import math

import pytest
import torch

from ctvr.methods import METHODS, find_method
from ctvr.orchestrator.learning.evaluation.encode_videos import FRAMES_PER_BLOCK, encode_in_blocks, encode_videos
from ctvr.orchestrator.learning.evaluation.ranking import TILE, rank
from ctvr.orchestrator.learning.evaluation.tiled_scorer import TiledScorer
from ctvr.orchestrator.method_checks.subject import Subject, learn, make_batch

RETRIEVERS = [name for name in METHODS if not find_method(name).wraps]
BLIND = ("zero_shot", "clip4clip", "lora", "prompt", "adapter", "vop", "moe_adapter", "cclip", "lpi", "dar", "bmu_moco")


def learned(name, **settings):
    """Return a method after a step on two blocks, in evaluation mode."""
    words = {key.replace("__", "."): value for key, value in settings.items()}
    method = Subject(Subject.of(name, words).experiment, layers=2).make()
    learn(method, 0, steps=1)
    return method.eval()


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_vector_depends_neither_on_its_batch_nor_on_its_place(name):
    method, frames = learned(name), make_batch(32, 4, seed=9).frames
    whole = encode_videos(method, [frames], 0)
    for size in (1, 5, 7):
        assert torch.equal(encode_videos(method, frames.split(size), 0), whole)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encode_videos(method, [frames[order]], 0), whole[order])


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("name", BLIND)
def test_frames_that_are_averaged_may_be_in_any_order(name, count):
    if name in ("vop",) and count != 4:
        pytest.skip("its prompts are made for four frames")
    method, frames = learned(name, data__num_frames=count), make_batch(8, count, seed=3).frames
    whole = encode_videos(method, [frames], 0)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    for moved in (frames.flip(1), frames[:, order]):
        assert torch.equal(encode_videos(method, [moved], 0), whole)


@pytest.mark.parametrize("others", [0, 7, 21, TILE + 37])
def test_reversed_twins_tie_wherever_they_are_in_the_gallery(others):
    """Their columns are in tiles of different widths, and at different places of a tile."""
    method, frames = learned("clip4clip", data__num_frames=5), make_batch(40, 5, seed=3).frames
    videos = encode_videos(method, [torch.cat([frames, frames.flip(1)])], 0)
    more = torch.nn.functional.normalize(torch.randn(others, videos.shape[1]), dim=1)
    gallery = torch.cat([videos[:40], more, videos[40:]])
    captions = torch.nn.functional.normalize(torch.randn(40, videos.shape[1]), dim=1)
    twin = torch.arange(40) + 40 + others
    score = TiledScorer(method, [captions], [gallery], torch.device("cpu"))
    found = rank(score, torch.arange(40), (0, 40), (0, len(gallery)), twin, chunk=11)
    whole = rank(score, torch.arange(40), (0, 40), (0, len(gallery)), twin, chunk=512)
    assert whole.to_videos.listed() == found.to_videos.listed()
    assert found.beats_twin.tolist() == [0.5] * 40
    assert (found.to_videos.equal >= 1).all()
    for size in (1, 7, 16):  # evaluation.query_chunk is not in keys
        chunks = [score(rows, slice(0, 80)) for rows in torch.arange(40).split(size)]
        assert torch.equal(torch.cat(chunks), score(slice(0, 40), slice(0, 80)))


@pytest.mark.parametrize(("count", "frames"), [(1, 1), (5, 4), (33, 4), (3, 100)])
def test_blocks_have_one_size_and_return_every_row_once(count, frames):
    sizes = []

    def encode(part):
        sizes.append(len(part))
        return part.flatten(1)

    given = torch.arange(float(count * frames)).view(count, frames)
    assert torch.equal(encode_in_blocks(encode, given.split(7)), given)
    size = max(1, FRAMES_PER_BLOCK // frames)
    assert sizes == [size] * math.ceil(count / size)
