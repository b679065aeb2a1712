"""The task loop: same numbers whatever happens in between, stored galleries, nothing trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from methods.clip4clip import Clip4Clip
from orchestrator.checkpoint import Commits, Record
from orchestrator.data import FrameSource
from orchestrator.loop import Diverged, Workers
from orchestrator.run import Places, Result, execute, resolve
from orchestrator.store import Store
from orchestrator.streams import Stream, load_stream
from tests.orchestrator.conftest import write_clip


class Killed(Exception):
    """Stands for a process that dies."""


def settings(manifest: str, method: str = "clip4clip", **more: object) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return {"method": method, "stream": manifest, **named}


def train(manifest: str, stream: Stream, runs: Path, **more: object) -> Result:
    return execute(resolve(settings(manifest, **more), stream.settings), Places(runs))


def same_weights(a: Result, b: Result) -> bool:
    mine, others = a.method.state_dict(), b.method.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def numbers(record: Record) -> tuple[object, ...]:
    return record.own, record.union, record.metrics, record.training, record.ranks, record.steps


def test_two_identical_runs_are_bit_identical(manifest, small_stream, runs):
    experiment = resolve(settings(manifest, "framefusion_moe"), small_stream.settings)
    first, second = (execute(experiment, Places(runs), fresh=True) for _ in range(2))
    assert numbers(first.record) == numbers(second.record)
    assert same_weights(first, second)


@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe", "upper_bound"])
def test_a_run_killed_after_a_task_ends_as_an_unbroken_one(method, manifest, small_stream, runs):
    experiment = resolve(settings(manifest, method), small_stream.settings)
    unbroken = execute(experiment, Places(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == 1:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, Places(runs), report=die)
    resumed = execute(experiment, Places(runs))
    assert resumed.resumed == 2
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)


def test_a_finished_run_trains_nothing_again(manifest, small_stream, runs):
    train(manifest, small_stream, runs)
    seen = []
    again = execute(
        resolve(settings(manifest), small_stream.settings), Places(runs), report=lambda *call: seen.append(call)
    )
    assert again.resumed == 3
    assert seen == []


def test_the_seed_decides_and_is_part_of_the_key(manifest, small_stream, runs):
    a, b = (train(manifest, small_stream, runs, seed=seed) for seed in (0, 1))
    assert a.key != b.key
    assert not same_weights(a, b)


def test_learning_rate_zero_is_the_zero_shot_model(manifest, small_stream, runs):
    tuned = train(manifest, small_stream, runs, optim__lr_scale=0.0)
    zero = train(manifest, small_stream, runs, method="zero_shot")
    assert tuned.record.own == zero.record.own
    assert all(row["stream/t2v/r1_gain"] == 0 for row in tuned.record.metrics)


def test_zero_shot_never_forgets_and_its_rows_repeat(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs, method="zero_shot").record
    assert [row["stream/t2v/bwf"] for row in record.metrics] == [0, 0, 0]
    assert all(record.own[t][i] == record.own[i][i] for t in range(3) for i in range(t + 1))


def test_stored_galleries_are_never_recomputed_but_by_the_upper_bound(manifest, small_stream, runs):
    for method, is_stored in (("clip4clip", True), ("upper_bound", False)):
        result = train(manifest, small_stream, runs, method=method)
        commits = Commits(Places(runs).open_store(), result.key)
        before, after = commits.galleries(1)[0], commits.galleries(3)[0]
        assert torch.equal(before, after) is is_stored


def test_matrices_are_lower_triangular_and_complete(manifest, small_stream, runs):
    record = train(manifest, small_stream, runs).record
    for matrix in (record.own, record.union):
        assert [len(row) for row in matrix] == [1, 2, 3]
    assert record.own[0] == record.union[0]
    assert len(record.ranks) == 9
    assert record.done == 3


def test_a_diverged_run_says_where_and_what_to_lower(manifest, small_stream, runs):
    with pytest.raises(Diverged, match=r"task_0\d, epoch \d: the loss .* Lower the learning rates"):
        train(manifest, small_stream, runs, optim__lr_scale=1e30, optim__grad_clip="none")


def test_best_keeps_the_best_epoch_and_never_a_worse_one(manifest, small_stream, runs):
    last = train(manifest, small_stream, runs, optim__epochs=3)
    best = train(manifest, small_stream, runs, optim__epochs=3, evaluation__select="best")
    assert best.record.own[0][0] >= last.record.own[0][0]
    assert best.key != last.key


def test_gradient_accumulation_steps_less_often(manifest, small_stream, runs):
    plain = train(manifest, small_stream, runs)
    accumulated = train(manifest, small_stream, runs, optim__accumulate=2)
    assert accumulated.record.steps * 2 == plain.record.steps


def test_bf16_changes_the_towers_and_scores_in_float32(manifest, small_stream, runs, monkeypatch):
    seen = set()
    plain = Clip4Clip.score

    def spy(self, queries, gallery):
        seen.add((queries.dtype, gallery.dtype, torch.is_autocast_enabled("cpu")))
        return plain(self, queries, gallery)

    full = train(manifest, small_stream, runs)
    monkeypatch.setattr(Clip4Clip, "score", spy)
    half = train(manifest, small_stream, runs, precision="bf16")
    assert half.record.done == 3
    assert seen == {(torch.float32, torch.float32, False)}
    assert not same_weights(full, half)


@pytest.fixture
def cvlm(manifest: str) -> str:
    """The same videos under the protocol that re-encodes every gallery after every task."""
    path = Path(manifest).with_name("small_cvlm.json")
    path.write_text(json.dumps({**json.loads(Path(manifest).read_text()), "name": "small-cvlm", "protocol": "cvlm"}))
    return str(path)


@pytest.mark.parametrize("method", ["framefusion_moe", "bmu_moco"])
def test_a_resumed_run_remembers_galleries_that_are_encoded_again(method, cvlm, runs):
    stream = load_stream(cvlm, runs)
    experiment = resolve(settings(cvlm, method), stream.settings)
    unbroken = execute(experiment, Places(runs), fresh=True)

    def die(task, record, seconds):
        if task.index == 1:
            raise Killed

    with pytest.raises(Killed):
        execute(experiment, Places(runs), report=die)
    resumed = execute(experiment, Places(runs))
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)
    assert {"stream/t2v/fr", "stream/t2v/hm", "stream/t2v/r1_mean"} <= set(resumed.record.metrics[-1])


def test_a_run_killed_within_a_commit_does_the_task_again(manifest, small_stream, runs, monkeypatch):
    experiment = resolve(settings(manifest), small_stream.settings)
    unbroken = execute(experiment, Places(runs), fresh=True)
    calls = []
    publish = Store.put_new_json

    def die_at_the_second(self, kind, key, value):
        if kind == "commits" and not key.startswith("zero-"):
            calls.append(key)
            if len(calls) == 2:
                raise Killed  # weights and gallery are written, the record that names them is not
        return publish(self, kind, key, value)

    monkeypatch.setattr(Store, "put_new_json", die_at_the_second)
    with pytest.raises(Killed):
        execute(experiment, Places(runs))
    monkeypatch.undo()
    resumed = execute(experiment, Places(runs))
    assert resumed.resumed == 1
    assert numbers(resumed.record) == numbers(unbroken.record)
    assert same_weights(resumed, unbroken)


def test_a_search_never_reads_a_test_video(manifest, small_stream, runs, monkeypatch):
    read = []
    load = FrameSource.load
    monkeypatch.setattr(FrameSource, "load", lambda self, item: read.append(item.video) or load(self, item))
    train(manifest, small_stream, runs, evaluation__split="val")
    assert any("_val_" in video for video in read)
    assert not [video for video in read if "_test_" in video]


def test_other_footage_under_the_same_names_is_another_run(manifest, small_stream, runs):
    before = train(manifest, small_stream, runs)
    write_clip(Path(manifest).parent / "videos" / "red_train_0.mp4", (10, 10, 10), seed=999)
    after = train(manifest, small_stream, runs)
    assert after.key != before.key
    assert after.resumed == 0


def _worker(rank: int, port: int, manifest: str, runs: str, out: str, method: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    stream = load_stream(manifest, Path(runs))
    experiment = resolve({"method": method, "stream": manifest, "workers": 2}, stream.settings)
    result = execute(experiment, Places(Path(runs)), Workers(rank, 2))
    torch.save({"state": result.method.state_dict(), "own": result.record.own}, f"{out}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["clip4clip", "framefusion_moe"])
def test_two_workers_learn_what_one_does(method, manifest, small_stream, runs, tmp_path, free_port):
    torch.multiprocessing.spawn(_worker, (free_port, manifest, str(runs), str(tmp_path), method), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["own"] == second["own"]
    assert all(torch.equal(value, second["state"][name]) for name, value in first["state"].items())
    if method == "clip4clip":  # dropout and routing noise differ by worker; without them, so do only roundings
        alone = train(manifest, small_stream, runs).method.state_dict()
        for name, value in first["state"].items():
            torch.testing.assert_close(value, alone[name], atol=1e-4, rtol=1e-3)
