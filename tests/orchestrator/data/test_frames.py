"""Frames through the store: decoded once, keyed by all that determines them, repaired when damaged."""

from dataclasses import replace

import numpy as np
from PIL import Image

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.backbone.weight_settings import weight_settings
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.data.frames import CANDIDATES, FrameSource
from ctvr.orchestrator.data.jpeg_frames import decode_frames, encode_frames
from ctvr.orchestrator.digests import digest_file, digest_of
from ctvr.orchestrator.learning.run.execute import RunPaths
from ctvr.orchestrator.store import packer
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.video.decode import decoder_version
from ctvr.orchestrator.video.pool import Decoder
from ctvr.orchestrator.video.sampling import choose_frames, missing_frame
from tests.refusing import refuses


def test_a_damaged_object_is_decoded_again_and_served_right(small_stream, runs):
    config = DataConfig(num_frames=4)
    source = FrameSource(RunPaths(runs).open_store(), config, 64)
    item = small_stream.items(0, "train")[0]
    before = np.array(source.load(item))
    file = next((runs / "store" / "frames").rglob(f"*{source.key(item)}*"))
    content = bytearray(file.read_bytes())
    content[-100] ^= 0xFF
    file.chmod(0o644)
    file.write_bytes(content)
    fresh = FrameSource(RunPaths(runs).open_store(), config, 64)
    assert np.array_equal(fresh.load(item), before)
    again = FrameSource(RunPaths(runs).open_store(), config, 64)
    assert np.array_equal(again.load(item), before)


def test_one_child_decodes_what_is_asked_for_again_and_again(small_stream, tmp_path):
    source = FrameSource(Store.open(tmp_path), DataConfig(num_frames=2), 64)
    with Decoder(workers=1) as pool:
        starts = []
        for item in small_stream.items(0, "train")[:2]:
            assert source.decode_missing([item], pool=pool) == (1, [])
            starts.append(pool._children[0].process)
        assert starts[0] is starts[1] is not None
        assert starts[0].poll() is None  # `decode_missing` leaves a pool that it was lent alone
    assert starts[0].poll() is not None


def test_videos_that_are_decoded_together_lie_together(small_stream, tmp_path, monkeypatch):
    monkeypatch.setattr(packer, "FULL", 150_000)  # bytes: four of these videos
    items = [item for task in range(3) for item in small_stream.items(task, "train")]
    config = DataConfig(num_frames=4)
    together, alone = (FrameSource(Store.open(tmp_path / name), config, 64) for name in ("together", "alone"))
    assert together.decode_missing(items, workers=1) == (len(items), [])
    full, left = divmod(len(items), 4)
    assert together.store.size().objects == 2 * full + left
    assert together.store.filter_existing("frames", [together.key(item) for item in items]) == set(
        together._keys.values()
    )
    there = FrameSource(Store.open(tmp_path / "together"), config, 64)
    for item in items[:2]:
        np.testing.assert_array_equal(there.load(item), alone.load(item))
        assert there.store.get("frames", there.key(item)).meta == {"video": item.video, "decoder": "pyav"}
    assert together.store.size().objects == 2 * full + left  # nothing was decoded again


def test_the_key_changes_with_everything_that_decides_the_frames(small_stream, runs):
    item = small_stream.items(0, "train")[0]
    store = RunPaths(runs).open_store()
    keys = {
        FrameSource(store, DataConfig(num_frames=4), 64).key(item),
        FrameSource(store, DataConfig(num_frames=5), 64).key(item),
        FrameSource(store, DataConfig(num_frames=4), 32).key(item),
        FrameSource(store, DataConfig(num_frames=4, decoder="auto"), 64).key(item),
        FrameSource(store, DataConfig(num_frames=4, sampling="linspace"), 64).key(item),
        FrameSource(store, DataConfig(num_frames=4), 64).key(small_stream.items(0, "train")[1]),
    }
    assert len(keys) == 5 + ("decord" in decoder_version("auto"))
    source = FrameSource(store, DataConfig(num_frames=4), 64)
    for segment in (None, (0.0, 1.5)):  # stored frames are found again
        made = {"decoder": source.version, "num_frames": 4, "rule": "segments", "segment": segment, "size": 64}
        assert source.key(replace(item, segment=segment)) == digest_of({**made, "file": digest_file(item.path)})


def test_frames_of_another_size_than_the_backbone_sees_are_refused(runs):
    with refuses("64", "224", where="data.image_size"):
        FrameSource(RunPaths(runs).open_store(), DataConfig(image_size=224), 64)


def test_frames_that_may_be_drawn_lie_in_their_part_of_the_video():
    for frames in (*range(48, 130), 1000, 30_001):
        chosen = choose_frames(np.arange(frames) / 25, 12 * CANDIDATES, rule="linspace").reshape(12, CANDIDATES)
        edges = np.linspace(0, frames, 13).astype(int)
        assert (chosen >= edges[:-1, None]).all()
        assert (chosen < edges[1:, None]).all()
        assert chosen[0, 0] == 0
        assert chosen[-1, -1] == frames - 1


def test_a_short_video_repeats_its_frames_in_order():
    chosen = choose_frames(np.arange(5) / 25, 4 * CANDIDATES, rule="linspace")
    assert (np.diff(chosen) >= 0).all()
    assert set(chosen.tolist()) == set(range(5))


def test_random_frames_are_drawn_in_training_and_are_the_middles_elsewhere(small_stream, runs):
    store, item = RunPaths(runs).open_store(), small_stream.items(0, "train")[0]
    plain, drawn = (FrameSource(store, DataConfig(num_frames=4, sampling=rule), 64) for rule in ("segments", "random"))
    assert drawn.key(item) == plain.key(item)
    assert np.array_equal(drawn.load(item), plain.load(item))
    known = drawn.candidates.load(item)
    for seed in range(5):
        found = drawn.draw(item, seed)
        assert found.shape == plain.load(item).shape
        assert np.array_equal(found, drawn.draw(item, seed))
        for part, frame in enumerate(found):
            assert any(np.array_equal(frame, other) for other in known[part * CANDIDATES : (part + 1) * CANDIDATES])
    assert plain.candidates is None


def test_frames_that_are_stored_as_jpeg_are_small_near_and_of_another_key(small_stream, tmp_path):
    item = small_stream.items(0, "train")[0]
    plain, small, coarse = (
        FrameSource(Store.open(tmp_path), DataConfig(num_frames=4, jpeg_quality=quality), 64)
        for quality in (None, 90, 10)
    )
    assert len({source.key(item) for source in (plain, small, coarse)}) == 3
    raw = plain.load(item)
    errors, sizes = [], []
    for source in (small, coarse):
        first = source.load(item)  # decoded from the video
        again = FrameSource(source.store, DataConfig(num_frames=4, jpeg_quality=source.quality), 64)
        assert np.array_equal(again.load(item), first)
        assert np.array_equal(source._load(item, np.array([3, 1])), first[[3, 1]])
        errors.append(np.abs(first.astype(int) - raw).mean())
        sizes.append(source.store.get("frames", source.key(item))["jpeg"].nbytes)
    assert 0 < errors[0] < errors[1]
    assert errors[0] < 12  # of 255; the frames are noise, which JPEG compresses worst
    assert sizes[1] < sizes[0] < raw.nbytes


def test_a_missing_frame_stays_recognisable_as_jpeg():
    frames = np.stack([np.full((64, 64, 3), 7, np.uint8), missing_frame(64)])
    there, missing = decode_frames(encode_frames(frames, 50))
    assert np.array_equal(missing, frames[1])
    assert np.abs(there.astype(int) - 7).max() <= 2


def test_random_frames_of_a_jpeg_video_are_those_of_its_candidates(small_stream, tmp_path):
    item = small_stream.items(0, "train")[0]
    source = FrameSource(Store.open(tmp_path), DataConfig(num_frames=3, sampling="random", jpeg_quality=90), 64)
    drawn = source.draw(item, 5)
    known = source.candidates.load(item)
    chosen = np.random.default_rng(5).integers(CANDIDATES, size=3)
    assert np.array_equal(drawn, known[np.arange(3) * CANDIDATES + chosen])


def test_weights_that_resize_as_openai_keep_their_keys_and_frames(small_stream, runs):
    item, store, config = small_stream.items(0, "train")[0], RunPaths(runs).open_store(), DataConfig(num_frames=4)
    plain = FrameSource(store, config, 64)
    made = {"decoder": plain.version, "num_frames": 4, "rule": "segments", "segment": None, "size": 64}
    for name, weights in (("tiny-clip", "shipped"), ("ViT-B-32-quickgelu", "random")):
        clip = load_backbone(name, weights)
        source = FrameSource(store, config, 64, clip.resize)
        assert source.key(item) == plain.key(item) == digest_of({**made, "file": digest_file(item.path)})
    assert weight_settings("ViT-B-32-quickgelu", "openai") == weight_settings("ViT-B-32-quickgelu", "random")


def test_frames_that_are_resized_in_another_way_have_another_key(small_stream, tmp_path):
    (tmp_path / "film").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (2, 37, 80, 3)).astype(np.uint8)):
        Image.fromarray(image).save(tmp_path / "film" / f"{number}.png")
    item = replace(small_stream.items(0, "train")[0], path=str(tmp_path / "film"))
    config = DataConfig(num_frames=2)
    ways = [("shortest", "bicubic"), ("squash", "bicubic"), ("squash", "bilinear"), ("longest", "bicubic")]
    sources = [FrameSource(Store.open(tmp_path / "store"), config, 32, way) for way in ways]
    assert (
        len({source.key(item) for source in sources}) == len({source.load(item).tobytes() for source in sources}) == 4
    )
    for source in sources:  # from the store
        assert np.array_equal(FrameSource(source.store, config, 32, source.resize).load(item), source.load(item))
