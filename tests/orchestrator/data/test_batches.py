"""Pairs, batches and frames: none is lost or repeated, and the seed determines all of them."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
import torch

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.layers.missing_frames import frames_there
from ctvr.orchestrator.data.batches import StreamData, check_pairs, index_batches, seed_of
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.data.prefetch import num_prefetch_threads
from ctvr.orchestrator.learning.run.execute import RunPaths
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

CPU = torch.device("cpu")
VIDEOS = [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_an_epoch_is_a_permutation_of_all_pairs():
    batches = index_batches(VIDEOS, 4, seed=3)
    assert sorted(pair for batch in batches for pair in batch) == list(range(9))
    assert [len(batch) for batch in batches] == [4, 4, 1]
    assert batches == index_batches(VIDEOS, 4, seed=3)
    assert batches != index_batches(VIDEOS, 4, seed=4)


@pytest.mark.parametrize("seed", range(20))
def test_unique_videos_never_share_a_batch_and_no_pair_is_lost(seed):
    batches = index_batches(VIDEOS, 4, seed, unique_videos=True)
    assert sorted(pair for batch in batches for pair in batch) == list(range(9))
    for batch in batches:
        assert max(Counter(VIDEOS[pair] for pair in batch).values()) == 1
        assert len(batch) <= 4


def test_one_caption_per_video_is_drawn_again_each_epoch():
    epochs = [
        [pair for batch in index_batches(VIDEOS, 4, seed, one_per_video=True) for pair in batch] for seed in range(30)
    ]
    assert all(sorted(VIDEOS[pair] for pair in epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert {pair for epoch in epochs for pair in epoch} == set(range(9))


def test_seeds_depend_on_every_part():
    assert (
        len(
            {seed_of(0, "order", 1, 2), seed_of(1, "order", 1, 2), seed_of(0, "order", 12), seed_of(0, "augment", 1, 2)}
        )
        == 4
    )


def stream_data(stream, runs, config: DataConfig) -> StreamData:
    clip = load_backbone("tiny-clip", "shipped")
    source = FrameSource(RunPaths(runs).open_store(), config, clip.image_size)
    return StreamData(stream, source, clip.tokenize, clip.mean, clip.std, config, CPU)


@pytest.fixture
def data(small_stream, runs) -> StreamData:
    return stream_data(small_stream, runs, DataConfig(num_frames=4, batch_size=4))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"batch_size": 3}, {"unique_videos": True}])
def test_the_sizes_of_batches_are_known_before_they_are_made(small_stream, runs, settings, workers):
    data = stream_data(small_stream, runs, DataConfig(**{"num_frames": 4, "batch_size": 4, **settings}))
    sizes = data.batch_sizes([0], seed=1, task=0, epoch=2, workers=workers)
    made = [
        [len(batch.video_ids) for batch in data.train_batches([0], 1, 0, 2, rank, workers)] for rank in range(workers)
    ]
    assert sizes == [sum(parts) for parts in zip(*made, strict=True)]
    assert all(len(set(parts)) == 1 for parts in zip(*made))  # every worker has equally many
    if not settings.get("unique_videos"):
        assert data.steps([0], workers) == len(sizes)


@pytest.mark.parametrize(
    ("settings", "workers", "values"),
    [
        ({}, 9, "task_01 8 9"),
        ({"unique_videos": True}, 5, "4 5"),
        ({"caption_sampling": "random_per_video"}, 8, "4 8"),
    ],
)
def test_a_task_that_would_train_nothing_is_refused(small_stream, settings, workers, values):
    with refuses(*values.split(), where="workers"):
        check_pairs(small_stream, DataConfig(**settings), workers)


@pytest.mark.parametrize(("settings", "workers"), [({}, 8), ({"unique_videos": True}, 4)])
def test_as_many_workers_as_pairs_train_on_every_task(data, small_stream, settings, workers):
    config = DataConfig(**{"num_frames": 4, "batch_size": workers, **settings})
    check_pairs(small_stream, config, workers)
    data.config = config
    for task in range(3):
        assert data.batch_sizes([task], seed=0, task=task, epoch=0, workers=workers)


def test_pairs_of_several_tasks_say_which_one_they_come_from(data):
    tasks = range(len(data.stream.tasks))
    first = {item.video for item in data.stream.items(0, "train")}
    for batch in data.train_batches(list(tasks), seed=1, task=1, epoch=0):
        videos = [data._all[number][0].video for number in batch.pair_ids.tolist()]
        assert [task == 0 for task in batch.task_ids.tolist()] == [video in first for video in videos]
    assert all(batch.task_ids is None for batch in data.train_batches([1], seed=1, task=1, epoch=0))


def test_batches_have_the_contracts_shapes(data):
    batch = next(data.train_batches([0], seed=0, task=0, epoch=0))
    assert batch.frames.shape == (4, 4, 3, 64, 64)
    assert batch.tokens.shape == (4, int(batch.tokens.argmax(dim=1).max()) + 1)  # cut to the longest caption
    assert batch.tokens.dtype == batch.video_ids.dtype == batch.categories.dtype == torch.int64
    assert batch.frames.abs().max() <= 2.0 + 1e-6  # (x - 0.5) / 0.25


def test_missing_frames_are_zeros_after_the_normalisation(data, small_stream, runs):
    config = DataConfig(num_frames=4, batch_size=4, sampling="one_per_second", augment="crop_flip")
    source = FrameSource(RunPaths(runs).open_store(), config, 64)
    source.decode_missing(small_stream.items(0, "train"), workers=1)
    other = StreamData(
        small_stream, source, lambda texts: torch.zeros(len(texts), 3), (0.4,) * 3, (0.2,) * 3, config, CPU
    )
    batch = next(other.train_batches([0], seed=0, task=0, epoch=0))
    whole = next(data.train_batches([0], seed=0, task=0, epoch=0)).frames
    there = frames_there(batch.frames)
    assert there.max() < 4 == frames_there(whole).min()  # videos of the stream are shorter than four seconds
    for video, count in zip(batch.frames, there.tolist()):
        assert video[:count].flatten(1).any(dim=1).all()
        assert not video[count:].any()


def test_captions_are_cut_with_their_end_kept(data):
    whole = data.queries(0, "test").tokens
    data.config = replace(data.config, max_tokens=5)
    cut, ends = data.queries(0, "test").tokens, whole.argmax(dim=1)
    assert cut.shape == whole.shape
    assert int(ends.max()) > 4
    for before, after, end in zip(whole, cut, ends):
        kept = min(int(end), 4)
        assert torch.equal(after[:kept], before[:kept])
        assert after[kept] == before[end]
        assert not after[kept + 1 :].any()
    batch = next(data.train_batches([0], seed=0, task=0, epoch=0))
    assert int(batch.tokens.argmax(dim=1).max()) <= 4
    with refuses(">=", "2", "1", kind=ValueError, settings=("max_tokens",)):
        DataConfig(max_tokens=1)


@pytest.mark.parametrize(
    ("length", "expected"), [(3, [7, 5, 9, 0]), (4, [7, 5, 5, 9]), (5, [7, 5, 5, 9]), (2, [7, 9, 0, 0])]
)
def test_a_caption_of_any_length_keeps_its_end_in_the_last_place(data, length, expected):
    """Captions of 5 words between the ends 7 and 9; one token too many is the case that an off-by-one error loses."""
    row = torch.tensor([[7, *[5] * (length - 2), 9, *[0] * (8 - length)]])
    data.config, data.tokenizer = replace(data.config, max_tokens=4), lambda captions: row
    assert data.tokens([""]).tolist() == [expected + [0] * 4]


def test_workers_share_a_batch_in_blocks(data):
    whole = [batch.pair_ids for batch in data.train_batches([0], 0, 0, 0)]
    halves = [list(data.train_batches([0], 0, 0, 0, rank, 2)) for rank in (0, 1)]
    for pairs, a, b in zip(whole, *halves, strict=True):
        assert torch.equal(pairs, torch.cat([a.pair_ids, b.pair_ids]))  # gathered, they are in the order of one worker


@pytest.fixture(scope="module")
def random_frames(decoded, tmp_path_factory) -> StreamData:
    """Return frames to draw from, which are decoded once; do not write to them."""
    runs = shutil.copytree(decoded, tmp_path_factory.mktemp("random") / "runs")
    config = DataConfig(num_frames=3, batch_size=4, sampling="random")
    data = stream_data(load_stream(runs / "small" / "small.json", runs), runs, config)
    items = [item for split in ("train", "test") for item in data.stream.items(0, split)]
    for source in (data.frames, data.frames.candidates):  # by one child
        source.decode_missing(items, workers=1)
    return data


def by_pair(batches):
    return {n: video for batch in batches for n, video in zip(batch.pair_ids.tolist(), batch.frames)}


def test_random_frames_depend_on_seed_epoch_and_video_and_on_no_worker(random_frames):
    alone = by_pair(random_frames.train_batches([0], 1, 0, 0))
    shared = [by_pair(random_frames.train_batches([0], 1, 0, 0, rank, 2)) for rank in range(2)]
    assert shared[0]
    for number, video in {**shared[0], **shared[1]}.items():
        assert torch.equal(video, alone[number])
    for other in ((2, 0, 0), (1, 0, 1)):  # another seed, another epoch
        drawn = by_pair(random_frames.train_batches([0], *other))
        assert any(not torch.equal(drawn[number], alone[number]) for number in alone)


def test_frames_are_not_drawn_for_replay_evaluation_or_end_task(random_frames, small_stream, runs):
    plain = stream_data(small_stream, runs, replace(random_frames.config, sampling="segments"))
    drawn, middles = by_pair(random_frames.ordered_batches([0])), by_pair(plain.ordered_batches([0]))
    assert all(torch.equal(drawn[number], middles[number]) for number in middles)
    numbers = list(middles)[:2]
    assert torch.equal(random_frames.pairs(numbers)[0], plain.pairs(numbers)[0])
    found, expected = (each.with_training_split("test").train_batches([0], 1, 0, 0) for each in (random_frames, plain))
    assert all(torch.equal(a.frames, b.frames) for a, b in zip(found, expected, strict=True))


def test_background_reading_changes_nothing(data, small_stream, runs):
    config = DataConfig(num_frames=4, batch_size=4, prefetch_threads=2)
    clip = load_backbone("tiny-clip", "shipped")
    threaded = StreamData(small_stream, data.frames, clip.tokenize, clip.mean, clip.std, config, CPU)
    for a, b in zip(data.train_batches([0], 0, 0, 1), threaded.train_batches([0], 0, 0, 1), strict=True):
        assert torch.equal(a.frames, b.frames)
        assert torch.equal(a.tokens, b.tokens)


def test_prefetching_is_on_by_default_for_a_gpu():
    for device, chosen, threads in (("cuda", None, 2), ("cuda", 0, 0), ("cpu", None, 0), ("cpu", 3, 3)):
        assert (
            num_prefetch_threads(DataConfig(prefetch_threads=chosen).prefetch_threads, torch.device(device)) == threads
        )
    with refuses(">=", "0", "-1", kind=ValueError, settings=("prefetch_threads",)):
        DataConfig(prefetch_threads=-1)


@pytest.mark.parametrize(("augment", "max_tokens"), [("none", None), ("crop_flip", 5)])
def test_a_pair_is_read_again_by_its_number_as_its_task_ended(data, augment, max_tokens):
    data.config = replace(data.config, augment=augment, max_tokens=max_tokens)
    offered = [batch for task in range(3) for batch in data.ordered_batches([task])]
    numbers = torch.cat([batch.pair_ids for batch in offered])
    assert numbers.tolist() == list(range(24))  # over all tasks
    asked = torch.tensor([23, 3, 3, 8])
    frames, tokens = data.pairs(asked.tolist())
    assert torch.equal(frames, torch.cat([batch.frames for batch in offered])[asked])
    assert torch.equal(tokens, torch.cat([batch.tokens for batch in offered])[asked])
    assert frames.is_contiguous()  # one layout, whatever they are joined with
    for rank in range(2):  # every worker's batches name the pairs that they hold
        for batch in data.train_batches([1], 0, 1, 0, rank, 2):
            assert torch.equal(data.pairs(batch.pair_ids.tolist())[1], batch.tokens)


def test_captions_are_padded_to_the_longest_of_the_task(data):
    cut = data.trim_captions_per_task()
    for task in range(3):
        longest = max(int(batch.tokens.argmax(dim=1).max()) for batch in data.ordered_batches([task])) + 1
        for batch in (*cut.ordered_batches([task]), *cut.train_batches([task], 0, task, 0, 1, 2)):
            assert batch.tokens.shape[1] == longest
        assert cut.pairs([0])[1].shape[1] >= longest  # replayed ones: of the stream, whichever are drawn


def test_every_caption_is_a_query_for_its_own_video(data):
    queries = data.queries(1, "test")
    assert queries.target.tolist() == [0, 1, 2]
    assert queries.names == ("green_test_0#0", "green_test_1#0", "green_test_2#0")
    assert queries.twin.tolist() == [-1, -1, -1]
