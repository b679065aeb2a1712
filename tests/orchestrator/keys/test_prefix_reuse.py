"""Runs that cannot differ up to a task train it once; all settings that are read before it count."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from ctvr.methods.layers.reduction.config import EViTConfig
from ctvr.methods.lora import LoraConfig
from ctvr.orchestrator.keys.prefix_reuse import AccessLog, Prefixes, TrackedSettings, track_reads
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.load import load_stream


@dataclass(frozen=True, kw_only=True)
class Config:
    beta: float = 0.5
    rank: int = 4
    name: str = "x"

    @property
    def double(self) -> int:
        return 2 * self.rank


def test_what_is_read_is_noted_and_nothing_else():
    reads = AccessLog()
    config = track_reads(Config(), "method", reads)
    assert reads.names == set()
    assert isinstance(config, Config)
    assert config.beta == 0.5
    assert reads.names == {"method.beta"}
    assert config.double == 8
    assert reads.names == {"method.beta", "method.rank"}


def test_a_copied_teacher_notes_what_it_reads_too():
    reads = AccessLog()
    module = torch.nn.Linear(1, 1)
    module.config = track_reads(Config(), "method", reads)
    teacher = copy.deepcopy(module)
    assert reads.names == set()
    assert teacher.config.rank == 4
    assert reads.names == {"method.rank"}


@pytest.mark.parametrize("look", [vars, repr, lambda c: c == c, hash, lambda c: c.__dict__])
def test_looking_at_everything_reads_everything(look):
    reads = AccessLog()
    look(track_reads(Config(), "method", reads))
    assert reads.names == {"method.beta", "method.rank", "method.name"}


def test_a_group_notes_its_name_and_the_settings_that_are_read():
    reads = AccessLog()
    config = track_reads(LoraConfig(reducer=EViTConfig(keep_rate=0.5)), "method", reads)
    assert isinstance(config.reducer, EViTConfig)
    assert reads.names == {"method.reducer.name"}
    assert config.reducer.keep_rate == 0.5
    assert reads.names == {"method.reducer.name", "method.reducer.keep_rate"}
    assert LoraConfig.__name__ in repr(config)
    assert {f"method.reducer.{name}" for name in ("fuse", "stages")} <= reads.names


def test_settings_that_decide_nothing_are_not_noted():
    reads = AccessLog(idle=("method.name",))
    assert track_reads(Config(), "method", reads).name == "x"
    assert reads.names == set()


def test_names_may_be_listed_and_values_are_noted():
    reads = AccessLog()
    settings = TrackedSettings({"a": 1, "b": 2}, reads)
    assert sorted(settings) == ["a", "b"]
    assert reads.names == set()
    assert settings["a"] == 1
    assert reads.names == {"a"}
    assert dict(settings) == {"a": 1, "b": 2}
    assert reads.names == {"a", "b"}


def prefixes(store: Store, **settings) -> Prefixes:
    return Prefixes(store, "base", {"a": 1, "b": 2, "c": 3, **settings}, {})


def test_a_prefix_is_found_by_the_values_that_were_read(tmp_path):
    store = Store.open(tmp_path)
    prefixes(store).publish(1, {"a"}, "run1")
    prefixes(store).publish(2, {"a", "b"}, "run1")
    assert [(p.done, p.run) for p in prefixes(store, c=9).find(3)] == [(2, "run1"), (1, "run1")]
    assert [(p.done, p.run) for p in prefixes(store, b=9).find(3)] == [(1, "run1")]
    assert list(prefixes(store, a=9).find(3)) == []
    assert [p.done for p in prefixes(store, c=9).find(3, at_least=2)] == [2]
    assert next(Prefixes(store, "base", {"a": 1}, {}).find(3)).done == 1


def test_a_file_that_a_setting_names_is_read_by_its_content(tmp_path):
    store = Store.open(tmp_path)
    made = Prefixes(store, "base", {"a": "f.json"}, {"a": "old"})
    made.publish(1, {"a"}, "run1")
    assert len(list(made.find(1))) == 1
    assert list(Prefixes(store, "base", {"a": "f.json"}, {"a": "new"}).find(1)) == []


# ------------------------------------------------------------------------------------------- whole runs


def run(manifest, runs, reuse=True, **settings):
    stream = load_stream(manifest, runs)
    given = {"method": "framefusion_moe", "stream": manifest, "optim.epochs": 1, "method.rank": 2, **settings}
    return execute(
        resolve({k.replace("__", "."): v for k, v in given.items()}, stream.settings), RunPaths(runs), reuse=reuse
    )


def outcome(result):
    weights = {name: value.numpy() for name, value in result.method.state_dict().items()}
    record = result.record
    return (record.own, record.union, record.metrics, record.training, record.ranks, record.steps), weights


def same(a, b) -> bool:
    (first, weights), (second, others) = outcome(a), outcome(b)
    return (
        first == second
        and weights.keys() == others.keys()
        and all(np.array_equal(weights[name], others[name]) for name in weights)
    )


def test_task_1_is_shared_by_runs_that_differ_in_what_it_does_not_read(manifest, runs):
    first = run(manifest, runs)
    other = {"method__beta": 0.2, "method__num_experts": 4, "method__top_k": 1, "method__lr_text": 1e-5}
    reused = run(manifest, runs, **other)
    assert (first.reused, reused.reused, reused.resumed) == (0, 1, 1)
    assert same(reused, run(manifest, runs, reuse=False, **other))
    assert not same(reused, first)


@pytest.mark.slow
def test_a_setting_that_task_1_reads_shares_nothing(manifest, runs):
    run(manifest, runs)
    for setting in ({"method__lr_text_first": 1e-5}, {"seed": 7}):
        assert run(manifest, runs, **setting).reused == 0


@pytest.mark.slow
def test_what_another_run_trained_stays_when_old_weights_go(manifest, runs):
    first = run(manifest, runs)
    store = RunPaths(runs).open_store()
    kept = store.list("weights", f"{first.key}/")
    assert [name.split("/")[1][:8] for name in kept] == ["task_001", "task_002", "task_003"]  # 1: runs branch off there
    second = run(manifest, runs, method__beta=0.2)
    assert set(kept) <= set(store.list("weights"))
    assert Commits(store, second.key).finished(3) == 3
    assert run(manifest, runs, method__beta=0.3).reused == 1


def test_a_damaged_prefix_is_trained_again(manifest, runs):
    first = run(manifest, runs)
    store = RunPaths(runs).open_store()
    for name in store.list("weights", f"{first.key}/task_001"):
        store.delete("weights", name)
    assert run(manifest, runs, method__beta=0.2).reused == 0


def test_a_run_with_other_idle_settings_is_finished_at_once(manifest, runs):
    """A setting that is never read causes no new training: here the noise of a router in a model without a router."""
    first = run(manifest, runs, method__use_tame="false")
    again = run(manifest, runs, method__use_tame="false", method__noisy_router="false")
    assert (again.resumed, again.reused) == (3, 3)
    assert again.key != first.key
    assert same(first, again)
