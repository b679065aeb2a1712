from dataclasses import replace

import pytest
import torch

from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.learning.run.batch_checks import check_left_out, warn_of_long_queues
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.settings.resolve import resolve


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
