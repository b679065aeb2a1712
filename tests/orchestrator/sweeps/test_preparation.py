"""Videos are decoded before several processes need them."""

from dataclasses import replace
from pathlib import Path

import pytest

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.learning.run.execute import execute
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.sweeps.preparation import prepare_run
from tests.refusing import refuses


@pytest.fixture
def execution(runs: Path) -> ExecutionConfig:
    return ExecutionConfig(runs=runs)


def test_a_second_preparation_decodes_nothing(execution, manifest, small_stream):
    experiment = resolve({"method": "clip4clip", "stream": manifest}, small_stream.settings)
    assert prepare_run(experiment, execution, ("train", "val", "test")).decoded == 0
    other = replace(execution, store=str(execution.runs / "other"))
    total = sum(len(small_stream.items(i, split)) for i in range(3) for split in ("train", "val", "test"))
    assert prepare_run(experiment, other, ("train", "val", "test")).decoded == total
    assert prepare_run(experiment, other, ("train", "val", "test")).decoded == 0


def test_a_task_without_training_pairs_is_refused_before_decoding(execution, manifest, small_stream):
    crowd = {"stream": manifest, "workers": 16, "data.batch_size": 16}
    other = replace(execution, store=str(execution.runs / "other"))
    with refuses("task_01", "8", "16", where="workers"):
        prepare_run(resolve({"method": "clip4clip", **crowd}, small_stream.settings), other)
    assert not other.places().open_store().list("frames")
    prepare_run(resolve({"method": "zero_shot", **crowd}, small_stream.settings), execution)  # trains nothing anyway


def test_only_the_splits_that_a_run_reads_are_decoded(execution, manifest, small_stream):
    settings = {"method": "clip4clip", "stream": manifest}
    other = replace(execution, store=str(execution.runs / "other"))
    assert prepare_run(resolve(settings, small_stream.settings), other).decoded == 3 * (4 + 3)  # train, test
    best = {**settings, "evaluation.select": "best"}
    assert prepare_run(resolve(best, small_stream.settings), other).decoded == 3 * 3  # val, to choose on


def test_the_curve_is_that_of_a_run_on_a_cpu_and_left_to_other_runs(execution, manifest, small_stream, monkeypatch):
    """A run on a GPU has another key; in that case `curve=False`."""
    experiment = resolve({"method": "zero_shot", "stream": manifest, "precision": "bf16"}, small_stream.settings)
    store = execution.places().open_store()

    def curves() -> set[str]:
        return {name.partition("/")[0] for name in store.list("commits") if name.startswith("zero-")}

    before = curves()
    assert prepare_run(experiment, execution, curve=False).zero_shot == ()
    assert curves() == before
    curve = prepare_run(experiment, execution).zero_shot
    made = curves()
    assert len(made - before) == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = execute(experiment, execution.places())
    assert curve == tuple(row["stream/t2v/r1"] for row in done.record.metrics)
    assert curves() == made
