"""Streams with hidden boundaries: chunks of training videos are learned when they are complete."""

from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.orchestrator.data.batches import task_of
from ctvr.orchestrator.execution import find_manifest
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.videos import drop_videos
from tests.refusing import refuses


@pytest.mark.parametrize(
    ("name", "count"), [("shapes-5", 7), ("shapes-10", 37), ("worlds-5_pairs240_blurry10", 6), ("shapes-5", 6)]
)
def test_each_chunk_is_learned_in_the_task_in_which_its_last_video_arrives(tmp_path, name, count):
    plain, hidden = (load_stream(each, tmp_path, render=False) for each in (name, f"{name}_chunks{count}"))
    assert hidden.name == f"{plain.name}_chunks{count}"
    assert (
        len({hidden.digest, plain.digest, load_stream(f"{name}_chunks{count + 1}", tmp_path, render=False).digest}) == 3
    )
    assert hidden.settings == plain.settings
    arrives = {item.video: place for place, task in enumerate(plain.tasks) for item in task.train}
    assert len(hidden.method_tasks) == count
    sizes = [len(chunk.train) for chunk in hidden.method_tasks]
    assert sum(sizes) == len(arrives)
    assert max(sizes) - min(sizes) <= 1
    assert {item.video for chunk in hidden.method_tasks for item in chunk.train} == arrives.keys()
    numbers = [number for place in range(len(plain.tasks)) for number in hidden.learned_in(place)]
    assert numbers == list(range(count))
    straddling = 0
    for place, (before, after) in enumerate(zip(plain.tasks, hidden.tasks, strict=True)):
        assert (after.name, after.categories, after.val, after.test) == (
            before.name,
            before.categories,
            before.val,
            before.test,
        )
        assert hidden.method_task(place) + 1 == hidden.learned_in(place).stop
        for number in hidden.learned_in(place):
            chunk = hidden.method_tasks[number]
            of = [arrives[item.video] for item in chunk.train]
            assert max(of) == place
            straddling += min(of) < place
            task = task_of(hidden, number, hidden.method_tasks)
            assert (task.index, task.num_tasks, task.name) == (number, count, f"chunk_{number + 1:02d}")
            assert set(task.categories) == {hidden.category_index(item.category) for item in chunk.train}
    assert straddling > 0


def test_an_order_applies_before_the_chunks(tmp_path):
    hidden, ordered = (load_stream(each, tmp_path, render=False) for each in ("shapes-5_chunks7@3", "shapes-5@3"))
    assert [task.name for task in hidden.tasks] == [task.name for task in ordered.tasks]
    assert {item.category for item in hidden.method_tasks[0].train} == set(ordered.tasks[0].categories)
    assert hidden.digest == ordered.chunked(7).digest


def test_chunks_that_are_the_tasks_hold_their_videos_in_order(tmp_path):
    plain, hidden = (load_stream(each, tmp_path, render=False) for each in ("shapes-5", "shapes-5_chunks5"))
    for index, task in enumerate(plain.tasks):
        assert [replace(item, chunk=None) for item in hidden.method_tasks[index].train] == list(task.train)
        of_method, of_stream = task_of(hidden, index, hidden.method_tasks), task_of(plain, index, plain.tasks)
        assert replace(of_method, name=of_stream.name) == of_stream
        assert hidden.learned_in(index) == range(index, index + 1)


def test_a_task_may_complete_no_chunk(small_stream):
    first, second, third = small_stream.tasks
    uneven = replace(small_stream, tasks=(first, replace(second, train=second.train[:1]), third)).chunked(3)
    assert [list(uneven.learned_in(place)) for place in range(3)] == [[0], [], [1, 2]]
    assert [uneven.method_task(place) for place in range(3)] == [0, 0, 2]
    assert uneven.tasks[1].train == ()


def test_dropped_videos_leave_their_chunk(small_stream):
    hidden = small_stream.chunked(5)
    lost = hidden.method_tasks[2].train[0]
    left = drop_videos(hidden, [lost])
    assert [len(task.train) for task in left.method_tasks] == [
        len(task.train) - (number == 2) for number, task in enumerate(hidden.method_tasks)
    ]


def test_a_manifest_keeps_its_chunks_where_its_path_is_made_absolute(tmp_path, manifest, monkeypatch):
    monkeypatch.chdir(Path(manifest).parent)
    assert find_manifest("small.json_blurry25_chunks4@2") == f"{manifest}_blurry25_chunks4@2"
    assert load_stream(f"{manifest}_blurry25_chunks4", tmp_path).name == "small_blurry25_chunks4"


def test_a_number_of_chunks_that_tasks_cannot_have_is_refused(small_stream):
    for count in (0, 2, 13):
        with refuses("4", "3", "12"):
            small_stream.chunked(count)
    assert len(small_stream.chunked(12).method_tasks) == 12
