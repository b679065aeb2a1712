"""Runs whose method does not know the boundaries of the stream (`Stream.chunked`)."""

import json
import math
from pathlib import Path

import pytest
import torch

from ctvr.methods import METHODS, find_method
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import restore_from_commits
from ctvr.orchestrator.learning.training.loop import Loop
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.orchestrator.learning.training.test_loop import numbers, same_weights, unbroken_and_resumed

# With parts for each task, with galleries, with replay, with a teacher, compensating, joint, and none of these
MORE = ["dar", "lwf", "qdc", "upper_bound", "clip4clip"]
SOME = ["framefusion_moe", "er_ring", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
UNEVEN = "uneven.json_chunks3"  # its second task completes no chunk


def made(name: str, stream: str, small_stream, **more: object):
    settings = {key.replace("__", "."): value for key, value in more.items()}
    return resolve({"method": name, "stream": stream, "optim.epochs": 1, **settings}, small_stream.settings)


@pytest.fixture
def uneven(manifest) -> str:
    """A manifest whose second task has one training video, with hidden boundaries."""
    path = Path(manifest)
    told = json.loads(path.read_text())
    told["tasks"][1]["train"] = told["tasks"][1]["train"][:1]
    (path.parent / "uneven.json").write_text(json.dumps(told))
    return str(path.parent / UNEVEN)


@pytest.mark.slow
@pytest.mark.parametrize("method", SOME)
def test_chunks_that_are_the_tasks_change_no_bit(method, manifest, small_stream, runs):
    plain, hidden = (
        execute(made(method, name, small_stream), RunPaths(runs)) for name in (manifest, f"{manifest}_chunks3")
    )
    assert hidden.key != plain.key
    assert numbers(hidden.record) == numbers(plain.record)
    assert same_weights(hidden, plain)


@pytest.mark.parametrize("chunks", [5, 12])
def test_an_untrained_model_does_not_depend_on_boundaries(chunks, manifest, small_stream, runs):
    asked = {"evaluation__reencode": "50,100", "evaluation__unlearned_tasks": True}
    plain, hidden = (
        execute(made("zero_shot", name, small_stream, **asked), RunPaths(runs)).record
        for name in (manifest, f"{manifest}_chunks{chunks}")
    )
    for record in (plain, hidden):
        for row in record.metrics:
            row.pop("stream/index/seconds", None)
    assert numbers(hidden) == numbers(plain)


@pytest.fixture
def drifting(manifest) -> str:
    """A manifest with 24 training videos in each task, whose words belong to the task; chunks end at a drift signal."""
    path = Path(manifest)
    told = json.loads(path.read_text())
    for number, task in enumerate(told["tasks"]):
        captions = [f"the{number} small{number} {word}{number}" for word in ("cat", "dog", "hen")]
        task["train"] = [
            {**item, "video": f"{item['video']}_{copy}", "captions": [captions[copy % 3], "one more"]}
            for copy in range(6)
            for item in task["train"]
        ]
    (path.parent / "drifting.json").write_text(json.dumps(told))
    return str(path.parent / "drifting.json_drift13")


@pytest.mark.slow
def test_a_run_killed_between_chunks_of_a_drift_signal_ends_as_an_unbroken_one(drifting, small_stream, runs):
    found = load_stream(drifting, runs)
    sizes = [len(chunk.train) for chunk in found.method_tasks]
    assert sizes[::2] == [13, 13, 13]
    assert 10 <= min(sizes[1:-1:2]) <= max(sizes[1:-1:2]) < 13, "the signal ends them"
    unbroken, resumed = unbroken_and_resumed(made("framefusion_moe", drifting, small_stream), runs)
    assert resumed.record.done == 3
    assert len(unbroken.record.training) == len(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("method", SOME)
@pytest.mark.parametrize("is_uneven", [False, True])
def test_a_run_killed_between_chunks_ends_as_an_unbroken_one(method, is_uneven, manifest, uneven, small_stream, runs):
    stream = uneven if is_uneven else f"{manifest}_chunks5"
    unbroken, resumed = unbroken_and_resumed(made(method, stream, small_stream), runs)
    assert resumed.record.done == 3
    assert len(resumed.record.union[-1]) == 3  # evaluated by the stream's tasks
    of_method = load_stream(stream, runs).method_tasks
    joint = method == "upper_bound" and unbroken.method.config.only_final
    assert len(unbroken.record.training) == (1 if joint else len(of_method))  # an epoch of each chunk


def test_method_begins_a_task_per_chunk(manifest, small_stream, runs, monkeypatch):
    calls: list[tuple[str, int, int]] = []
    method = find_method("framefusion_moe")
    begin, end, stored = method.begin_task, method.end_task, method.on_gallery_stored
    monkeypatch.setattr(
        method, "begin_task", lambda self, task: calls.append(("begin", task.index, 0)) or begin(self, task)
    )

    def ended(self, task, loader):
        batches = list(loader)
        calls.append(("end", task.index, sum(len(batch.video_ids.unique()) for batch in batches)))
        end(self, task, iter(batches))

    monkeypatch.setattr(method, "end_task", ended)
    monkeypatch.setattr(
        method,
        "on_gallery_stored",
        lambda self, task, gallery: calls.append(("stored", task.index, len(gallery))) or stored(self, task, gallery),
    )
    execute(made("framefusion_moe", f"{manifest}_chunks5", small_stream), RunPaths(runs))
    cuts = [0, 2, 4, 7, 9, 12]
    chunk = [[("begin", n, 0), ("end", n, cuts[n + 1] - cuts[n])] for n in range(5)]
    store = [("stored", n, 3) for n in (1, 2, 4)]
    assert calls == [*chunk[0], *chunk[1], store[0], *chunk[2], store[1], *chunk[3], *chunk[4], store[2]]


def test_task_items_use_the_parameters_of_their_chunk(manifest, small_stream, runs, monkeypatch):
    found: dict[int, list[int]] = {}
    former = Loop._context

    def look(self, index, split, galleries):
        context = former(self, index, split, galleries)
        found[index] = [queries.task for queries in context.queries()]
        return context

    monkeypatch.setattr(Loop, "_context", look)
    experiment = made("framefusion_moe", f"{manifest}_chunks5", small_stream)
    stream = load_stream(f"{manifest}_chunks5", runs)
    result = execute(experiment, RunPaths(runs))
    assert found == {0: [1], 1: [1, 2], 2: [1, 2, 4]}
    restored = restore_from_commits(experiment, Commits(RunPaths(runs).open_store(), result.key), 3, stream)
    assert all(
        torch.equal(value, restored.method.state_dict()[name]) for name, value in result.method.state_dict().items()
    )


@pytest.mark.slow
def test_the_best_epoch_within_a_task_is_chosen_on_the_streams_galleries(manifest, small_stream, runs):
    experiment = made(
        "framefusion_moe", f"{manifest}_chunks5", small_stream, evaluation__select="best", optim__epochs=2
    )
    record = execute(experiment, RunPaths(runs)).record
    assert record.done == 3
    assert len(record.training) == 10


@pytest.mark.slow
@pytest.mark.parametrize("method", ["framefusion_moe", "qdc"])
def test_optional_measurements_follow_the_streams_tasks(method, uneven, small_stream, runs):
    asked = {
        "evaluation__reencode": "50,100",
        "evaluation__reencode_after": "all",
        "evaluation__unlearned_tasks": True,
        "evaluation__oracle_task": True,
        "evaluation__log_losses": True,
    }
    plain, more = (execute(made(method, uneven, small_stream, **each), RunPaths(runs)).record for each in ({}, asked))
    assert (more.own, more.union) == (plain.own, plain.union)
    assert more.metrics[-1]["stream/index/r1_0"] == more.metrics[-1]["stream/t2v/r1"]
    assert set(more.metrics[0]) >= {"task_03/t2v/r1_untrained", "task_03/t2v/r1_unlearned"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_chunks(method, manifest, small_stream, runs):
    experiment = made(method, f"{manifest}_chunks5", small_stream, data__batch_size=16)
    record = execute(experiment, RunPaths(runs)).record
    assert record.done == 3
    assert all(math.isfinite(value) for row in record.training for value in row.values())
