"""A run follows its experiment."""

from dataclasses import replace

import pytest
import torch

from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.errors import OutOfMemory
from ctvr.orchestrator.learning.run import execute as run
from ctvr.orchestrator.learning.run.execute import RunPaths, check_left_out, execute, splits_of, warn_of_long_queues
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.settings.resolve import resolve
from tests.orchestrator.learning.run.test_refusals import Crowd
from tests.refusing import refuses


@pytest.mark.parametrize(
    ("settings", "setting", "is_long"),
    [
        ({"method": "base_moco"}, "method", True),
        ({"method": "base_moco", "method.queue_size": 8}, "method", False),
        ({"method": "base_moco", "data.caption_sampling": "random_per_video", "method.queue_size": 8}, "method", True),
        ({"method": "er_ring_moco"}, "base", True),
        ({"method": "clip4clip"}, "", False),
    ],
)
def test_a_queue_that_is_longer_than_an_epoch_of_a_task_is_warned_of(
    settings, setting, is_long, manifest, small_stream, caplog
):
    presets = ["bmu-moco"] if settings["method"] == "er_ring_moco" else []
    experiment = resolve({**settings, "stream": manifest}, small_stream.settings, presets)
    data = StreamData(small_stream, None, len, (0.5,) * 3, (0.5,) * 3, experiment.data, torch.device("cpu"))
    warn_of_long_queues(experiment, data)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == is_long
    assert all(f"{setting}.queue_size: {1440 if '1440' in line else 8} is more than the" in line for line in said)


def test_few_dropped_pairs_are_reported_once(small_stream, caplog):
    """A task of 41 pairs in batches of 4, split over two workers: the last batch is one pair."""
    tasks = small_stream.tasks
    more = tuple(replace(item, captions=tuple("abcdefghij")) for item in tasks[1].train)
    odd = replace(tasks[1], train=(replace(more[0], captions=tuple("abcdefghijk")), *more[1:]))
    stream = replace(small_stream, tasks=(tasks[0], odd))
    config = DataConfig(num_frames=4, batch_size=4)
    data = StreamData(stream, None, None, (0.0,) * 3, (1.0,) * 3, config, torch.device("cpu"))  # type: ignore[arg-type]
    with caplog.at_level("INFO"):
        check_left_out(data, 0, Workers(1, 2))
        assert caplog.text == ""
        check_left_out(data, 0, Workers(0, 2))
    assert caplog.messages == [
        "an epoch drops 1 of 41 pairs of task_02 (2%), because batches are split evenly over workers"
    ]


def test_a_run_sets_its_device_up_and_says_where_it_will_not_repeat(manifest, small_stream, runs, monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(run, "set_determinism", lambda *given: seen.append(given))
    settings = {"method": "clip4clip", "stream": manifest, "workers": 6, "data.batch_size": 6}
    for more in ({}, {"deterministic": False}):
        assert "deterministic=false" not in caplog.text
        with refuses(where="workers"):
            execute(resolve({**settings, **more}, small_stream.settings), RunPaths(runs), Crowd(0, 6))
    assert seen == [(torch.device("cpu"), True, "fp32"), (torch.device("cpu"), False, "fp32")]
    assert "deterministic=false: on a GPU, repeated and resumed runs give different numbers" in caplog.text


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
