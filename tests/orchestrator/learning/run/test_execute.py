"""A run follows its experiment."""

from dataclasses import replace

import pytest
import torch

from ctvr.orchestrator.errors import OutOfMemory
from ctvr.orchestrator.learning.run import execute as run
from ctvr.orchestrator.learning.run.execute import RunPaths, execute, splits_of
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.settings.resolve import resolve
from tests.orchestrator.learning.run.test_refusals import Crowd
from tests.refusing import refuses


def test_a_run_sets_its_device_up_and_says_where_it_will_not_repeat(manifest, small_stream, runs, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(run, "set_determinism", lambda *given: seen.append(given))
    settings = {"method": "clip4clip", "stream": manifest, "workers": 6, "data.batch_size": 6}
    for more in ({}, {"deterministic": False}):
        assert "deterministic=false" not in caplog.text
        with refuses(where="workers"):
            execute(resolve({**settings, **more}, small_stream.settings), RunPaths(runs), Crowd(0, 6))
    assert seen == [(torch.device("cpu"), True, "fp32"), (torch.device("cpu"), False, "fp32")]
    assert "deterministic=false: on a GPU, repeated and resumed runs give different results" in caplog.text


@pytest.mark.parametrize("where", ["zero_shot_curve", "_to_the_end"])
def test_a_device_that_is_too_small_ends_a_run_with_the_remedy(where, manifest, small_stream, runs, monkeypatch):
    def fail(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(run, "zero_shot_curve", lambda *given: [])
    monkeypatch.setattr(run, where, fail)
    settings = {"method": "clip4clip", "stream": manifest}
    with pytest.raises(OutOfMemory, match="^data.batch_size: the memory of cpu on .* is too small"):
        execute(resolve(settings, small_stream.settings), RunPaths(runs), Workers())


def test_a_run_reads_the_split_that_its_epochs_are_chosen_on(manifest, small_stream):
    def splits(stream, **evaluation):
        settings = {f"evaluation.{name}": value for name, value in evaluation.items()}
        return splits_of(resolve({"method": "zero_shot", "stream": manifest, **settings}, stream.settings), stream)

    without_val = replace(small_stream, has_val=False)
    assert splits(small_stream) == ("train", "test")
    assert splits(small_stream, select="best") == ("train", "test", "val")
    assert splits(small_stream, select="best", select_split="same") == ("train", "test")
    assert splits(small_stream, select="best", split="val") == ("train", "val")
    assert splits(without_val, select="best") == ("train", "test")
    with refuses("evaluation.select_split"):
        splits(without_val, select="best", select_split="val")
