"""The stream of worlds: its manifest, its dials and its files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from open_clip.tokenizer import SimpleTokenizer

from ctvr.methods.backbone.architectures import SHIPPED
from ctvr.orchestrator.streams.load import available_streams, load_stream
from ctvr.orchestrator.streams.manifest import parse_manifest
from ctvr.orchestrator.synthetic import video_files, worlds_stream
from ctvr.orchestrator.synthetic.worlds import Dials
from ctvr.orchestrator.video.sampling import choose_frames

SMALL = Dials(pairs=24)


def manifest(tmp_path, count=5, dials=SMALL, seed=0):
    return worlds_stream.render_worlds(tmp_path, count, dials, seed, videos=False)


def items(made, split):
    return [item for task in made["tasks"] for item in task[split]]


def test_a_task_is_a_world_with_all_three_splits(tmp_path):
    made = manifest(tmp_path)
    assert [task["name"] for task in made["tasks"]] == ["sport", "microscope", "radar", "diving", "mine"]
    for task in made["tasks"]:
        assert [len(task[split]) for split in ("train", "val", "test")] == [24, 40, 80]
    stream = parse_manifest(json.loads(json.dumps(made)), "worlds-5", tmp_path)
    assert stream.has_val
    assert stream.settings["backbone.name"] == "tiny-clip-stem"


@pytest.mark.parametrize("count", [10, 50])
def test_longer_streams_begin_with_the_same_worlds(tmp_path, count):
    short, long = manifest(tmp_path), manifest(tmp_path, count)
    assert len(long["tasks"]) == count
    assert long["tasks"][:5] == short["tasks"]


def test_no_caption_occurs_twice_in_a_world(tmp_path):
    for task in manifest(tmp_path, dials=Dials())["tasks"]:
        captions = [item["captions"][0] for split in ("train", "val", "test") for item in task[split]]
        assert len(set(captions)) == len(captions) == 600


@pytest.mark.parametrize(("motion", "paired"), [(0.0, 0), (0.5, 40), (1.0, 80)])
def test_motion_is_the_share_of_clips_with_a_twin(tmp_path, motion, paired):
    task = manifest(tmp_path, dials=replace(SMALL, motion=motion))["tasks"][0]
    by_id = {item["video"]: item for item in task["test"]}
    twins = [item for item in by_id.values() if item["twin"]]
    assert len(twins) == paired
    assert all(by_id[item["twin"]]["twin"] == item["video"] for item in twins)


def test_another_seed_gives_other_scenes(tmp_path):
    assert manifest(tmp_path) == manifest(tmp_path)
    assert [i["captions"] for i in items(manifest(tmp_path), "train")] != [
        i["captions"] for i in items(manifest(tmp_path, seed=1), "train")
    ]


@pytest.mark.slow
def test_a_dial_is_part_of_the_name_and_of_the_digest(tmp_path):
    plain = load_stream("worlds-5", tmp_path, render=False)
    for dial in ("shift0.5", "pairs100", "distractors2"):
        turned = load_stream(f"worlds-5_{dial}", tmp_path, render=False)
        assert turned.name == f"worlds-5_{dial}"
        assert turned.digest != plain.digest
        assert {item.path for item in turned.items(0, "test")}.isdisjoint(item.path for item in plain.items(0, "test"))


def test_dials_at_their_defaults_and_in_any_order_are_one_stream(tmp_path):
    plain, written = (load_stream(name, tmp_path, render=False) for name in ("worlds-5", "worlds-5_motion0.5"))
    assert written.name == "worlds-5"
    assert written.digest == plain.digest
    assert worlds_stream.split_dials("worlds-5_pairs99_shift0") == worlds_stream.split_dials("worlds-5_shift0_pairs99")


def test_a_dial_and_an_order_of_tasks_go_together(tmp_path):
    stream = load_stream("worlds-5_conflict0@3", tmp_path, render=False)
    assert stream.order == 3
    assert stream.content == load_stream("worlds-5_conflict0", tmp_path, render=False).content
    assert stream.settings == worlds_stream.SETTINGS


def test_captions_fit_and_split_as_with_clips_own_vocabulary():
    full = SimpleTokenizer()
    own = SimpleTokenizer(bpe_path=str(SHIPPED["tiny-clip-stem"] / "bpe.txt.gz"), context_length=32)
    for index in (0, 1, 49):
        for _, _, item in worlds_stream.plan(index, SMALL, 0):
            pieces = own.encode(item["captions"][0])
            assert len(pieces) + 2 <= 32
            assert len(pieces) == len(full.encode(item["captions"][0]))


def test_worlds_are_listed_among_the_streams(tmp_path):
    assert {"worlds-5", "worlds-10", "worlds-20", "worlds-50", "worlds-quick"} < set(available_streams(tmp_path))


def test_the_quick_stream_is_worlds_5_with_fewer_pairs_and_its_own_settings(tmp_path):
    quick, dialled = (load_stream(name, tmp_path, render=False) for name in ("worlds-quick", "worlds-5_pairs320"))
    assert quick.name == "worlds-quick"
    assert [quick.items(task, "train") for task in range(5)] == [dialled.items(task, "train") for task in range(5)]
    assert quick.settings == worlds_stream.QUICK_SETTINGS != dialled.settings


@pytest.mark.parametrize("settings", [worlds_stream.SETTINGS, worlds_stream.QUICK_SETTINGS])
def test_the_recommended_frames_are_the_same_of_both_twins(settings):
    made, rule = worlds_stream.FORMAT, settings.get("data.sampling", "segments")
    chosen = choose_frames(np.arange(made.frames) / made.fps, settings["data.num_frames"], rule=rule)
    assert {made.frames - 1 - number for number in chosen} == set(chosen)  # not 0 and 2, reversed 3 and 1


def test_twins_hold_the_same_frames_after_decoding(tmp_path):
    av = pytest.importorskip("av")
    clips = [clip for split, clip, item in worlds_stream.plan(0, SMALL, 0) if split == "test" and item["twin"]][:2]
    digest = video_files.render_files(tmp_path / "a", clips, 1, False, worlds_stream.FORMAT)
    assert video_files.render_files(tmp_path / "b", clips, 1, False, worlds_stream.FORMAT) == digest
    shown = []
    for clip in clips:
        with av.open(str(tmp_path / "a" / clip.path)) as video:
            shown.append(np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]))
        assert (tmp_path / "a" / clip.path).read_bytes() == (tmp_path / "b" / clip.path).read_bytes()
    assert shown[0].shape == (4, 64, 64, 3)
    assert np.array_equal(shown[0], shown[1][::-1])
